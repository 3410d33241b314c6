package guest

import (
	"context"
	"encoding/json"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
)

// flushStill is how long the end of a process waits for output that came before
// it, when nobody takes any of it.
const flushStill = 50 * time.Millisecond

// behindStill is how long an interpreter's answer waits for the output before it,
// when nobody takes any of that: whoever is slow holds the interpreter back.
const behindStill = 30 * time.Second

// Process is one that a client started, or took over.
type Process struct {
	c        *Client
	id       string
	pid      int
	made     *confine.Measured
	gate     func() error // nil: it may begin
	terminal *os.File
	outs     []*out

	once  sync.Once
	ended chan struct{}
}

// Start starts a command. stdio are the child's ends of its streams, control, for
// an interpreter, of the socket that it has as descriptor 3; the caller may close
// them when Start has returned. With a terminal all are nil.
func (c *Client) Start(ctx context.Context, cmd Command, stdio [3]*os.File, control *os.File) (*Process, error) {
	return c.attach(ctx, question{Op: opStart, Command: &cmd, ID: cmd.ID}, cmd.Process.TTY, stdio, control)
}

// Reattach takes over a process that Processes names: of a restored copy, whose
// source's keeper had its streams. They are as with Start.
func (c *Client) Reattach(ctx context.Context, k Known, stdio [3]*os.File, control *os.File) (*Process, error) {
	return c.attach(ctx, question{Op: opReattach, ID: k.ID}, k.TTY, stdio, control)
}

func (c *Client) attach(ctx context.Context, q question, tty bool, stdio [3]*os.File, control *os.File) (_ *Process, err error) {
	p := &Process{c: c, id: q.ID, ended: make(chan struct{})}
	if q.Command != nil {
		p.gate = q.Command.Gate
	}
	var streams [4]*stream
	var files [4]*os.File // ours
	q.Streams = make([]uint32, 4)
	defer func() {
		if err == nil {
			return
		}
		c.mu.Lock()
		delete(c.procs, q.ID)
		c.mu.Unlock()
		for i := range streams {
			if streams[i] != nil {
				c.m.forget(streams[i])
			}
			if files[i] != nil {
				files[i].Close()
			}
		}
		if p.terminal != nil {
			p.terminal.Close()
		}
	}()
	given := [4]*os.File{stdio[0], stdio[1], stdio[2], control}
	if tty {
		mine, theirs, err := socketPair()
		if err != nil {
			return nil, err
		}
		p.terminal, files[0], given = mine, theirs, [4]*os.File{}
	}
	for i, f := range given {
		if f == nil {
			continue
		}
		if files[i], err = ownCopy(f); err != nil {
			return nil, err
		}
	}
	for i, f := range files {
		if f != nil {
			streams[i] = c.m.open(c.number())
			q.Streams[i] = streams[i].id
		}
	}
	c.mu.Lock()
	_, twice := c.procs[q.ID]
	if !twice {
		c.procs[q.ID] = p
	}
	c.mu.Unlock()
	if twice {
		id := q.ID
		q.ID = "" // it is not ours to delete
		return nil, cell.Errorf(cell.Exists, "guest.Start", "", "cannot start %s: it was started already", id)
	}
	a, err := c.ask(ctx, q)
	if err != nil {
		if ctx.Err() != nil && q.Op == opStart {
			go c.undo(q.ID)
		}
		return nil, err
	}
	p.pid, p.made = a.PID, a.Made
	switch {
	case tty:
		p.outs = append(p.outs, c.both(streams[0], files[0]))
	default:
		if streams[0] != nil {
			go c.input(streams[0], files[0])
		}
		for i := 1; i <= 2; i++ {
			if streams[i] != nil {
				o := &out{s: streams[i], f: files[i]}
				p.outs = append(p.outs, o)
				go func() {
					o.copy()
					o.f.Close()
					c.m.forget(o.s)
				}()
			}
		}
	}
	if streams[3] != nil {
		c.both(streams[3], files[3], p.outs...)
	}
	return p, nil
}

// undo ends a process that nobody waited for to start. The guest answers in no
// order: it may not have started yet.
func (c *Client) undo(id string) {
	for range 100 {
		if _, err := c.ask(context.Background(), question{Op: opSignal, ID: id, Signal: "SIGKILL"}); err == nil {
			break
		}
		select {
		case <-c.m.gone:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
	for _, op := range []string{opReap, opEndRest} {
		c.ask(context.Background(), question{Op: op, ID: id})
	}
	c.m.writeJSON(frameAsk, c.number(), question{Op: opRelease, ID: id})
}

// PID is the process's number in its cell.
func (p *Process) PID() int { return p.pid }

// InnerPID is the same.
func (p *Process) InnerPID() int { return p.pid }

// Measured is what the process showed just before it became its program.
func (p *Process) Measured() json.RawMessage {
	b, _ := json.Marshal(p.made)
	return b
}

// Terminal is the keeper's end of a terminal, nil without one.
func (p *Process) Terminal() *os.File { return p.terminal }

// Resize sets the size of its terminal.
func (p *Process) Resize(rows, cols uint16) error {
	return p.ask(question{Op: opResize, Rows: rows, Cols: cols})
}

// answerLimit is how long it is waited for what takes no time. A guest whose cell
// stands still, or that does not want to, does it later or never.
const answerLimit = 10 * time.Second

func (p *Process) ask(q question) error {
	q.ID = p.id
	ctx, cancel := context.WithTimeoutCause(context.Background(), answerLimit,
		cell.Errorf(cell.Unavailable, "guest", "", "cannot %s a process: the cell's guest does not answer", q.Op))
	defer cancel()
	_, err := p.c.ask(ctx, q)
	return err
}

// Signal reaches the process's group and itself. When it has been waited for it
// reaches nobody.
func (p *Process) Signal(name string) error { return p.ask(question{Op: opSignal, Signal: name}) }

// Interrupt sends SIGINT to the process alone.
func (p *Process) Interrupt() error { return p.ask(question{Op: opInterrupt}) }

// EndRest ends what the process has started and left behind.
func (p *Process) EndRest() (int, error) {
	a, err := p.c.ask(context.Background(), question{Op: opEndRest, ID: p.id})
	return a.Count, err
}

// Release lets go of what EndRest needs, without waiting for the guest: it takes
// questions of this kind in their turn, so that the name is free for the next.
func (p *Process) Release() {
	p.c.m.writeJSON(frameAsk, p.c.number(), question{Op: opRelease, ID: p.id})
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.c.procs[p.id] == p {
		delete(p.c.procs, p.id)
	}
}

// pass lets the process begin, or not.
func (p *Process) pass() {
	q := question{Op: opPass}
	if p.gate != nil {
		if err := p.gate(); err != nil {
			q.Refused = toWire(err)
		}
	}
	p.ask(q)
}

func (p *Process) end() { p.once.Do(func() { close(p.ended) }) }

// CauseLost is that of a process whose guest was lost before it said how it ended.
const CauseLost = "guest lost"

// CauseMemory is that of a process that the guest's kernel killed for the memory of
// its cell.
const CauseMemory = "memory limit"

// Wait returns when the process has ended. What it had written by then has been
// handed on, unless somebody does not take it.
func (p *Process) Wait(ended func()) (cell.Exit, cell.Usage) {
	lost := cell.Exit{Code: 255, Cause: CauseLost}
	select {
	case <-p.ended:
	case <-p.c.m.gone:
		ended()
		return lost, cell.Usage{}
	}
	for _, o := range p.outs {
		o.flush(flushStill)
	}
	ended()
	a, err := p.c.ask(context.Background(), question{Op: opReap, ID: p.id})
	if err != nil {
		return lost, cell.Usage{}
	}
	return plain(a.Exit), a.Usage
}

// plain is an exit as it can be: a guest that is not what it was may say anything.
func plain(e cell.Exit) cell.Exit {
	e.Code &= 0xff
	if e.Cause != CauseMemory || e.Signal != "SIGKILL" {
		e.Cause = ""
	}
	if unix.SignalNum(e.Signal) == 0 {
		e.Signal = ""
	}
	return e
}

// out hands on what comes on a stream.
type out struct {
	s      *stream
	f      *os.File
	behind []*out // what came on these before is handed on first

	mu   sync.Mutex // guards what follows
	n    int64      // bytes handed on
	busy bool       // some are in hand
	over bool
}

// copy returns at the end of the stream, or when nobody reads f any more. The
// stream is told then.
func (o *out) copy() {
	buf := make([]byte, maxPayload)
	for {
		o.s.wait()
		o.set(true, 0)
		n, err := o.s.Read(buf)
		for _, first := range o.behind {
			first.flush(behindStill)
		}
		if n > 0 {
			if _, werr := o.f.Write(buf[:n]); werr != nil {
				o.s.CloseRead()
				err = werr
			}
		}
		o.set(false, n)
		if err != nil {
			break
		}
	}
	o.mu.Lock()
	o.over = true
	o.mu.Unlock()
}

func (o *out) set(busy bool, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy = busy
	o.n += int64(n)
}

// flush returns when what has come until now has been handed on, or when nothing
// has been for a while.
func (o *out) flush(still time.Duration) {
	last, since := int64(-1), time.Now()
	for {
		o.mu.Lock()
		n, idle := o.n, o.over || !o.busy && o.s.left() == 0
		o.mu.Unlock()
		switch {
		case idle:
			return
		case n != last:
			last, since = n, time.Now()
		case time.Since(since) > still:
			return
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// input sends what comes from f.
func (c *Client) input(s *stream, f *os.File) {
	s.whenStopped(func() { f.Close() })
	send(s, f)
	f.Close()
	c.m.forget(s)
}

// send copies f to a stream.
func send(s *stream, f *os.File) {
	buf := make([]byte, maxPayload)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			if _, werr := s.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			s.CloseWrite()
			return
		}
	}
}

// both joins a stream and a socket, in both directions, and closes the socket.
func (c *Client) both(s *stream, f *os.File, behind ...*out) *out {
	o := &out{s: s, f: f, behind: behind}
	var wg sync.WaitGroup
	wg.Go(func() {
		o.copy()
		shutdown(f, unix.SHUT_WR)
	})
	wg.Go(func() {
		s.whenStopped(func() { shutdown(f, unix.SHUT_RD) })
		send(s, f)
	})
	go func() {
		wg.Wait()
		f.Close()
		c.m.forget(s)
	}()
	return o
}

func shutdown(f *os.File, how int) {
	if c, err := f.SyscallConn(); err == nil {
		c.Control(func(fd uintptr) { unix.Shutdown(int(fd), how) })
	}
}

// ownCopy is a duplicate of f that can be waited for.
func ownCopy(f *os.File) (*os.File, error) {
	c, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	if cerr := c.Control(func(old uintptr) {
		if fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3); err == nil {
			err = unix.SetNonblock(fd, true)
		}
	}); cerr != nil {
		return nil, cerr
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// socketPair is two ends of a stream that can be waited for.
func socketPair() (a, b *os.File, err error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(p[0]), "socket"), os.NewFile(uintptr(p[1]), "socket"), nil
}
