package guest

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/linux"
)

// task is a started command, in the guest.
type task struct {
	g       *inside
	id      string
	child   *linux.Child
	inner   int // PID in the cell
	cgroup  *group
	leader  linux.Group
	tty     *os.File  // the guest's end of the terminal
	in      *inlet    // to stdin or the terminal
	outs    []*outlet // from stdout and stderr, or the terminal
	asks    *inlet    // to control
	answers *outlet   // from control

	passed chan *wireError // the keeper's decision at the gate
	reap   chan struct{}   // closed when the exit status is requested
	reaped chan struct{}   // closed when it is known

	mu    sync.Mutex // guards the fields below
	asked bool       // reap is closed
	ended bool       // it is a zombie and keeps its PID
	exit  cell.Exit
	usage cell.Usage
}

// start starts a command with the streams of q.
func (g *inside) start(m *mux, q *question) (a answer, err error) {
	c := q.Command
	t := &task{g: g, id: c.ID, passed: make(chan *wireError, 1), reap: make(chan struct{}), reaped: make(chan struct{})}
	if len(c.Process.Args) == 0 || len(c.Process.Path) == 0 || c.ID == "" {
		return a, malformed(q.Op)
	}
	g.mu.Lock()
	_, twice := g.tasks[c.ID]
	if !twice {
		g.tasks[c.ID] = &task{g: g, passed: t.passed} // reserves the name
	}
	g.mu.Unlock()
	if twice {
		return a, cell.Errorf(cell.Exists, "guest.Start", "", "cannot start %s: it was started already", c.ID)
	}
	var theirs [4]*os.File
	defer func() {
		for _, f := range theirs {
			if f != nil {
				f.Close()
			}
		}
		if err != nil {
			t.close()
			g.mu.Lock()
			delete(g.tasks, c.ID)
			g.mu.Unlock()
		}
	}()
	if err := g.admit(); err != nil {
		return a, err
	}
	if err := t.openStreams(c, q.Streams, &theirs); err != nil {
		return a, err
	}
	var made confine.Measured
	t.child, t.inner, t.cgroup, made, err = g.place.spawn(c, t.waitForPass, [3]*os.File(theirs[:3]), theirs[3])
	if err != nil {
		return a, err
	}
	t.leader.PID = t.child.PID
	g.mu.Lock()
	g.tasks[c.ID] = t
	g.mu.Unlock()
	t.attach(m, q.Streams)
	t.run()
	return answer{PID: t.inner, Made: &made}, nil
}

// waitForPass asks the keeper whether the command may start.
func (t *task) waitForPass() error {
	t.g.mu.Lock()
	m := t.g.m
	t.g.mu.Unlock()
	if err := m.writeJSON(frameNote, 0, note{Gate: t.id}); err != nil {
		return err
	}
	select {
	case refused := <-t.passed:
		if refused != nil {
			return refused.err()
		}
		return nil
	case <-m.gone:
		return m.err()
	}
}

// openStreams makes the pipes or the terminal of a command.
func (t *task) openStreams(c *Command, want []uint32, theirs *[4]*os.File) error {
	if c.Process.TTY {
		master, slave, err := linux.OpenTerminal("/dev/pts/ptmx", c.Process.Rows, c.Process.Cols)
		if err != nil {
			return err
		}
		t.tty = master
		hangUp := func() { master.Close() }
		t.in, t.outs = newInlet(master, hangUp), []*outlet{{f: master, done: hangUp}}
		for i := range 3 {
			fd, err := unix.FcntlInt(slave.Fd(), unix.F_DUPFD_CLOEXEC, 3)
			if err != nil {
				slave.Close()
				return err
			}
			theirs[i] = os.NewFile(uintptr(fd), "terminal")
		}
		return slave.Close()
	}
	for i := range 3 {
		if i == 0 && c.Input != nil {
			f, err := fileOf(c.Input)
			if err != nil {
				return err
			}
			theirs[i] = f
			continue
		}
		if want[i] == 0 {
			f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			theirs[i] = f
			continue
		}
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return os.NewSyscallError("pipe2", err)
		}
		mine := 1
		if i > 0 {
			mine = 0
		}
		unix.SetNonblock(p[mine], true)
		ours := os.NewFile(uintptr(p[mine]), "pipe")
		theirs[i] = os.NewFile(uintptr(p[1-mine]), "pipe")
		if i == 0 {
			t.in = newInlet(ours, func() { ours.Close() })
		} else {
			t.outs = append(t.outs, &outlet{f: ours, done: func() { ours.Close() }})
		}
	}
	if want[3] == 0 {
		return nil
	}
	mine, other, err := socketPair()
	if err != nil {
		return err
	}
	theirs[3] = other
	blocks, err := other.SyscallConn()
	if err == nil {
		blocks.Control(func(fd uintptr) { err = unix.SetNonblock(int(fd), false) })
	}
	var half sync.Mutex
	halves := 2
	done := func(how int) func() {
		return func() {
			half.Lock()
			defer half.Unlock()
			if shutdown(mine, how); halves == 1 {
				mine.Close()
			}
			halves--
		}
	}
	t.asks = newInlet(mine, done(unix.SHUT_WR))
	t.answers = &outlet{f: mine, done: done(unix.SHUT_RD), behind: t.outs}
	return err
}

// fileOf returns a file in memory with content b, at its start.
func fileOf(b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("input", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "input")
	if _, err := f.Write(b); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// each calls a function for every stream, with its index in the list of a question.
func (t *task) each(in func(int, *inlet), out func(int, *outlet)) {
	if t.in != nil {
		in(0, t.in)
	}
	at := 1
	if t.tty != nil {
		at = 0
	}
	for i, o := range t.outs {
		out(at+i, o)
	}
	if t.asks != nil {
		in(3, t.asks)
		out(3, t.answers)
	}
}

// attach attaches a command's streams to a connection.
func (t *task) attach(m *mux, want []uint32) {
	var open [4]*stream
	get := func(i int) *stream {
		if want[i] != 0 && open[i] == nil {
			open[i] = m.open(want[i])
		}
		return open[i]
	}
	t.each(func(i int, in *inlet) { in.attach(get(i)) }, func(i int, o *outlet) { o.attach(get(i)) })
}

func (t *task) run() {
	t.each(func(_ int, in *inlet) { go in.run() }, func(_ int, o *outlet) { go o.run() })
	go t.follow()
}

// close closes the files of a command that did not start.
func (t *task) close() {
	t.each(func(_ int, in *inlet) { in.f.Close() }, func(_ int, o *outlet) { o.f.Close() })
}

// follow waits for the command. It keeps the zombie until the exit status is requested.
func (t *task) follow() {
	var ws syscall.WaitStatus
	var ru syscall.Rusage
	var rerr error
	err := t.leader.Wait(func() {
		for _, o := range t.outs {
			o.drain(false)
		}
		t.mu.Lock()
		t.ended = true
		t.mu.Unlock()
		t.tell()
		<-t.reap
	}, func() { ws, ru, rerr = t.child.Wait() })
	t.mu.Lock()
	if err = errors.Join(err, rerr); err != nil {
		t.exit = cell.Exit{Code: 255}
	} else {
		if t.exit = linux.ExitOf(ws); t.exit.Signal == "SIGKILL" && t.cgroup.starved() {
			t.exit.Cause = CauseMemory
		}
		t.usage = cell.Usage{
			UserMS: ru.Utime.Sec*1000 + ru.Utime.Usec/1000, SystemMS: ru.Stime.Sec*1000 + ru.Stime.Usec/1000,
			MaxRSS: ru.Maxrss * 1024,
		}
	}
	t.mu.Unlock()
	close(t.reaped)
}

// tell reports the end of the command to the current keeper.
func (t *task) tell() {
	t.g.mu.Lock()
	m := t.g.m
	t.g.mu.Unlock()
	m.writeJSON(frameNote, 0, note{Ended: t.id})
}

func (t *task) known() Known {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Known{ID: t.id, PID: t.inner, TTY: t.tty != nil, Ended: t.ended, Control: t.asks != nil}
}

func (t *task) serve(m *mux, q *question) (a answer, err error) {
	switch q.Op {
	case opReattach:
		if len(q.Streams) != 4 {
			return a, malformed(q.Op)
		}
		t.attach(m, q.Streams)
		t.mu.Lock()
		ended := t.ended
		t.mu.Unlock()
		if ended {
			defer func() { go t.tell() }()
		}
		return answer{PID: t.inner}, nil
	case opReap:
		t.mu.Lock()
		if !t.asked {
			t.asked = true
			close(t.reap)
		}
		t.mu.Unlock()
		<-t.reaped
		t.mu.Lock()
		defer t.mu.Unlock()
		return answer{Exit: t.exit, Usage: t.usage}, nil
	case opSignal:
		sig := unix.SignalNum(q.Signal)
		if sig == 0 {
			return a, cell.Errorf(cell.Invalid, "guest.Signal", "use a name such as SIGTERM", "%q is no signal", q.Signal)
		}
		return a, t.leader.Signal(sig)
	case opInterrupt:
		if err := t.child.Signal(unix.SIGINT); err != unix.ESRCH {
			return a, err
		}
	case opEndRest:
		a.Count, err = t.cgroup.end()
	case opResize:
		if t.tty == nil {
			return a, cell.Errorf(cell.Invalid, "guest.Resize", "", "cannot resize %s: it has no terminal", t.id)
		}
		c, err := t.tty.SyscallConn()
		if err != nil {
			return a, err
		}
		var ierr error
		if err := c.Control(func(fd uintptr) {
			ierr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: q.Rows, Col: q.Cols})
		}); err != nil {
			return a, err
		}
		return a, ierr
	}
	return a, err
}

// release forgets a command that has been waited for, and its name. Its remaining descendants
// continue; its cgroup is removed after the last of them.
func (g *inside) release(id string) {
	g.mu.Lock()
	t := g.tasks[id]
	if t == nil || t.id == "" { // released already, or being started
		g.mu.Unlock()
		return
	}
	delete(g.tasks, id)
	g.mu.Unlock()
	go g.place.abandon(t.cgroup)
}
