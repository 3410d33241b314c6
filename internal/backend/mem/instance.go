package mem

import (
	"context"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"net"
)

// instance implements backend.Instance.
type instance struct{ r *room }

var _ backend.Instance = (*instance)(nil)

func (i *instance) ID() cell.ID { return i.r.id }

func (i *instance) Assurance() cell.Assurance { return i.r.known }

func (i *instance) Close() {}

func (i *instance) Alive(ctx context.Context) bool {
	i.r.host.mu.Lock()
	defer i.r.host.mu.Unlock()
	return !i.r.gone
}

func (i *instance) Start(ctx context.Context, name string, s cell.Start, logs [3]*os.File) (backend.Process, error) {
	c, err := i.r.start(name, s, logs, true)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Do removes the command's record after its end, even if ctx ends before.
func (i *instance) Do(ctx context.Context, name string, s cell.Start) (backend.Done, error) {
	c, err := i.r.start(name, s, [3]*os.File{}, false)
	if err != nil {
		return backend.Done{}, err
	}
	over := make(chan backend.Done, 1)
	i.r.host.work.Go(func() {
		<-c.done
		d := backend.Done{Status: c.snapshot()}
		d.Stdout, d.Stderr = c.streams.Kept()
		c.Forget(context.WithoutCancel(ctx))
		over <- d
	})
	select {
	case d := <-over:
		return d, nil
	case <-ctx.Done():
		return backend.Done{}, context.Cause(ctx)
	}
}

func (i *instance) Process(ctx context.Context, name string) (backend.Process, error) {
	i.r.host.mu.Lock()
	defer i.r.host.mu.Unlock()
	if c := i.r.commands[name]; c != nil {
		return c, nil
	}
	return nil, cell.Errorf(cell.NotFound, "mem.Process", "", "no process %q", name)
}

func (i *instance) KillAll(ctx context.Context, cause string) (int, error) {
	i.r.host.mu.Lock()
	err := i.r.check("mem.KillAll")
	i.r.host.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if err := i.r.thaw(); err != nil { // nothing ends while it stands still
		return 0, err
	}
	i.r.blame(cause)
	return i.r.killAll(nil), nil
}

func (i *instance) Freeze(ctx context.Context) error { return i.r.freeze() }

func (i *instance) Thaw(ctx context.Context) error { return i.r.thaw() }

func (i *instance) ReadFiles(ctx context.Context, path string, w io.Writer) error {
	return cell.Errorf(cell.Unsupported, "mem.ReadFiles", "look at the workspace's directory", "cannot copy through a fake")
}

func (i *instance) WriteFiles(ctx context.Context, path string, u cell.User, r io.Reader) error {
	return cell.Errorf(cell.Unsupported, "mem.WriteFiles", "look at the workspace's directory", "cannot copy through a fake")
}

func (i *instance) List(ctx context.Context) (list []cell.ProcessInfo, err error) {
	i.r.host.mu.Lock()
	defer i.r.host.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(i.r.tasks)) {
		list = append(list, i.r.tasks[n].info())
	}
	return list, i.r.check("mem.List")
}

func (i *instance) Names(ctx context.Context) (names []string, err error) {
	i.r.host.mu.Lock()
	defer i.r.host.mu.Unlock()
	for n, c := range i.r.commands {
		if c != nil {
			names = append(names, n)
		}
	}
	return names, i.r.check("mem.Names")
}

func (i *instance) Stats(ctx context.Context) (cell.Stats, error) {
	i.r.host.mu.Lock()
	defer i.r.host.mu.Unlock()
	return i.r.stats(), i.r.check("mem.Stats")
}

// stats returns the measurements. The caller holds Host.mu.
func (r *room) stats() cell.Stats {
	n := len(r.tasks)
	return cell.Stats{Processes: n, Memory: int64(n) * taskMemory, Measured: []string{"processes", "memory"}}
}

func (i *instance) ungoverned(op string) error {
	return cell.Errorf(cell.Unsupported, op, "", "cell %s has no gateway", i.r.id)
}

func (i *instance) Govern(ctx context.Context, g cell.Governance) error {
	return i.ungoverned("mem.Govern")
}

func (i *instance) Asked(ctx context.Context, since int64) ([]cell.Asked, int64, error) {
	return nil, 0, i.ungoverned("mem.Asked")
}

func (i *instance) Answer(ctx context.Context, a cell.Answered) error {
	return i.ungoverned("mem.Answer")
}

func (i *instance) Refused(ctx context.Context) ([]cell.Refused, error) {
	return nil, i.ungoverned("mem.Refused")
}

func (i *instance) LendAgent(ctx context.Context, path string, listener, upstream *os.File) error {
	return i.ungoverned("mem.LendAgent")
}

func (i *instance) ServeLink(ctx context.Context, link *os.File) error { return nil }

func (i *instance) TakeLink(ctx context.Context, name string, link *os.File) error {
	return i.ungoverned("mem.TakeLink")
}

func (i *instance) ShowDenials(ctx context.Context, text, lines *os.File) error {
	return i.ungoverned("mem.ShowDenials")
}

func (i *instance) Manage(ctx context.Context, a cell.FileAct, in io.Reader, out io.Writer) error {
	return cell.Errorf(cell.Unsupported, "mem.Manage", "look at the workspace's directory", "cannot look at single files of a fake")
}

func (i *instance) SFTP(ctx context.Context, start string, u cell.User) (net.Conn, error) {
	return nil, cell.Errorf(cell.Unsupported, "mem.SFTP", "look at the workspace's directory", "cannot serve the files of a fake")
}

func (i *instance) Dial(ctx context.Context, port int) (net.Conn, error) {
	return nil, cell.Errorf(cell.Unsupported, "mem.Dial", "", "cannot connect to a port of a fake")
}

func (i *instance) Ports(ctx context.Context) ([]cell.Listening, error) {
	return nil, cell.Errorf(cell.Unsupported, "mem.Ports", "", "the ports of a fake are not known")
}

func (i *instance) Mapped(ctx context.Context) ([]cell.MappedFile, error) { return nil, nil }

// Remove returns when the cell's commands have ended and their status is recorded.
func (i *instance) Remove(ctx context.Context, cause string) error {
	r, h := i.r, i.r.host
	h.mu.Lock()
	was := r.gone
	r.gone = true
	if h.rooms[r.id] == r {
		delete(h.rooms, r.id)
	}
	commands := slices.Collect(maps.Values(r.commands))
	h.mu.Unlock()
	if was {
		return nil
	}
	r.blame(cause)
	r.thaw() // nothing ends while it stands still
	r.killAll(nil)
	for _, c := range commands {
		if c != nil {
			<-c.done
		}
	}
	return nil
}
