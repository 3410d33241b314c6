package guest

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/hazard"
)

// greetLimit is the time limit for a greeting without a deadline. A sandbox boots slowly on a
// busy host.
const greetLimit = 30 * time.Second

// Client is the keeper's end. It is safe for concurrent use.
type Client struct {
	c net.Conn
	m *mux

	mu    sync.Mutex // guards the fields below
	last  uint32     // number of the last question or stream
	asked map[uint32]chan answer
	procs map[string]*Process
	held  bool
}

// Boot greets the guest of a sandbox that was just started, and sends the token. No other
// process may have the socket.
func Boot(ctx context.Context, c net.Conn, token []byte) (*Client, error) {
	return connect(ctx, c, token, true)
}

// Connect greets a guest, and fails unless it proves that it knows the token. For a copy it is
// called before the copy is restored: the copy then finds the greeting first and freezes its
// processes. Connect closes c when it fails.
func Connect(ctx context.Context, c net.Conn, token []byte) (*Client, error) {
	return connect(ctx, c, token, false)
}

func connect(ctx context.Context, c net.Conn, token []byte, boot bool) (*Client, error) {
	if len(token) == 0 {
		c.Close()
		return nil, cell.Errorf(cell.Internal, "guest.Connect", "", "cannot talk to the cell's guest without a token")
	}
	limit, ok := ctx.Deadline()
	if !ok {
		limit = time.Now().Add(greetLimit)
	}
	c.SetDeadline(limit)
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	err := greetGuest(c, token, boot)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		c.Close()
		if cell.KindOf(err) == cell.Internal {
			err = cell.Errorf(cell.Unavailable, "guest.Connect", "", "cannot greet the cell's guest: %w", err)
		}
		return nil, err
	}
	c.SetDeadline(time.Time{})
	cl := &Client{c: c, m: newMux(bufio.NewReaderSize(c, maxPayload), c), asked: map[uint32]chan answer{}, procs: map[string]*Process{}}
	go cl.read()
	return cl, nil
}

// read dispatches the guest's frames. It never blocks on a consumer.
func (c *Client) read() {
	buf := make([]byte, maxPayload)
	for {
		t, id, b, err := c.m.next(buf)
		if err == nil {
			err = c.hear(t, id, b)
		}
		if err != nil {
			c.lose()
			return
		}
	}
}

func (c *Client) hear(t frameType, id uint32, b []byte) error {
	switch t {
	case frameAnswer:
		var a answer
		if err := decode(b, &a); err != nil {
			return err
		}
		c.mu.Lock()
		ch := c.asked[id]
		delete(c.asked, id)
		c.mu.Unlock()
		if ch != nil {
			ch <- a
		}
	case frameNote:
		var n note
		if err := decode(b, &n); err != nil {
			return err
		}
		c.mu.Lock()
		ended, waits := c.procs[n.Ended], c.procs[n.Gate]
		c.mu.Unlock()
		if ended != nil {
			ended.end()
		}
		if waits != nil {
			go waits.pass()
		}
	default:
		return errProtocol("a frame of type %d", t)
	}
	return nil
}

// lose fails all pending questions and processes.
func (c *Client) lose() {
	c.m.fail(errGone)
	c.c.Close()
}

// Close closes the connection. The guest exits, unless it is held.
func (c *Client) Close() error {
	c.lose()
	return nil
}

// Done is closed when the connection is lost. Pending calls then fail with kind unavailable.
func (c *Client) Done() <-chan struct{} { return c.m.gone }

func (c *Client) number() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	return c.last
}

// expect registers the number of a question, and returns the channel for its answer.
func (c *Client) expect() (uint32, chan answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	ch := make(chan answer, 1)
	c.asked[c.last] = ch
	return c.last, ch
}

// ask sends a question and waits for the answer. It returns when ctx ends; the guest continues
// with the question.
func (c *Client) ask(ctx context.Context, q question) (answer, error) {
	id, ch := c.expect()
	if err := c.m.ask(ctx, frameAsk, id, q); err != nil {
		c.forget(id)
		return answer{}, err
	}
	return c.wait(ctx, id, ch)
}

func (c *Client) wait(ctx context.Context, id uint32, ch chan answer) (a answer, err error) {
	select {
	case a = <-ch:
	case <-c.m.gone:
		select {
		case a = <-ch:
		default:
			return a, c.m.err()
		}
	case <-ctx.Done():
		c.forget(id)
		return a, context.Cause(ctx)
	}
	if a.Error != nil {
		return a, a.Error.err()
	}
	return a, nil
}

// forget drops the answer to a question.
func (c *Client) forget(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.asked, id)
}

// List returns all processes of the cell except the first.
func (c *Client) List(ctx context.Context) ([]cell.ProcessInfo, error) {
	a, err := c.ask(ctx, question{Op: opList})
	return a.List, err
}

// KillAll kills every process of the cell and returns their number.
func (c *Client) KillAll(ctx context.Context) (int, error) {
	a, err := c.ask(ctx, question{Op: opKillAll})
	return a.Count, err
}

// Sync calls sync(2) in the sandbox.
func (c *Client) Sync(ctx context.Context) error {
	_, err := c.ask(ctx, question{Op: opSync})
	return err
}

// Processes lists the processes that were started and not released. In a restored copy the
// source's keeper started them.
func (c *Client) Processes(ctx context.Context) ([]Known, error) {
	a, err := c.ask(ctx, question{Op: opKnown})
	return a.Known, err
}

// ReadFiles writes the files at path to w as a tar archive.
func (c *Client) ReadFiles(ctx context.Context, path string, w io.Writer) error {
	s := c.m.open(c.number())
	defer c.m.forget(s)
	stop := context.AfterFunc(ctx, func() { s.fail(context.Cause(ctx)) })
	defer stop()
	id, ch := c.expect()
	if err := c.m.ask(ctx, frameAsk, id, question{Op: opRead, Path: path, Streams: []uint32{s.id}}); err != nil {
		c.forget(id)
		return err
	}
	if _, err := io.Copy(w, s); err != nil {
		c.forget(id)
		go s.CloseRead() // which waits while the guest stands still
		return err
	}
	_, err := c.wait(ctx, id, ch)
	return err
}

// WriteFiles extracts a tar archive below path. The files belong to owner.
func (c *Client) WriteFiles(ctx context.Context, path string, owner cell.User, r io.Reader) error {
	s := c.m.open(c.number())
	defer c.m.forget(s)
	stop := context.AfterFunc(ctx, func() { s.fail(context.Cause(ctx)) })
	defer stop()
	id, ch := c.expect()
	if err := c.m.ask(ctx, frameAsk, id, question{Op: opWrite, Path: path, UID: owner.UID, GID: owner.GID, Streams: []uint32{s.id}}); err != nil {
		c.forget(id)
		return err
	}
	read := &noted{r: r}
	go func() { // the other end may report an error before all was read
		io.Copy(struct{ io.Writer }{s}, read)
		s.CloseWrite()
	}()
	_, err := c.wait(ctx, id, ch)
	if rerr := read.failed(); rerr != nil {
		return rerr
	}
	return err
}

// noted records the error of a reader that another goroutine uses.
type noted struct {
	r   io.Reader
	mu  sync.Mutex // guards err
	err error
}

func (n *noted) Read(b []byte) (int, error) {
	k, err := n.r.Read(b)
	if err != nil && err != io.EOF {
		n.mu.Lock()
		n.err = err
		n.mu.Unlock()
	}
	return k, err
}

func (n *noted) failed() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// Dial connects to a TCP port on the cell's loopback.
func (c *Client) Dial(ctx context.Context, port int) (net.Conn, error) {
	return c.join(ctx, question{Op: opDial, Port: port})
}

// Accept returns the next connection to a Unix socket in the cell, on which the guest listens
// from then on. Path is absolute; its directory must exist, and its previous contents are
// hidden.
func (c *Client) Accept(ctx context.Context, path string) (net.Conn, error) {
	return c.join(ctx, question{Op: opAccept, Path: path})
}

// join asks for a connection and returns the local end.
func (c *Client) join(ctx context.Context, q question) (net.Conn, error) {
	s := c.m.open(c.number())
	q.Streams = []uint32{s.id}
	if _, err := c.ask(ctx, q); err != nil {
		go func() { // which waits while the guest stands still
			s.CloseRead() // the connection may still arrive
			s.CloseWrite()
			c.m.forget(s)
		}()
		return nil, err
	}
	mine, theirs, err := socketPair()
	if err != nil {
		s.CloseRead()
		s.CloseWrite()
		c.m.forget(s)
		return nil, err
	}
	c.both(s, theirs)
	conn, err := net.FileConn(mine)
	mine.Close()
	return conn, err
}

// Ports lists the listening TCP ports in the sandbox.
func (c *Client) Ports(ctx context.Context) ([]cell.Listening, error) {
	a, err := c.ask(ctx, question{Op: opPorts})
	return a.Ports, err
}

// Tried returns how many packets had no route, by the guest kernel's counters.
func (c *Client) Tried(ctx context.Context) (int64, error) {
	a, err := c.ask(ctx, question{Op: opTried})
	return int64(a.Count), err
}

// Hold pauses the guest at a frame boundary, for a checkpoint. Until GoOn neither side sends;
// calls wait. If stop is set, and always on gVisor, the processes are frozen, too, so that
// copies do not run before their adoption.
func (c *Client) Hold(ctx context.Context, stop bool) error {
	if err := c.m.take(ctx); err != nil {
		return err
	}
	id, ch := c.expect()
	q, err := json.Marshal(question{Op: opHold, Stop: stop})
	if err == nil {
		err = c.m.writeNow(frameAsk, id, q)
	}
	if err == nil {
		_, err = c.wait(ctx, id, ch)
	}
	if err != nil {
		if ctx.Err() != nil { // it may pause in a moment
			id, _ = c.expect()
			c.m.writeNow(frameAsk, id, []byte(`{"op":"`+opGoOn+`"}`))
		}
		c.m.give()
		return err
	}
	c.mu.Lock()
	c.held = true
	c.mu.Unlock()
	return nil
}

// GoOn ends Hold on the same connection. It sends the message at once; done waits until the
// guest continues.
func (c *Client) GoOn(ctx context.Context) (done func() error, err error) {
	c.mu.Lock()
	held := c.held
	c.held = false
	c.mu.Unlock()
	if !held {
		return nil, cell.Errorf(cell.Conflict, "guest.GoOn", "", "cannot resume the cell: it is not paused")
	}
	id, ch := c.expect()
	err = c.m.writeNow(frameAsk, id, []byte(`{"op":"`+opGoOn+`"}`))
	c.m.give()
	return func() error {
		_, err := c.wait(ctx, id, ch)
		return err
	}, err
}

// Still freezes or thaws the processes of a copy that waits for its adoption.
func (c *Client) Still(ctx context.Context, still bool) error {
	_, err := c.ask(ctx, question{Op: opStill, Stop: still})
	return err
}

// Draws lists the user-space random number generators of the cell's processes. The guest caches
// results per file, also in copies.
func (c *Client) Draws(ctx context.Context) ([]hazard.Process, error) {
	a, err := c.ask(ctx, question{Op: opDraws})
	return a.Draws, err
}

// Renew is Draws for a copy with frozen processes (until Adopt). Generators that support it are
// reseeded from outside before they produce output.
func (c *Client) Renew(ctx context.Context) ([]hazard.Process, error) {
	a, err := c.ask(ctx, question{Op: opDraws, Renew: true})
	return a.Draws, err
}

// Adopt sets the identity of a restored copy. Its processes then continue.
func (c *Client) Adopt(ctx context.Context, a Adoption) ([]cell.Hazard, error) {
	r, err := c.ask(ctx, question{Op: opAdopt, Adopt: &a})
	for i := range r.Hazards {
		r.Hazards[i].Seen = "inside" // whatever the guest says
	}
	return r.Hazards, err
}
