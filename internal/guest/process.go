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

// flushStill is how long the exit of a process waits for earlier output that has no room and
// makes no progress.
const flushStill = 50 * time.Millisecond

// behindStill is how long an interpreter's answer waits for earlier output while that makes no
// progress. A slow reader delays the interpreter.
const behindStill = 30 * time.Second

// Process is a process that a client started or took over.
type Process struct {
	c        *Client
	id       string
	pid      int
	made     *confine.Measured
	gate     func() error // nil: no gate
	terminal *os.File
	outs     []*out

	once  sync.Once
	ended chan struct{}
}

// Start starts a command. stdio are the child's ends of its streams; control is an
// interpreter's socket, its descriptor 3. The caller may close them after Start. With a
// terminal all are nil.
func (c *Client) Start(ctx context.Context, cmd Command, stdio [3]*os.File, control *os.File) (*Process, error) {
	return c.attach(ctx, question{Op: opStart, Command: &cmd, ID: cmd.ID}, cmd.Process.TTY, stdio, control)
}

// Reattach takes over a process listed by Processes, in a restored copy; the source's keeper
// had its streams. Parameters are as in Start.
func (c *Client) Reattach(ctx context.Context, k Known, stdio [3]*os.File, control *os.File) (*Process, error) {
	return c.attach(ctx, question{Op: opReattach, ID: k.ID}, k.TTY, stdio, control)
}

func (c *Client) attach(ctx context.Context, q question, tty bool, stdio [3]*os.File, control *os.File) (_ *Process, err error) {
	p := &Process{c: c, id: q.ID, ended: make(chan struct{})}
	if q.Command != nil {
		p.gate = q.Command.Gate
	}
	var streams [4]*stream
	var files [4]*os.File // the local ends
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
		q.ID = "" // another process has this ID: do not delete it
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

// undo kills a process after a cancelled start. The guest answers in any order, so the process
// may not have started yet.
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

// PID returns the process's PID in its cell.
func (p *Process) PID() int { return p.pid }

// InnerPID equals PID.
func (p *Process) InnerPID() int { return p.pid }

// Measured returns what was measured of the process just before its exec, as JSON.
func (p *Process) Measured() json.RawMessage {
	b, _ := json.Marshal(p.made)
	return b
}

// Terminal returns the keeper's end of the terminal, or nil without one.
func (p *Process) Terminal() *os.File { return p.terminal }

// Resize sets the size of the terminal.
func (p *Process) Resize(rows, cols uint16) error {
	return p.ask(question{Op: opResize, Rows: rows, Cols: cols})
}

// answerLimit is the time limit for questions that take no time. A paused or hostile guest
// answers later or never.
const answerLimit = 10 * time.Second

func (p *Process) ask(q question) error {
	q.ID = p.id
	ctx, cancel := context.WithTimeoutCause(context.Background(), answerLimit,
		cell.Errorf(cell.Unavailable, "guest", "", "cannot %s a process: the cell's guest does not answer", q.Op))
	defer cancel()
	_, err := p.c.ask(ctx, q)
	return err
}

// Signal signals the process and its group. After Wait it has no effect.
func (p *Process) Signal(name string) error { return p.ask(question{Op: opSignal, Signal: name}) }

// Interrupt sends SIGINT to the process alone.
func (p *Process) Interrupt() error { return p.ask(question{Op: opInterrupt}) }

// EndRest kills the descendants that the process left behind, and returns their number.
func (p *Process) EndRest() (int, error) {
	a, err := p.c.ask(context.Background(), question{Op: opEndRest, ID: p.id})
	return a.Count, err
}

// Release releases the resources of EndRest without waiting for the guest. The guest processes
// such questions in order, so the ID can be reused at once.
func (p *Process) Release() {
	p.c.m.writeJSON(frameAsk, p.c.number(), question{Op: opRelease, ID: p.id})
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.c.procs[p.id] == p {
		delete(p.c.procs, p.id)
	}
}

// pass answers the gate: the process may start, or not.
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

// CauseLost is the cause of an exit if the guest was lost before it reported the status.
const CauseLost = "guest lost"

// CauseMemory is the cause of an exit if the guest's kernel killed the process for the cell's
// memory limit.
const CauseMemory = "memory limit"

// Wait returns after the process has ended and its output up to then was forwarded, unless the
// reader does not read.
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

// plain sanitises an exit status from the guest, which may be hostile.
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

// out forwards a stream to a file.
type out struct {
	s      *stream
	f      *os.File
	behind []*out // forward the data of these first

	mu   sync.Mutex // guards the fields below
	n    int64      // bytes forwarded
	busy bool       // some bytes were read but not forwarded
	over bool
}

// copy forwards until the end of the stream, or until f has no reader. Then it stops the
// stream.
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

// flush returns when all data received so far was forwarded, or when there was no progress for
// still. On a busy machine that is no sign of a slow reader by itself: while f has room, flush
// waits longer.
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
		case time.Since(since) > behindStill, time.Since(since) > still && !roomIn(o.f):
			return
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// roomIn reports whether a pipe or a socket would take something at once.
func roomIn(f *os.File) (room bool) {
	c, err := f.SyscallConn()
	if err != nil {
		return false
	}
	c.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(fds, 0)
		room = err == nil && n == 1 && fds[0].Revents == unix.POLLOUT
	})
	return room
}

// input sends the data of f.
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

// both joins a stream and a socket in both directions, and closes the socket.
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

// ownCopy returns a duplicate of f that supports deadlines.
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

// socketPair returns a pair of connected sockets that support deadlines.
func socketPair() (a, b *os.File, err error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(p[0]), "socket"), os.NewFile(uintptr(p[1]), "socket"), nil
}
