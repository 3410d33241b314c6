package mem

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/keeper/server"
)

const (
	// killGrace is the time between SIGTERM and SIGKILL, unless an end says otherwise.
	killGrace = 5 * time.Second
	// drainGrace is the time limit for output after the end of a command, while its background
	// tasks continue.
	drainGrace = 100 * time.Millisecond
)

// command implements backend.Process, for a command of a daemon, like package keeper.
type command struct {
	r       *room
	name    string
	start   cell.Start
	leader  *task
	streams server.Streams
	events  server.Events // nil: no events
	input   *input
	before  cell.Stats
	done    chan struct{} // closed when status is final

	// Host.mu guards the fields below.
	gone   bool   // it has ended
	cause  string // why it was killed, or ""
	status cell.Status
}

var _ backend.Process = (*command)(nil)

// start starts a command. Without open its input is empty.
func (r *room) start(name string, s cell.Start, logs [3]*os.File, open bool) (*command, error) {
	h := r.host
	h.mu.Lock()
	err := r.check("mem.Start")
	if _, there := r.commands[name]; there && err == nil {
		err = cell.Errorf(cell.Exists, "mem.Start", "", "process %q exists", name)
	}
	if err == nil {
		r.commands[name] = nil
	}
	h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	c := &command{r: r, name: name, start: s, input: newInput(), done: make(chan struct{})}
	if !open {
		c.input.close()
	}
	var own [3]*os.File
	for n, f := range logs {
		if f != nil && err == nil {
			own[n], err = duplicate(f)
		}
	}
	c.streams = server.NewStreams(own[0], own[1], &c.start)
	if own[2] != nil {
		if h.Events != nil {
			c.events = h.Events(own[2], string(s.Run))
		} else {
			own[2].Close()
		}
	}
	var main program
	if err == nil {
		c.emit("process.start", map[string]any{"args": len(s.Process.Args), "tty": s.Process.TTY})
		main, err = r.program(s.Process)
	}
	h.mu.Lock()
	if err == nil {
		err = r.check("mem.Start")
	}
	if err != nil {
		delete(r.commands, name)
		h.mu.Unlock()
		c.emit("process.failed", map[string]any{"error": err.Error()})
		if c.events != nil {
			c.events.Seal()
		}
		c.streams.Release()
		return nil, err
	}
	if c.events != nil && !s.EndsCell {
		c.before = r.stats()
	}
	c.leader = r.newTask(c, nil, s.Process.Args)
	c.status = cell.Status{Running: true, Started: time.Now(), Awaited: s.Hold || !open}
	r.commands[name] = c
	h.mu.Unlock()
	c.emit("process.running", map[string]any{"pid": c.leader.number})
	h.work.Go(func() {
		dir, _ := r.real(s.Process.Workdir)
		c.leader.end(main(&proc{task: c.leader, ctx: c.leader.ctx, args: s.Process.Args, env: r.env(s.Process.Env), dir: dir,
			stdin: c.input, stdout: c.streams.Stdout, stderr: c.streams.Stderr}))
	})
	h.work.Go(c.follow)
	return c, nil
}

// program looks up the program of a process. Files of the cell are no programs.
func (r *room) program(p cell.Process) (program, error) {
	const op = "mem.Start"
	if p.TTY {
		return nil, cell.Errorf(cell.Unsupported, op, "", "cannot start a terminal in a fake")
	}
	dir, _ := r.real(p.Workdir)
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return nil, cell.Errorf(cell.NotFound, op, "", "cannot start %s: cannot work in %s", p.Args[0], p.Workdir)
	}
	for _, candidate := range p.Path {
		if d, base := path.Split(candidate); d == "/bin/" || d == "/usr/bin/" {
			if main := programs()[base]; main != nil {
				return main, nil
			}
		}
		file, owned := r.real(candidate)
		if _, err := os.Stat(file); err == nil && owned {
			return nil, cell.Errorf(cell.NotRunnable, op, "", "cannot execute %s: a fake has programs of its own alone", p.Args[0])
		}
	}
	return nil, cell.Errorf(cell.NoSuchBinary, op, "", "cannot find %s: looked for %s", p.Args[0], strings.Join(p.Path, ", "))
}

// env returns an environment with the path of the cell's home.
func (r *room) env(list []string) (env []string) {
	for _, kv := range list {
		if h, ok := strings.CutPrefix(kv, "HOME="); ok {
			h, _ = r.real(h)
			kv = "HOME=" + h
		}
		env = append(env, kv)
	}
	return env
}

// follow waits for the command, records its exit status and, if asked, kills the rest of the
// cell.
func (c *command) follow() {
	r, h := c.r, c.r.host
	if c.start.Timeout > 0 {
		defer time.AfterFunc(c.start.Timeout, func() { c.end("timeout", 0) }).Stop()
	}
	<-c.leader.done
	h.mu.Lock()
	c.gone = true
	ended := c.cause != ""
	h.mu.Unlock()
	if ended {
		c.signal("SIGKILL")
	}
	now := time.Now()
	c.input.close()
	r.look()
	h.mu.Lock()
	var stats cell.Stats
	if c.start.EndsCell || c.events != nil {
		stats = r.stats().Since(c.before)
	}
	ended = c.cause != ""
	h.mu.Unlock()
	left := 0
	switch {
	case c.start.EndsCell:
		left = r.killAll(nil)
	case ended: // a killed command leaves nothing behind
		left = r.killAll(c)
	}
	c.drain()
	c.streams.End()

	exit := c.leader.exit()
	out, errs := c.streams.Status()
	h.mu.Lock()
	exit.Cause = c.cause
	c.status.Running, c.status.Exit, c.status.Stats, c.status.Ended, c.status.LeftOver = false, &exit, stats, now, left
	h.mu.Unlock()
	c.emit("process.exit", map[string]any{
		"code": exit.Code, "signal": exit.Signal, "cause": exit.Cause, "left_over": left,
		"stdout": out, "stderr": errs, "usage": cell.Usage{}, "stats": stats,
	})
	if c.events != nil {
		if err := c.events.Seal(); err != nil {
			h.mu.Lock()
			c.status.Unsealed = err.Error()
			h.mu.Unlock()
		}
	}
	close(c.done)
}

// drain waits until no task of the command can write any more, at most drainGrace.
func (c *command) drain() {
	grace := time.NewTimer(drainGrace)
	defer grace.Stop()
	for _, t := range c.r.living(c) {
		select {
		case <-t.done:
		case <-grace.C:
			return
		}
	}
}

// end stops the command for a cause: SIGTERM, and SIGKILL after grace, 0 for the usual one. It does
// not wait. A command that exits by itself has no cause.
func (c *command) end(cause string, grace time.Duration) {
	grace = cmp.Or(grace, killGrace)
	h := c.r.host
	h.mu.Lock()
	if c.gone {
		h.mu.Unlock()
		return
	}
	if c.cause == "" {
		c.cause = cause
	}
	if cause == "timeout" {
		c.emit("limit.time", map[string]any{"timeout_ms": c.start.Timeout.Milliseconds()})
	}
	h.mu.Unlock()
	c.signal("SIGTERM")
	h.work.Go(func() {
		select {
		case <-c.done:
		case <-time.After(grace):
			h.mu.Lock()
			if !c.gone && c.status.KilledAfter == 0 {
				c.status.KilledAfter = grace
			}
			h.mu.Unlock()
			c.signal("SIGKILL")
		}
	})
}

// signal signals the command and its tasks.
func (c *command) signal(name string) {
	for _, t := range c.r.living(c) {
		t.signal(name)
	}
}

func (c *command) emit(kind string, fields any) {
	if c.events != nil {
		c.events.Emit(kind, fields)
	}
}

func (c *command) snapshot() cell.Status {
	c.r.host.mu.Lock()
	st := c.status
	c.r.host.mu.Unlock()
	st.Stdout, st.Stderr = c.streams.Status()
	return st
}

// PID implements backend.Process. A task has no PID on the host.
func (c *command) PID() int { return 0 }

// InnerPID implements backend.Process.
func (c *command) InnerPID() int { return c.leader.number }

func (c *command) Assurance() cell.Assurance { return c.r.known }

func (c *command) Attach(ctx context.Context, a backend.Attach) (net.Conn, error) {
	ours, theirs := net.Pipe()
	feed := c.feed
	if !a.Input {
		feed = nil
	}
	c.r.host.work.Go(func() {
		defer ours.Close()
		c.streams.Attach(ours, proto.Attachment{Stdout: a.Stdout, Stderr: a.Stderr, Input: a.Input}, feed, c.done, c.snapshot)
	})
	return theirs, nil
}

// feed handles a frame from the client.
func (c *command) feed(f api.Frame) {
	switch f.Type {
	case api.FrameStdin:
		c.input.Write(f.Payload)
	case api.FrameStdinEOF:
		c.input.close()
	case api.FrameSignal:
		c.emit("process.signal", map[string]any{"signal": string(f.Payload)})
		c.signal(string(f.Payload))
	}
}

func (c *command) Signal(ctx context.Context, sig string) error {
	c.emit("process.signal", map[string]any{"signal": sig})
	if unix.SignalNum(sig) == 0 {
		return cell.Errorf(cell.Invalid, "mem.Signal", "use a name such as SIGTERM", "%q is no signal", sig)
	}
	c.signal(sig)
	return nil
}

func (c *command) End(ctx context.Context, cause string, grace time.Duration) error {
	c.end(cause, grace)
	return nil
}

func (c *command) Status(ctx context.Context) (cell.Status, error) {
	st := c.snapshot()
	st.Args = c.start.Process.Args
	return st, nil
}

func (c *command) Wait(ctx context.Context) (cell.Status, error) {
	select {
	case <-c.done:
		return c.snapshot(), nil
	case <-ctx.Done():
		return cell.Status{}, context.Cause(ctx)
	}
}

func (c *command) Forget(ctx context.Context) error {
	select {
	case <-c.done:
	default:
		return cell.Errorf(cell.Conflict, "mem.Forget", "", "process %q still runs", c.name)
	}
	c.streams.Release()
	c.r.host.mu.Lock()
	defer c.r.host.mu.Unlock()
	if c.r.commands[c.name] == c {
		delete(c.r.commands, c.name)
	}
	return nil
}

// duplicate returns another os.File for the same open file.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// input is a command's input: data from clients, until it is closed.
type input struct {
	mu    sync.Mutex // guards the fields below
	rest  bytes.Buffer
	over  bool
	moved chan struct{} // closed when a field above changes
}

func newInput() *input { return &input{moved: make(chan struct{})} }

func (i *input) Write(b []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.over {
		return 0, io.ErrClosedPipe
	}
	i.changed()
	return i.rest.Write(b)
}

func (i *input) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.over = true
	i.changed()
}

// changed wakes the readers. The caller holds i.mu.
func (i *input) changed() {
	close(i.moved)
	i.moved = make(chan struct{})
}

// read returns available data, or waits for it until ctx ends.
func (i *input) read(ctx context.Context, b []byte) (int, error) {
	for {
		i.mu.Lock()
		n, _ := i.rest.Read(b)
		over, moved := i.over, i.moved
		i.mu.Unlock()
		switch {
		case n > 0:
			return n, nil
		case over:
			return 0, io.EOF
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// Read implements io.Reader.
func (i *input) Read(b []byte) (int, error) { return i.read(context.Background(), b) }
