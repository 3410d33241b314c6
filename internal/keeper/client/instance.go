package client

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// Instance is a living cell, controlled through its keeper.
type Instance struct {
	Host   *Host
	Client *Client
	Known  cell.Assurance
	Cell   cell.ID
	// Family is the cell for which the keeper was started.
	Family cell.ID
	// AfterRemove removes the daemon's resources of the cell (cgroups).
	AfterRemove func(ctx context.Context, last bool) error // last: the family has ended
	// MakeFork forks a sealed instance, and MakeBranches branches one; nil if the backend cannot.
	MakeFork     func(ctx context.Context, of *Instance, spec cell.Spec) (*Instance, error)
	MakeBranches func(ctx context.Context, of *Instance, b cell.Branching) ([]*Instance, cell.Pause, error)
	// Lower lowers one limit of a fork before its adoption: "memory", "pids" or "cpus". It is
	// nil if the backend cannot.
	Lower func(name string, l cell.Limits) error
	// CaptureImage captures memory as backend.Capturer says, and PrepareImage prepares that; nil
	// if the backend cannot.
	CaptureImage func(ctx context.Context, of *Instance, dir string) (taken string, err error)
	PrepareImage func(ctx context.Context, of *Instance, dir string, brief bool) error
	// Refine adds what a process measured to the assurance.
	Refine func(a cell.Assurance, measured json.RawMessage) cell.Assurance

	removing sync.Mutex // held by Remove
	removed  bool       // guarded by removing: the ID may belong to another cell now
	closing  sync.Once

	looking sync.Mutex // guards mounts
	mounts  []cell.Mount
}

func (i *Instance) ID() cell.ID { return i.Cell }

func (i *Instance) Assurance() cell.Assurance { return i.Known }

func (i *Instance) Close() { i.closing.Do(i.Client.Close) }

// Alive reports whether the keeper is alive. An open connection tells at once, otherwise the
// keeper's lock. A killed keeper holds that a moment longer than its socket: a process that it was about to
// make has a copy of it.
func (i *Instance) Alive(ctx context.Context) bool {
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		there, refused := i.Client.There(ctx)
		switch {
		case there:
			return true
		case !i.Host.Alive(i.family()):
			return false
		case !refused || time.Since(began) > going || ctx.Err() != nil:
			return true
		}
	}
}

// of names the cell in a request.
func (i *Instance) of() proto.OfCell { return proto.OfCell{Cell: i.Cell} }

// startGrace is how long a start that is under way is waited for when its context ends. An
// answer that was not heard may be that of a command that runs, and changes files.
const startGrace = 10 * time.Second

// outlast returns a context that ends grace after ctx, with its cause, or when end is called.
func outlast(ctx context.Context, grace time.Duration) (longer context.Context, end func()) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(grace):
			cancel(context.Cause(ctx))
		case <-longer.Done():
		}
	})
	return longer, func() { stop(); cancel(nil) }
}

// Start starts a command. When ctx ends before the keeper has answered, the command may be
// there: the process is returned then, for its caller to end.
func (i *Instance) Start(ctx context.Context, name string, s cell.Start, logs [3]*os.File) (backend.Process, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	ctx, end := outlast(ctx, startGrace)
	defer end()
	req := proto.NewProcess{Cell: i.Cell, Proc: name, Start: s}
	var files []*os.File
	if logs != [3]*os.File{} || s.Wire != nil {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		defer null.Close()
		for n, f := range logs {
			if f == nil {
				req.NoLogs = append(req.NoLogs, n)
				f = null
			}
			files = append(files, f)
		}
		if s.Wire != nil {
			files = append(files, s.Wire.File)
		}
	}
	b, err := Ask(ctx, i.Client, proto.Start, req, files...)
	if err != nil {
		return nil, err
	}
	return i.process(name, b), nil
}

// Do starts a process and waits for its end in one exchange.
func (i *Instance) Do(ctx context.Context, name string, s cell.Start) (backend.Done, error) {
	d, err := Ask(ctx, i.Client, proto.Run, proto.NewProcess{Cell: i.Cell, Proc: name, Start: s})
	return backend.Done(d), err
}

// process returns the process described by the keeper's answer.
func (i *Instance) process(name string, b proto.Begun) *process {
	p := &process{i: i, name: name, pid: b.PID, inner: b.Inner, known: i.Known}
	if i.Refine != nil && b.Measured != nil {
		p.known = i.Refine(i.Known, b.Measured)
	}
	return p
}

func (i *Instance) Process(ctx context.Context, name string) (backend.Process, error) {
	s, err := Ask(ctx, i.Client, proto.Status, proto.OfProcess{Proc: name})
	if err != nil {
		return nil, err
	}
	return i.process(name, s.Begun), nil
}

func (i *Instance) ReadFiles(ctx context.Context, path string, w io.Writer) error {
	return i.Client.Files(ctx, proto.Archive{Cell: i.Cell, Path: path}, nil, w)
}

func (i *Instance) WriteFiles(ctx context.Context, path string, u cell.User, r io.Reader) error {
	return i.Client.Files(ctx, proto.Archive{Cell: i.Cell, Path: path, Write: true, UID: u.UID, GID: u.GID}, r, nil)
}

func (i *Instance) KillAll(ctx context.Context, cause string) (int, error) {
	n, err := Ask(ctx, i.Client, proto.KillAll, proto.Ending{Cell: i.Cell, Cause: cause})
	return n.Count, err
}

func (i *Instance) Freeze(ctx context.Context) error {
	_, err := Ask(ctx, i.Client, proto.Freeze, i.of())
	return err
}

func (i *Instance) Thaw(ctx context.Context) error {
	_, err := Ask(ctx, i.Client, proto.Thaw, i.of())
	return err
}

func (i *Instance) List(ctx context.Context) ([]cell.ProcessInfo, error) {
	l, err := Ask(ctx, i.Client, proto.List, i.of())
	return l.List, err
}

func (i *Instance) Names(ctx context.Context) ([]string, error) {
	l, err := Ask(ctx, i.Client, proto.List, i.of())
	return l.Procs, err
}

func (i *Instance) Stats(ctx context.Context) (cell.Stats, error) {
	return Ask(ctx, i.Client, proto.Stats, i.of())
}

func (i *Instance) Govern(ctx context.Context, g cell.Governance) error {
	_, err := Ask(ctx, i.Client, proto.Govern, proto.Governance{Cell: i.Cell, Network: g})
	return err
}

func (i *Instance) Asked(ctx context.Context, since int64) ([]cell.Asked, int64, error) {
	q, err := Ask(ctx, i.Client, proto.Asked, proto.Since{Cell: i.Cell, Since: since})
	return q.Asked, q.At, err
}

// Refused implements backend.Instance.
func (i *Instance) Refused(ctx context.Context) ([]cell.Refused, error) {
	return Ask(ctx, i.Client, proto.Refused, i.of())
}

func (i *Instance) Answer(ctx context.Context, a cell.Answered) error {
	_, err := Ask(ctx, i.Client, proto.Decide, proto.Decision{Cell: i.Cell, Answer: a})
	return err
}

// Remove ends the cell, and with the last cell of a family the keeper.
func (i *Instance) Remove(ctx context.Context, cause string) (err error) {
	i.removing.Lock()
	defer i.removing.Unlock()
	if i.removed {
		return nil
	}
	defer func() { i.removed = err == nil }()
	remove := func() (proto.Count, error) {
		return Ask(ctx, i.Client, proto.Remove, proto.Ending{Cell: i.Cell, Cause: cause})
	}
	rest, err := remove()
	for began := time.Now(); cell.KindOf(err) == cell.Unavailable && i.Host.Alive(i.family()) && time.Since(began) < going; rest, err = remove() {
		time.Sleep(time.Millisecond) // a broken connection, or a dying keeper that still has its lock
	}
	left := 0
	switch cell.KindOf(err) {
	case "":
		left = rest.Count
	case cell.Unavailable:
		if i.Host.Alive(i.family()) {
			return err
		}
	case cell.NotFound: // perhaps only this cell
		if hello, err := i.Client.hello(ctx); err == nil {
			left = len(hello.Cells)
		}
	default:
		return err
	}
	if left == 0 {
		Ask(ctx, i.Client, proto.Shutdown, proto.None{})
	}
	i.Close()
	if left == 0 {
		i.Host.Release(i.family())
	}
	if i.AfterRemove != nil {
		return i.AfterRemove(ctx, left == 0)
	}
	return nil
}

// KeeperPID returns the PID of the keeper.
func (i *Instance) KeeperPID() int { return i.Client.pid }

func (i *Instance) family() cell.ID {
	if i.Family != "" {
		return i.Family
	}
	return i.Cell
}

type process struct {
	i     *Instance
	name  string
	pid   int
	inner int
	known cell.Assurance
}

func (p *process) PID() int { return p.pid }

// InnerPID implements backend.Process.
func (p *process) InnerPID() int { return p.inner }

func (p *process) Assurance() cell.Assurance { return p.known }

func (p *process) Attach(ctx context.Context, a backend.Attach) (net.Conn, error) {
	return p.i.Client.Attach(ctx, proto.Attachment{Proc: p.name, Stdout: a.Stdout, Stderr: a.Stderr, Input: a.Input, Screen: a.Screen, Size: a.Size, Client: a.Client})
}

func (p *process) Signal(ctx context.Context, sig string) error {
	_, err := Ask(ctx, p.i.Client, proto.Signal, proto.ToProcess{Proc: p.name, Signal: sig})
	return err
}

func (p *process) End(ctx context.Context, cause string, grace time.Duration) error {
	_, err := Ask(ctx, p.i.Client, proto.End, proto.EndProcess{Proc: p.name, Cause: cause, Grace: grace})
	return err
}

func (p *process) Status(ctx context.Context) (cell.Status, error) {
	s, err := Ask(ctx, p.i.Client, proto.Status, proto.OfProcess{Proc: p.name})
	return s.Status, err
}

// Wait returns when the process has ended. The keeper answers only then.
func (p *process) Wait(ctx context.Context) (cell.Status, error) {
	s, err := Ask(ctx, p.i.Client, proto.Wait, proto.OfProcess{Proc: p.name})
	return s.Status, err
}

func (p *process) Forget(ctx context.Context) error {
	_, err := Ask(ctx, p.i.Client, proto.Forget, proto.OfProcess{Proc: p.name})
	return err
}
