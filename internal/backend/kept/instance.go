package kept

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"sync"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper"
)

// Instance is a living cell, seen through its keeper.
type Instance struct {
	Host   *Host
	Client *keeper.Client
	Known  cell.Assurance
	Cell   cell.ID
	// AfterRemove takes down what the daemon made for the cell (cgroups).
	AfterRemove func(ctx context.Context) error
	// Refine turns what a process measured into assurance.
	Refine func(a cell.Assurance, measured json.RawMessage) cell.Assurance

	removing sync.Mutex // held by Remove
	removed  bool       // guarded by removing: whoever has the cell's ID now is another
}

func (i *Instance) ID() cell.ID { return i.Cell }

func (i *Instance) Assurance() cell.Assurance { return i.Known }

func (i *Instance) Close() { i.Client.Close() }

func (i *Instance) do(ctx context.Context, req keeper.Request, files ...*os.File) (*keeper.Response, error) {
	req.Cell = i.Cell
	return i.Client.Do(ctx, req, files...)
}

func (i *Instance) Start(ctx context.Context, name string, s cell.Start, logs [3]*os.File) (backend.Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	req := keeper.Request{Op: "start", Proc: name, Start: &s}
	var files []*os.File
	for n, f := range logs {
		if f == nil {
			req.NoLogs = append(req.NoLogs, n)
			f = null
		}
		files = append(files, f)
	}
	resp, err := i.do(ctx, req, files...)
	if err != nil {
		return nil, err
	}
	p := &process{i: i, name: name, pid: resp.PID, known: i.Known}
	if i.Refine != nil && resp.Measured != nil {
		p.known = i.Refine(i.Known, resp.Measured)
	}
	return p, nil
}

func (i *Instance) Process(ctx context.Context, name string) (backend.Process, error) {
	resp, err := i.do(ctx, keeper.Request{Op: "status", Proc: name})
	if err != nil {
		return nil, err
	}
	p := &process{i: i, name: name, pid: resp.PID, known: i.Known}
	if i.Refine != nil && resp.Measured != nil {
		p.known = i.Refine(i.Known, resp.Measured)
	}
	return p, nil
}

func (i *Instance) ReadFiles(ctx context.Context, path string, w io.Writer) error {
	return i.Client.Files(ctx, i.Cell, keeper.FilesRequest{Path: path}, nil, w)
}

func (i *Instance) WriteFiles(ctx context.Context, path string, u cell.User, r io.Reader) error {
	return i.Client.Files(ctx, i.Cell, keeper.FilesRequest{Path: path, Write: true, UID: u.UID, GID: u.GID}, r, nil)
}

func (i *Instance) KillAll(ctx context.Context, cause string) (int, error) {
	resp, err := i.do(ctx, keeper.Request{Op: "killall", Cause: cause})
	if err != nil {
		return 0, err
	}
	return resp.Count, nil
}

func (i *Instance) Freeze(ctx context.Context) error {
	_, err := i.do(ctx, keeper.Request{Op: "freeze"})
	return err
}

func (i *Instance) Thaw(ctx context.Context) error {
	_, err := i.do(ctx, keeper.Request{Op: "thaw"})
	return err
}

func (i *Instance) List(ctx context.Context) ([]cell.ProcessInfo, error) {
	resp, err := i.do(ctx, keeper.Request{Op: "list"})
	if err != nil {
		return nil, err
	}
	return resp.List, nil
}

func (i *Instance) Stats(ctx context.Context) (cell.Stats, error) {
	resp, err := i.do(ctx, keeper.Request{Op: "stats"})
	if err != nil || resp.Stats == nil {
		return cell.Stats{}, err
	}
	return *resp.Stats, nil
}

func (i *Instance) Govern(ctx context.Context, g cell.Governance) error {
	_, err := i.do(ctx, keeper.Request{Op: "govern", Network: &g})
	return err
}

func (i *Instance) Asked(ctx context.Context, since int64) ([]cell.Asked, int64, error) {
	resp, err := i.do(ctx, keeper.Request{Op: "asked", Since: since})
	if err != nil {
		return nil, 0, err
	}
	return resp.Asked, resp.AskedAt, nil
}

func (i *Instance) Answer(ctx context.Context, a cell.Answered) error {
	_, err := i.do(ctx, keeper.Request{Op: "answer", Answer: &a})
	return err
}

// Remove ends the cell and its keeper.
func (i *Instance) Remove(ctx context.Context, cause string) (err error) {
	i.removing.Lock()
	defer i.removing.Unlock()
	if i.removed {
		return nil
	}
	defer func() { i.removed = err == nil }()
	_, err = i.do(ctx, keeper.Request{Op: "remove", Cause: cause})
	if cell.KindOf(err) == cell.Unavailable || cell.KindOf(err) == cell.NotFound {
		err = nil // gone already
	}
	if err != nil {
		return err
	}
	i.do(ctx, keeper.Request{Op: "shutdown"})
	i.Client.Close()
	i.Host.Release(i.Cell)
	if i.AfterRemove != nil {
		return i.AfterRemove(ctx)
	}
	return nil
}

type process struct {
	i     *Instance
	name  string
	pid   int
	known cell.Assurance
}

func (p *process) PID() int { return p.pid }

func (p *process) Assurance() cell.Assurance { return p.known }

func (p *process) Attach(ctx context.Context, from backend.Offsets, input bool) (net.Conn, error) {
	return p.i.Client.Attach(ctx, p.name, keeper.AttachRequest{Stdout: from.Stdout, Stderr: from.Stderr, Input: input})
}

func (p *process) Signal(ctx context.Context, sig string) error {
	_, err := p.i.do(ctx, keeper.Request{Op: "signal", Proc: p.name, Signal: sig})
	return err
}

func (p *process) End(ctx context.Context, cause string) error {
	_, err := p.i.do(ctx, keeper.Request{Op: "signal", Proc: p.name, Cause: cause})
	return err
}

func (p *process) Status(ctx context.Context) (cell.Status, error) {
	return p.status(ctx, "status")
}

// Wait returns when the process has ended; the keeper answers only then.
func (p *process) Wait(ctx context.Context) (cell.Status, error) {
	return p.status(ctx, "wait")
}

func (p *process) status(ctx context.Context, op string) (cell.Status, error) {
	resp, err := p.i.do(ctx, keeper.Request{Op: op, Proc: p.name})
	if err != nil || resp.Status == nil {
		return cell.Status{}, err
	}
	return *resp.Status, nil
}

func (p *process) Forget(ctx context.Context) error {
	_, err := p.i.do(ctx, keeper.Request{Op: "forget", Proc: p.name})
	return err
}
