package none

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux"
)

// driver runs commands as children of the keeper.
type driver struct {
	self int

	mu       sync.Mutex // guards the fields below, and the reaping of orphans
	cells    map[cell.ID]cell.Spec
	commands map[int]bool // children that have a waiter
}

func becomeReaper() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

func (d *driver) Create(id cell.ID, raw json.RawMessage, files []*os.File) (json.RawMessage, error) {
	for _, f := range files {
		f.Close()
	}
	var spec cell.Spec
	if err := json.Unmarshal(raw, &spec); err != nil {
		return nil, err
	}
	for _, m := range spec.Mounts {
		if m.Kind == cell.Overlay || m.Target == "/" {
			return nil, cell.Errorf(cell.Unsupported, "none.Create", "", "cannot mount a workspace without isolation")
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, there := d.cells[id]; there {
		return nil, cell.Errorf(cell.Exists, "none.Create", "", "cell %s exists", id)
	}
	d.cells[id] = spec
	return nil, nil
}

func (d *driver) spec(id cell.ID) (cell.Spec, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.cells[id]
	if !ok {
		return s, cell.Errorf(cell.NotFound, "none", "", "no cell %s in this keeper", id)
	}
	return s, nil
}

// real maps a path of the cell to its path on the host. The cell's own files are in pando's
// state, everything else is in place.
func (s specPaths) real(p string) string {
	for i := len(s.Mounts) - 1; i >= 0; i-- {
		m := s.Mounts[i]
		if m.Kind != cell.Bind || m.ReadOnly || !m.Owned {
			continue
		}
		if p == m.Target {
			return m.Source
		}
		if rest, ok := strings.CutPrefix(p, strings.TrimSuffix(m.Target, "/")+"/"); ok {
			return m.Source + "/" + rest
		}
	}
	return p
}

type specPaths cell.Spec

func (d *driver) Start(id cell.ID, p cell.Process, stdio [3]*os.File, begins func()) (server.Started, error) {
	if begins != nil {
		begins()
	}
	return d.startWith(id, p, stdio)
}

// StartInterpreter implements server.Interpreting.
func (d *driver) StartInterpreter(id cell.ID, p cell.Process, i *server.Interpreter, stdio [3]*os.File, control *os.File) error {
	started, err := d.startWith(id, p, stdio, control)
	i.Process = started.Process
	return err
}

// startWith starts a command with more files after its standard streams.
func (d *driver) startWith(id cell.ID, p cell.Process, stdio [3]*os.File, more ...*os.File) (server.Started, error) {
	spec, err := d.spec(id)
	if err != nil {
		return server.Started{}, err
	}
	paths := specPaths(spec)
	env := make([]string, 0, len(p.Env))
	for _, kv := range p.Env {
		if h, ok := strings.CutPrefix(kv, "HOME="); ok {
			kv = "HOME=" + paths.real(h)
		}
		env = append(env, kv)
	}
	attr := &syscall.SysProcAttr{Setsid: true}
	var master *os.File
	if p.TTY {
		m, slave, err := linux.OpenTerminal("/dev/ptmx", p.Rows, p.Cols)
		if err != nil {
			return server.Started{}, err
		}
		defer slave.Close()
		master, stdio = m, [3]*os.File{slave, slave, slave}
		attr.Setctty, attr.Ctty = true, 0
	}
	cmd := &exec.Cmd{Args: p.Args, Env: env, Dir: paths.real(p.Workdir), Stdin: stdio[0], Stdout: stdio[1], Stderr: stdio[2], ExtraFiles: more, SysProcAttr: attr}
	if st, serr := os.Stat(cmd.Dir); serr != nil || !st.IsDir() {
		if master != nil {
			master.Close()
		}
		return server.Started{}, cell.Errorf(cell.NotFound, "none.Start", "name a directory that exists", "cannot start %s: cannot work in %s", p.Args[0], p.Workdir)
	}
	for _, candidate := range p.Path {
		c := *cmd
		c.Path = paths.real(candidate)
		if _, serr := os.Stat(c.Path); serr != nil {
			err = fs.ErrNotExist // reported as missing, even if it may not be searched
			continue
		}
		if err = d.start(&c); err == nil {
			return server.Started{Process: &process{d: d, cmd: &c, group: linux.Group{PID: c.Process.Pid}}, Terminal: master}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			break
		}
	}
	if master != nil {
		master.Close()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return server.Started{}, cell.Errorf(cell.NoSuchBinary, "none.Start", "", "cannot find %s: looked for %s", p.Args[0], strings.Join(p.Path, ", "))
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOEXEC) || errors.Is(err, unix.E2BIG):
		return server.Started{}, cell.CantExecute("none.Start", p.Args[0], err)
	}
	return server.Started{}, err
}

// start starts a command and registers it before it could be reaped as an orphan.
func (d *driver) start(c *exec.Cmd) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := c.Start(); err != nil {
		return err
	}
	d.commands[c.Process.Pid] = true
	return nil
}

// descendants lists every living process below the keeper, and reaps orphans that have ended.
func (d *driver) descendants() ([]cell.ProcessInfo, error) {
	all, err := linux.Processes("/proc")
	if err != nil {
		return nil, err
	}
	below := map[int]bool{d.self: true}
	for changed := true; changed; {
		changed = false
		for _, p := range all {
			if below[p.PPID] && !below[p.PID] {
				below[p.PID] = true
				changed = true
			}
		}
	}
	var out []cell.ProcessInfo
	for _, p := range all {
		switch ended := p.State == "Z" || p.State == "X"; {
		case ended && p.PPID == d.self:
			d.reap(p.PID)
		case !ended && below[p.PID] && p.PID != d.self:
			out = append(out, p)
		}
	}
	return out, nil
}

// reap reaps a child that is no command: an orphan.
func (d *driver) reap(pid int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.commands[pid] {
		var ws syscall.WaitStatus
		syscall.Wait4(pid, &ws, syscall.WNOHANG, nil)
	}
}

// rounds is the maximum number of rounds in which signalAll looks for new processes.
const rounds = 100

// signalAll signals every process until all have reached the wanted state. It returns their
// number in the first round.
func (d *driver) signalAll(sig unix.Signal, reached func(state string) bool) (n int, err error) {
	for i := range rounds {
		list, lerr := d.descendants()
		if n == 0 {
			n = len(list)
		}
		missing := false
		err = lerr // of the last round
		for _, p := range list {
			if !reached(p.State) {
				missing = true
				linux.SignalExactly(p, sig)
			}
		}
		if !missing && err == nil {
			return n, nil
		}
		if i < rounds-1 {
			time.Sleep(time.Millisecond)
		}
	}
	return n, err
}

// EndRest implements server.Process, as far as possible without isolation: a process that has
// left the command's session, with no living ancestor in it, cannot be attributed to the
// command.
func (p *process) EndRest() (int, error) {
	ended := map[int]bool{}
	for range rounds {
		mine := map[int]bool{}
		alive := 0
		// By PID: children come after their parents. After a wrap-around the next round finds
		// them.
		list, err := p.d.descendants()
		if err != nil {
			return len(ended), err
		}
		for _, q := range list {
			sid, err := unix.Getsid(q.PID)
			if mine[q.PID] = mine[q.PPID] || (err == nil && sid == p.PID()); !mine[q.PID] || q.State == "Z" || q.State == "X" {
				continue
			}
			if linux.SignalExactly(q, unix.SIGKILL) == nil {
				ended[q.PID] = true
				alive++
			}
		}
		if alive == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return len(ended), nil
}

// Root implements server.Driver. Only the workspace can be copied from.
func (d *driver) Root(id cell.ID) (*os.File, error) {
	return nil, cell.Errorf(cell.Unsupported, "none.Root", "use cp: the workspace of a cell without isolation is a directory of the host", "cannot copy through backend none")
}

func (d *driver) KillAll(id cell.ID) (int, error) {
	return d.signalAll(unix.SIGKILL, func(string) bool { return false })
}

func (d *driver) Freeze(id cell.ID) error {
	_, err := d.signalAll(unix.SIGSTOP, stopped)
	return err
}

func (d *driver) Thaw(id cell.ID) error {
	_, err := d.signalAll(unix.SIGCONT, func(state string) bool { return !stopped(state) })
	return err
}

func stopped(state string) bool { return state == "T" || state == "t" }

func (d *driver) List(id cell.ID) ([]cell.ProcessInfo, error) {
	if _, err := d.spec(id); err != nil {
		return nil, err
	}
	return d.descendants()
}

func (d *driver) Stats(id cell.ID) (cell.Stats, error) {
	st := cell.Stats{Measured: []string{"processes", "memory"}}
	list, err := d.descendants()
	for _, p := range list {
		st.Processes++
		st.Memory += p.RSS
	}
	return st, err
}

func (d *driver) Remove(id cell.ID) error {
	if _, err := d.KillAll(id); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.cells, id)
	return nil
}

type process struct {
	d     *driver
	cmd   *exec.Cmd
	group linux.Group
}

// Interrupt implements server.Interrupter.
func (p *process) Interrupt() error { return p.cmd.Process.Signal(unix.SIGINT) }

func (p *process) PID() int { return p.cmd.Process.Pid }

func (p *process) Signal(name string) error {
	sig := unix.SignalNum(name)
	if sig == 0 {
		return cell.Errorf(cell.Invalid, "none.Signal", "use a name such as SIGTERM", "%q is no signal", name)
	}
	return p.group.Signal(sig)
}

func (p *process) Wait(ended func()) (cell.Exit, cell.Usage) {
	p.group.Wait(ended, func() { p.cmd.Wait() })
	p.d.mu.Lock()
	delete(p.d.commands, p.PID())
	p.d.mu.Unlock()
	st := p.cmd.ProcessState
	if st == nil {
		return cell.Exit{Code: 255, Cause: cell.CauseKeeperLost}, cell.Usage{}
	}
	u := cell.Usage{UserMS: st.UserTime().Milliseconds(), SystemMS: st.SystemTime().Milliseconds()}
	if ru, ok := st.SysUsage().(*syscall.Rusage); ok {
		u.MaxRSS = ru.Maxrss * 1024
	}
	return linux.ExitOf(st.Sys().(syscall.WaitStatus)), u
}
