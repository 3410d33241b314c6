package mem

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/linux"
)

// driver holds one cell: its processes are those of the sessions that its
// commands began.
type driver struct {
	mu       sync.Mutex // guards what follows
	id       cell.ID
	spec     cell.Spec
	commands map[int]*process // by session
}

// Create implements keeper.Driver.
func (d *driver) Create(id cell.ID, raw json.RawMessage, files []*os.File) (json.RawMessage, error) {
	for _, f := range files {
		f.Close()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := json.Unmarshal(raw, &d.spec); err != nil {
		return nil, err
	}
	for _, m := range d.spec.Mounts {
		if m.Kind == cell.Overlay {
			return nil, cell.Errorf(cell.Unsupported, "mem.Create", "use a workspace that is a directory", "cannot mount a workspace in a fake")
		}
	}
	d.id, d.commands = id, map[int]*process{}
	return nil, nil
}

// real maps a path of the cell to where it lies: what the cell owns is below
// its own folders, everything else is where it is.
func (d *driver) real(p string) string {
	for i := len(d.spec.Mounts) - 1; i >= 0; i-- {
		m := d.spec.Mounts[i]
		if rest, below := strings.CutPrefix(p+"/", m.Target+"/"); below && m.Kind == cell.Bind && m.Owned && !m.ReadOnly {
			return strings.TrimSuffix(m.Source+"/"+rest, "/")
		}
	}
	return p
}

// Start implements keeper.Driver.
func (d *driver) Start(id cell.ID, p cell.Process, stdio [3]*os.File) (keeper.Started, error) {
	return d.startWith(id, p, stdio)
}

// StartInterpreter implements keeper.Interpreting.
func (d *driver) StartInterpreter(id cell.ID, p cell.Process, i *keeper.Interpreter, stdio [3]*os.File, control *os.File) error {
	started, err := d.startWith(id, p, stdio, control)
	i.Process = started.Process
	return err
}

// startWith starts a command with more files after its streams.
func (d *driver) startWith(id cell.ID, p cell.Process, stdio [3]*os.File, more ...*os.File) (keeper.Started, error) {
	if err := d.check(id); err != nil {
		return keeper.Started{}, err
	}
	if p.TTY {
		return keeper.Started{}, cell.Errorf(cell.Unsupported, "mem.Start", "", "cannot start a terminal in a fake")
	}
	env := []string{}
	for _, kv := range p.Env {
		if h, ok := strings.CutPrefix(kv, "HOME="); ok {
			kv = "HOME=" + d.real(h)
		}
		env = append(env, kv)
	}
	if st, err := os.Stat(d.real(p.Workdir)); err != nil || !st.IsDir() {
		return keeper.Started{}, cell.Errorf(cell.NotFound, "mem.Start", "", "cannot start %s: cannot work in %s", p.Args[0], p.Workdir)
	}
	var err error
	for _, candidate := range p.Path {
		if _, serr := os.Stat(d.real(candidate)); serr != nil {
			continue
		}
		c := &exec.Cmd{Path: d.real(candidate), Args: p.Args, Env: env, Dir: d.real(p.Workdir), Stdin: stdio[0], Stdout: stdio[1], Stderr: stdio[2], ExtraFiles: more,
			SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
		if err = c.Start(); err == nil {
			k := &process{d: d, cmd: c, group: linux.Group{PID: c.Process.Pid}}
			d.mu.Lock()
			d.commands[k.PID()] = k
			d.mu.Unlock()
			return keeper.Started{Process: k}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return keeper.Started{}, cell.Errorf(cell.NotRunnable, "mem.Start", "", "cannot execute %s: %w", p.Args[0], err)
		}
	}
	return keeper.Started{}, cell.Errorf(cell.NoSuchBinary, "mem.Start", "", "cannot find %s: looked for %s", p.Args[0], strings.Join(p.Path, ", "))
}

func (d *driver) check(id cell.ID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.id == id && id != "" {
		return nil
	}
	return cell.Errorf(cell.NotFound, "mem", "", "no cell %s in this keeper", id)
}

// List implements keeper.Driver.
func (d *driver) List(id cell.ID) ([]cell.ProcessInfo, error) {
	if err := d.check(id); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []cell.ProcessInfo
	seen := map[int]bool{}
	for _, p := range linux.Processes("/proc") {
		sid, err := unix.Getsid(p.PID)
		if err != nil || d.commands[sid] == nil {
			continue
		}
		seen[sid] = true
		if p.State != "Z" && p.State != "X" {
			list = append(list, p)
		}
	}
	for sid, k := range d.commands { // an empty session's number may become another's
		if !seen[sid] && k.reaped.Load() {
			delete(d.commands, sid)
		}
	}
	return list, nil
}

// signal signals all until reached says of each that it is as it shall be.
func (d *driver) signal(id cell.ID, sig unix.Signal, reached func(state string) bool) (n int, err error) {
	for i := range 100 {
		list, err := d.List(id)
		if err != nil {
			return 0, err
		}
		if i == 0 {
			n = len(list)
		}
		missing := false
		for _, p := range list {
			if !reached(p.State) {
				missing = true
				linux.SignalExactly(p, sig)
			}
		}
		if !missing {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return n, nil
}

// EndRest implements keeper.Process: the session is all there is.
func (p *process) EndRest() (n int, err error) {
	for range 100 {
		list, err := p.d.List(p.d.cell())
		if err != nil {
			return n, err
		}
		alive := 0
		for _, q := range list {
			if sid, err := unix.Getsid(q.PID); err == nil && sid == p.PID() && linux.SignalExactly(q, unix.SIGKILL) == nil {
				alive++
			}
		}
		if n = max(n, alive); alive == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return n, nil
}

func stopped(state string) bool { return state == "T" }

// KillAll implements keeper.Driver.
func (d *driver) KillAll(id cell.ID) (int, error) {
	return d.signal(id, unix.SIGKILL, func(string) bool { return false })
}

// Freeze implements keeper.Driver.
func (d *driver) Freeze(id cell.ID) error {
	_, err := d.signal(id, unix.SIGSTOP, stopped)
	return err
}

// Thaw implements keeper.Driver.
func (d *driver) Thaw(id cell.ID) error {
	_, err := d.signal(id, unix.SIGCONT, func(state string) bool { return !stopped(state) })
	return err
}

// Root implements keeper.Driver.
func (d *driver) Root(id cell.ID) (*os.File, error) {
	return nil, cell.Errorf(cell.Unsupported, "mem.Root", "look at the workspace's directory", "cannot copy through a fake")
}

// Stats implements keeper.Driver.
func (d *driver) Stats(id cell.ID) (cell.Stats, error) {
	list, err := d.List(id)
	st := cell.Stats{Processes: len(list), Measured: []string{"processes", "memory"}}
	for _, p := range list {
		st.Memory += p.RSS
	}
	return st, err
}

// Remove implements keeper.Driver.
func (d *driver) Remove(id cell.ID) error {
	if _, err := d.KillAll(id); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.id = ""
	return nil
}

// cell is the cell that the driver holds; "" after Remove.
func (d *driver) cell() cell.ID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.id
}

// process is a command, and the session that it leads.
type process struct {
	d      *driver
	cmd    *exec.Cmd
	group  linux.Group
	reaped atomic.Bool
}

// Interrupt implements keeper.Interrupter.
func (p *process) Interrupt() error { return p.cmd.Process.Signal(unix.SIGINT) }

func (p *process) PID() int { return p.cmd.Process.Pid }

func (p *process) Signal(name string) error {
	sig := unix.SignalNum(name)
	if sig == 0 {
		return cell.Errorf(cell.Invalid, "mem.Signal", "use a name such as SIGTERM", "%q is no signal", name)
	}
	return p.group.Signal(sig)
}

func (p *process) Wait(ended func()) (cell.Exit, cell.Usage) {
	p.group.Wait(ended, func() { p.cmd.Wait() })
	p.reaped.Store(true)
	p.d.List(p.d.cell()) // an empty session is forgotten before its number is another's
	st := p.cmd.ProcessState
	return linux.ExitOf(st.Sys().(syscall.WaitStatus)), cell.Usage{UserMS: st.UserTime().Milliseconds(), SystemMS: st.SystemTime().Milliseconds(),
		MaxRSS: st.SysUsage().(*syscall.Rusage).Maxrss * 1024}
}
