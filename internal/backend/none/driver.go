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

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/linux"
)

// driver runs commands as children of the keeper.
type driver struct {
	self int

	mu    sync.Mutex // guards cells
	cells map[cell.ID]cell.Spec
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
		if m.Kind == cell.Overlay {
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

// real maps a path of the cell to where it lies on the host: what the cell
// owns lies in pando's state, everything else is where it is.
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

func (d *driver) Start(id cell.ID, p cell.Process, stdio [3]*os.File) (keeper.Started, error) {
	spec, err := d.spec(id)
	if err != nil {
		return keeper.Started{}, err
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
		slave, m, err := openTerminal(p.Rows, p.Cols)
		if err != nil {
			return keeper.Started{}, err
		}
		defer slave.Close()
		master, stdio = m, [3]*os.File{slave, slave, slave}
		attr.Setctty, attr.Ctty = true, 0
	}
	cmd := &exec.Cmd{Args: p.Args, Env: env, Dir: paths.real(p.Workdir), Stdin: stdio[0], Stdout: stdio[1], Stderr: stdio[2], SysProcAttr: attr}
	for _, candidate := range p.Path {
		c := *cmd
		c.Path = paths.real(candidate)
		if err = c.Start(); err == nil {
			return keeper.Started{Process: &process{&c}, Terminal: master}, nil
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
		return keeper.Started{}, cell.Errorf(cell.NoSuchBinary, "none.Start", "", "cannot find %s: looked for %s", p.Args[0], strings.Join(p.Path, ", "))
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOEXEC):
		return keeper.Started{}, cell.Errorf(cell.NotRunnable, "none.Start", "", "cannot execute %s: %w", p.Args[0], err)
	}
	return keeper.Started{}, err
}

func openTerminal(rows, cols uint16) (slave, master *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		unix.Close(fd)
		return nil, nil, err
	}
	peer, err := unix.IoctlRetInt(fd, unix.TIOCGPTPEER)
	if err != nil {
		unix.Close(fd)
		return nil, nil, err
	}
	if rows > 0 && cols > 0 {
		unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	}
	return os.NewFile(uintptr(peer), "terminal"), os.NewFile(uintptr(fd), "terminal"), nil
}

// descendants lists every process below the keeper.
func (d *driver) descendants() []cell.ProcessInfo {
	all := linux.Processes("/proc")
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
		if below[p.PID] && p.PID != d.self {
			out = append(out, p)
		}
	}
	return out
}

func (d *driver) signalAll(sig unix.Signal) int {
	list := d.descendants()
	for _, p := range list {
		unix.Kill(p.PID, sig)
	}
	return len(list)
}

// Root implements keeper.Driver: only the workspace can be copied from.
func (d *driver) Root(id cell.ID) (*os.File, error) {
	return nil, cell.Errorf(cell.Unsupported, "none.Root", "use cp: the workspace of a cell without isolation is a directory of the host", "cannot copy through backend none")
}

func (d *driver) KillAll(id cell.ID) (int, error) {
	n := 0
	for range 100 { // whatever is forked meanwhile is found in the next round
		k := d.signalAll(unix.SIGKILL)
		if k == 0 {
			break
		}
		n = max(n, k)
		reapOrphans()
	}
	return n, nil
}

func (d *driver) Freeze(id cell.ID) error { d.signalAll(unix.SIGSTOP); return nil }

func (d *driver) Thaw(id cell.ID) error { d.signalAll(unix.SIGCONT); return nil }

func (d *driver) List(id cell.ID) ([]cell.ProcessInfo, error) {
	if _, err := d.spec(id); err != nil {
		return nil, err
	}
	return d.descendants(), nil
}

func (d *driver) Stats(id cell.ID) (cell.Stats, error) {
	st := cell.Stats{Measured: []string{"processes", "memory"}}
	for _, p := range d.descendants() {
		st.Processes++
		st.Memory += p.RSS
	}
	return st, nil
}

func (d *driver) Remove(id cell.ID) error {
	d.KillAll(id)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.cells, id)
	return nil
}

// reapOrphans takes the exit of children that are no commands of ours.
func reapOrphans() {
	for _, p := range linux.Processes("/proc") {
		if p.PPID == os.Getpid() && p.State == "Z" {
			var ws syscall.WaitStatus
			syscall.Wait4(p.PID, &ws, syscall.WNOHANG, nil)
		}
	}
}

type process struct{ cmd *exec.Cmd }

func (p *process) PID() int { return p.cmd.Process.Pid }

func (p *process) Signal(name string) error {
	sig := unix.SignalNum(name)
	if sig == 0 {
		return cell.Errorf(cell.Invalid, "none.Signal", "use a name such as SIGTERM", "%q is no signal", name)
	}
	if p.cmd.Process.Signal(syscall.Signal(0)) != nil {
		return nil // it has ended
	}
	if unix.Kill(-p.cmd.Process.Pid, sig) == nil {
		return nil
	}
	return p.cmd.Process.Signal(sig)
}

func (p *process) Wait() (cell.Exit, cell.Usage) {
	p.cmd.Wait()
	st := p.cmd.ProcessState
	if st == nil {
		return cell.Exit{Code: 255, Cause: "keeper lost"}, cell.Usage{}
	}
	u := cell.Usage{UserMS: st.UserTime().Milliseconds(), SystemMS: st.SystemTime().Milliseconds()}
	if ru, ok := st.SysUsage().(*syscall.Rusage); ok {
		u.MaxRSS = ru.Maxrss * 1024
	}
	return linux.ExitOf(st.Sys().(syscall.WaitStatus)), u
}
