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

// greetLimit bounds a greeting for whom no context does: a sandbox that boots on
// a busy machine takes its time.
const greetLimit = 30 * time.Second

// Client is the keeper's end. It is safe for concurrent use.
type Client struct {
	c net.Conn
	m *mux

	mu    sync.Mutex // guards what follows
	last  uint32     // number of a question or stream
	asked map[uint32]chan answer
	procs map[string]*Process
	held  bool
}

// Boot greets the guest of a sandbox that has just been started and gives it its
// token. Nobody else may have the socket.
func Boot(ctx context.Context, c net.Conn, token []byte) (*Client, error) {
	return connect(ctx, c, token, true)
}

// Connect greets a guest that has the token, and refuses any other. For a copy it
// is called before the copy is restored: the first thing that it does then is to
// find the greeting, and to stop its processes. c is closed when Connect fails.
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

// read takes what the guest says, and never waits for anybody else.
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

// lose ends everything that waits.
func (c *Client) lose() {
	c.m.fail(errGone)
	c.c.Close()
}

// Close ends the connection, and with it the guest, unless it is held.
func (c *Client) Close() error {
	c.lose()
	return nil
}

// Done is closed when the connection is lost; whoever waits gets an error of the
// kind unavailable then.
func (c *Client) Done() <-chan struct{} { return c.m.gone }

func (c *Client) number() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	return c.last
}

// expect makes room for an answer.
func (c *Client) expect() (uint32, chan answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	ch := make(chan answer, 1)
	c.asked[c.last] = ch
	return c.last, ch
}

// ask asks a question and waits for its answer. With a ctx that ends it returns;
// the guest goes on nevertheless.
func (c *Client) ask(ctx context.Context, q question) (answer, error) {
	id, ch := c.expect()
	if err := c.m.writeJSON(frameAsk, id, q); err != nil {
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
		c.mu.Lock()
		delete(c.asked, id)
		c.mu.Unlock()
		return a, context.Cause(ctx)
	}
	if a.Error != nil {
		return a, a.Error.err()
	}
	return a, nil
}

// List is what `ps` shows: all processes of the cell but the first.
func (c *Client) List(ctx context.Context) ([]cell.ProcessInfo, error) {
	a, err := c.ask(ctx, question{Op: opList})
	return a.List, err
}

// KillAll ends every process of the cell and returns how many there were.
func (c *Client) KillAll(ctx context.Context) (int, error) {
	a, err := c.ask(ctx, question{Op: opKillAll})
	return a.Count, err
}

// Sync is sync(2) in the sandbox.
func (c *Client) Sync(ctx context.Context) error {
	_, err := c.ask(ctx, question{Op: opSync})
	return err
}

// Processes lists what was started and not released: in a restored copy, what the
// source's keeper had started.
func (c *Client) Processes(ctx context.Context) ([]Known, error) {
	a, err := c.ask(ctx, question{Op: opKnown})
	return a.Known, err
}

// ReadFiles writes what lies at path into a tar archive.
func (c *Client) ReadFiles(ctx context.Context, path string, w io.Writer) error {
	s := c.m.open(c.number())
	defer c.m.forget(s)
	stop := context.AfterFunc(ctx, func() { s.fail(context.Cause(ctx)) })
	defer stop()
	id, ch := c.expect()
	if err := c.m.writeJSON(frameAsk, id, question{Op: opRead, Path: path, Streams: []uint32{s.id}}); err != nil {
		return err
	}
	if _, err := io.Copy(w, s); err != nil {
		s.CloseRead()
		return err
	}
	_, err := c.wait(ctx, id, ch)
	return err
}

// WriteFiles extracts a tar archive below path; what it makes belongs to who.
func (c *Client) WriteFiles(ctx context.Context, path string, who cell.User, r io.Reader) error {
	s := c.m.open(c.number())
	defer c.m.forget(s)
	stop := context.AfterFunc(ctx, func() { s.fail(context.Cause(ctx)) })
	defer stop()
	id, ch := c.expect()
	if err := c.m.writeJSON(frameAsk, id, question{Op: opWrite, Path: path, UID: who.UID, GID: who.GID, Streams: []uint32{s.id}}); err != nil {
		return err
	}
	read := &noted{r: r}
	go func() { // what is wrong at the other end is known before all has been read
		io.Copy(struct{ io.Writer }{s}, read)
		s.CloseWrite()
	}()
	_, err := c.wait(ctx, id, ch)
	if rerr := read.failed(); rerr != nil {
		return rerr
	}
	return err
}

// noted keeps the error of a reader that another goroutine reads.
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

// Dial connects to a port of the cell's loopback.
func (c *Client) Dial(ctx context.Context, port int) (net.Conn, error) {
	return c.join(ctx, question{Op: opDial, Port: port})
}

// Accept returns the next connection to a socket in the cell, at which its guest listens
// from then on. Path is absolute; its folder must be there, and shows nothing else then.
func (c *Client) Accept(ctx context.Context, path string) (net.Conn, error) {
	return c.join(ctx, question{Op: opAccept, Path: path})
}

// join asks for a connection, and returns our end of it.
func (c *Client) join(ctx context.Context, q question) (net.Conn, error) {
	s := c.m.open(c.number())
	q.Streams = []uint32{s.id}
	if _, err := c.ask(ctx, q); err != nil {
		s.CloseRead() // it may come yet
		s.CloseWrite()
		c.m.forget(s)
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

// Ports lists the TCP ports on which something listens in the sandbox.
func (c *Client) Ports(ctx context.Context) ([]cell.Listening, error) {
	a, err := c.ask(ctx, question{Op: opPorts})
	return a.Ports, err
}

// Tried is how many packets found nobody to go to, by the guest's kernel.
func (c *Client) Tried(ctx context.Context) (int64, error) {
	a, err := c.ask(ctx, question{Op: opTried})
	return int64(a.Count), err
}

// Hold brings the guest to stand still at the border of a frame, for a checkpoint.
// Until GoOn nothing is sent in either direction; whoever asks waits. With stop, and in
// gVisor always, the processes are frozen, too: copies have not run at all before they are
// adopted then.
func (c *Client) Hold(ctx context.Context, stop bool) error {
	if err := c.m.take(); err != nil {
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
		if ctx.Err() != nil { // it may stand still in a moment
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

// GoOn ends Hold on the connection that began it. The guest is told at once, which it
// hears when it can; done returns when it goes on.
func (c *Client) GoOn(ctx context.Context) (done func() error, err error) {
	c.mu.Lock()
	held := c.held
	c.held = false
	c.mu.Unlock()
	if !held {
		return nil, cell.Errorf(cell.Conflict, "guest.GoOn", "", "cannot let the cell go on: it does not stand still")
	}
	id, ch := c.expect()
	err = c.m.writeNow(frameAsk, id, []byte(`{"op":"`+opGoOn+`"}`))
	c.m.give()
	return func() error {
		_, err := c.wait(ctx, id, ch)
		return err
	}, err
}

// Still lets a copy's processes stand still that waits to be adopted, or go on.
func (c *Client) Still(ctx context.Context, still bool) error {
	_, err := c.ask(ctx, question{Op: opStill, Stop: still})
	return err
}

// Draws says what generators of random numbers the cell's processes have in user space.
// The guest remembers the files that it has looked at, also in copies.
func (c *Client) Draws(ctx context.Context) ([]hazard.Process, error) {
	a, err := c.ask(ctx, question{Op: opDraws})
	return a.Draws, err
}

// Renew is Draws of a copy whose processes stand still, as they do until Adopt. Generators
// that can be renewed from outside seed themselves anew before they give anything again.
func (c *Client) Renew(ctx context.Context) ([]hazard.Process, error) {
	a, err := c.ask(ctx, question{Op: opDraws, Renew: true})
	return a.Draws, err
}

// Adopt tells a restored copy who it is. Its processes go on then.
func (c *Client) Adopt(ctx context.Context, a Adoption) ([]cell.Hazard, error) {
	r, err := c.ask(ctx, question{Op: opAdopt, Adopt: &a})
	for i := range r.Hazards {
		r.Hazards[i].Seen = "inside" // whatever it says
	}
	return r.Hazards, err
}
