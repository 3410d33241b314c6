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
	// Forks makes forks and branches; nil if the backend cannot.
	Forks Forking
	// Lower lowers one limit of a fork before its adoption: "memory", "pids" or "cpus". It is
	// nil if the backend cannot.
	Lower func(name string, l cell.Limits) error
	// Memory captures memory; nil if the backend cannot.
	Memory Capturing
	// Refine adds what a process measured to the assurance.
	Refine func(a cell.Assurance, measured json.RawMessage) cell.Assurance

	removing sync.Mutex // held by Remove
	removed  bool       // guarded by removing: the ID may belong to another cell now
	closing  sync.Once

	looking sync.Mutex // guards the fields below
	mounts  []cell.Mount
	keeper  int // PID
}

func (i *Instance) ID() cell.ID { return i.Cell }

func (i *Instance) Assurance() cell.Assurance { return i.Known }

func (i *Instance) Close() { i.closing.Do(i.Client.Close) }

// Alive reports whether the keeper is alive. An open connection tells at once, otherwise the
// keeper's lock.
func (i *Instance) Alive(ctx context.Context) bool {
	return i.Client.Alive(ctx) || i.Host.Alive(i.family())
}

func (i *Instance) do(ctx context.Context, req proto.Request, files ...*os.File) (*proto.Response, error) {
	req.Cell = i.Cell
	return i.Client.Do(ctx, req, files...)
}

func (i *Instance) Start(ctx context.Context, name string, s cell.Start, logs [3]*os.File) (backend.Process, error) {
	req := proto.Request{Op: "start", Proc: name, Start: &s}
	var files []*os.File
	if logs != [3]*os.File{} {
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
	}
	resp, err := i.do(ctx, req, files...)
	if err != nil {
		return nil, err
	}
	return i.process(name, resp), nil
}

// Do starts a process and waits for its end in one exchange.
func (i *Instance) Do(ctx context.Context, name string, s cell.Start) (backend.Done, error) {
	resp, err := i.do(ctx, proto.Request{Op: "start", Proc: name, Start: &s, Whole: true})
	if err != nil {
		return backend.Done{}, err
	}
	if resp.Status == nil {
		return backend.Done{}, cell.Errorf(cell.Internal, "keeper.Do", "", "the cell's keeper answered without a status")
	}
	return backend.Done{Status: *resp.Status, Stdout: resp.Stdout, Stderr: resp.Stderr}, nil
}

// process returns the process described by the keeper's response.
func (i *Instance) process(name string, resp *proto.Response) *process {
	p := &process{i: i, name: name, pid: resp.PID, inner: resp.Inner, known: i.Known}
	if i.Refine != nil && resp.Measured != nil {
		p.known = i.Refine(i.Known, resp.Measured)
	}
	return p
}

func (i *Instance) Process(ctx context.Context, name string) (backend.Process, error) {
	resp, err := i.do(ctx, proto.Request{Op: "status", Proc: name})
	if err != nil {
		return nil, err
	}
	return i.process(name, resp), nil
}

func (i *Instance) ReadFiles(ctx context.Context, path string, w io.Writer) error {
	return i.Client.Files(ctx, i.Cell, proto.FilesRequest{Path: path}, nil, w)
}

func (i *Instance) WriteFiles(ctx context.Context, path string, u cell.User, r io.Reader) error {
	return i.Client.Files(ctx, i.Cell, proto.FilesRequest{Path: path, Write: true, UID: u.UID, GID: u.GID}, r, nil)
}

func (i *Instance) KillAll(ctx context.Context, cause string) (int, error) {
	resp, err := i.do(ctx, proto.Request{Op: "killall", Cause: cause})
	if err != nil {
		return 0, err
	}
	return resp.Count, nil
}

func (i *Instance) Freeze(ctx context.Context) error {
	_, err := i.do(ctx, proto.Request{Op: "freeze"})
	return err
}

func (i *Instance) Thaw(ctx context.Context) error {
	_, err := i.do(ctx, proto.Request{Op: "thaw"})
	return err
}

func (i *Instance) List(ctx context.Context) ([]cell.ProcessInfo, error) {
	resp, err := i.do(ctx, proto.Request{Op: "list"})
	if err != nil {
		return nil, err
	}
	return resp.List, nil
}

func (i *Instance) Names(ctx context.Context) ([]string, error) {
	resp, err := i.do(ctx, proto.Request{Op: "list"})
	if err != nil {
		return nil, err
	}
	return resp.Procs, nil
}

func (i *Instance) Stats(ctx context.Context) (cell.Stats, error) {
	resp, err := i.do(ctx, proto.Request{Op: "stats"})
	if err != nil || resp.Stats == nil {
		return cell.Stats{}, err
	}
	return *resp.Stats, nil
}

func (i *Instance) Govern(ctx context.Context, g cell.Governance) error {
	_, err := i.do(ctx, proto.Request{Op: "govern", Network: &g})
	return err
}

func (i *Instance) Asked(ctx context.Context, since int64) ([]cell.Asked, int64, error) {
	resp, err := i.do(ctx, proto.Request{Op: "asked", Since: since})
	if err != nil {
		return nil, 0, err
	}
	return resp.Asked, resp.AskedAt, nil
}

// Refused implements backend.Refuser.
func (i *Instance) Refused(ctx context.Context) ([]cell.Refused, error) {
	resp, err := i.do(ctx, proto.Request{Op: "refused"})
	if err != nil {
		return nil, err
	}
	return resp.Refused, nil
}

func (i *Instance) Answer(ctx context.Context, a cell.Answered) error {
	_, err := i.do(ctx, proto.Request{Op: "answer", Answer: &a})
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
	remove := func() (*proto.Response, error) { return i.do(ctx, proto.Request{Op: "remove", Cause: cause}) }
	resp, err := remove()
	for began := time.Now(); cell.KindOf(err) == cell.Unavailable && i.Host.Alive(i.family()) && time.Since(began) < going; resp, err = remove() {
		time.Sleep(time.Millisecond) // a broken connection, or a dying keeper that still has its lock
	}
	left := 0
	switch cell.KindOf(err) {
	case "":
		left = resp.Count
	case cell.Unavailable:
		if i.Host.Alive(i.family()) {
			return err
		}
	case cell.NotFound: // perhaps only this cell
		if resp, err := i.do(ctx, proto.Request{Op: "hello", Version: proto.Version}); err == nil {
			left = len(resp.Cells)
		}
	default:
		return err
	}
	if left == 0 {
		i.do(ctx, proto.Request{Op: "shutdown"})
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
func (i *Instance) KeeperPID(ctx context.Context) (int, error) {
	i.looking.Lock()
	defer i.looking.Unlock()
	if i.keeper == 0 {
		resp, err := i.do(ctx, proto.Request{Op: "hello", Version: proto.Version})
		if err != nil {
			return 0, err
		}
		i.keeper = resp.PID
	}
	return i.keeper, nil
}

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

// InnerPID implements backend.Numbered.
func (p *process) InnerPID() int { return p.inner }

func (p *process) Assurance() cell.Assurance { return p.known }

func (p *process) Attach(ctx context.Context, a backend.Attach) (net.Conn, error) {
	return p.i.Client.Attach(ctx, p.name, proto.AttachRequest{Stdout: a.Stdout, Stderr: a.Stderr, Input: a.Input, Screen: a.Screen, Size: a.Size, Client: a.Client})
}

func (p *process) Signal(ctx context.Context, sig string) error {
	_, err := p.i.do(ctx, proto.Request{Op: "signal", Proc: p.name, Signal: sig})
	return err
}

func (p *process) End(ctx context.Context, cause string) error {
	_, err := p.i.do(ctx, proto.Request{Op: "signal", Proc: p.name, Cause: cause})
	return err
}

func (p *process) Status(ctx context.Context) (cell.Status, error) {
	return p.status(ctx, "status")
}

// Wait returns when the process has ended. The keeper answers only then.
func (p *process) Wait(ctx context.Context) (cell.Status, error) {
	return p.status(ctx, "wait")
}

func (p *process) status(ctx context.Context, op string) (cell.Status, error) {
	resp, err := p.i.do(ctx, proto.Request{Op: op, Proc: p.name})
	if err == nil && resp.Status == nil {
		err = cell.Errorf(cell.Internal, "keeper."+op, "", "the cell's keeper answered without a status")
	}
	if err != nil {
		return cell.Status{}, err
	}
	return *resp.Status, nil
}

func (p *process) Forget(ctx context.Context) error {
	_, err := p.i.do(ctx, proto.Request{Op: "forget", Proc: p.name})
	return err
}
