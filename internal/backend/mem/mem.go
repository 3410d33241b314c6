// Package mem is the contract of backends in its shortest form, and the fake
// in other packages' tests. Its cells are real processes in the directories
// that the spec names, and the keeper of each is a goroutine of this process:
// everything that is not isolation is the real thing, and isolation there is
// none. A process that begins a session of its own leaves its cell.
//
// A Host is the machine: its cells live as long as the test does. Each Backend
// that it opens is a daemon's view of it, and closing one ends no cell.
package mem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/backend/kept"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper"
)

// Name is the backend's word.
const Name = "mem"

const noIsolation = "no isolation: a fake for tests"

// Host is where the cells of every Backend that it opens live.
type Host struct {
	Dir    string           // of sockets
	Events keeper.NewEvents // of runs; nil for none
	Log    *slog.Logger

	mu    sync.Mutex // guards alive
	alive map[cell.ID]chan struct{}
	work  sync.WaitGroup
}

// Open returns a daemon's view of the host.
func (h *Host) Open() *Backend { return &Backend{h} }

// Wait returns when every cell is gone.
func (h *Host) Wait() { h.work.Wait() }

func (h *Host) living(id cell.ID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.alive[id] != nil
}

func socket(id cell.ID) string { return string(id) + ".sock" }

// keep starts a keeper for a cell.
func (h *Host) keep(id cell.ID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.alive[id] != nil {
		return cell.Errorf(cell.Exists, "mem.Create", "", "cell %s is alive already", id)
	}
	dir, err := os.Open(h.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	// The directory's path may be longer than a socket address can be.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socket(id))})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	if h.alive == nil {
		h.alive = map[cell.ID]chan struct{}{}
	}
	over := make(chan struct{})
	h.alive[id] = over
	s := &keeper.Server{Driver: &driver{}, NewEvents: h.Events, Log: h.Log}
	h.work.Go(func() {
		s.Serve(l)
		h.mu.Lock()
		defer h.mu.Unlock()
		os.Remove(filepath.Join(h.Dir, socket(id)))
		delete(h.alive, id)
		close(over)
	})
	return nil
}

// gone waits for the end of a cell's keeper.
func (h *Host) gone(ctx context.Context, id cell.ID) error {
	h.mu.Lock()
	over := h.alive[id]
	h.mu.Unlock()
	if over == nil {
		return nil
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Backend implements backend.Backend.
type Backend struct{ host *Host }

// Name implements backend.Backend.
func (b *Backend) Name() string { return Name }

// Probe implements backend.Backend.
func (b *Backend) Probe(ctx context.Context) (backend.Caps, error) {
	lacks := "backend mem can't"
	return backend.Caps{
		Isolation: noIsolation, Mounts: "backend mem shows the host's own files", Files: lacks, Terminal: lacks, Memory: lacks, Fork: lacks, LiveBranch: lacks,
		MemoryLimit: lacks, CPULimit: lacks, ProcessLimit: lacks, DiskLimit: lacks, ManyIDs: lacks, Landlock: lacks, Network: lacks,
	}, nil
}

// Create implements backend.Backend.
func (b *Backend) Create(ctx context.Context, spec cell.Spec) (_ backend.Instance, err error) {
	for _, limit := range spec.Asked {
		if slices.Contains([]string{"memory", "cpus", "pids"}, limit) {
			return nil, cell.Errorf(cell.Unsupported, "mem.Create", "leave out --"+limit, "cannot limit %s in a fake", limit)
		}
	}
	if spec.Network != nil {
		return nil, cell.Errorf(cell.Unsupported, "mem.Create", "leave out the network rules", "cannot govern the network of a fake")
	}
	if err := b.host.keep(spec.ID); err != nil {
		return nil, err
	}
	a := cell.Assurance{Backend: Name, Network: "the host's", IDs: "the caller", Downgrades: []string{noIsolation, "memory, cpus and processes are not limited"}}
	client, _, err := keeper.Dial(ctx, b.host.Dir, socket(spec.ID))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c := context.WithoutCancel(ctx)
			client.Do(c, keeper.Request{Op: "shutdown"})
			client.Close()
			err = errors.Join(err, b.host.gone(c, spec.ID))
		}
	}()
	body, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	if _, err := client.Do(ctx, keeper.Request{Op: "create", Cell: spec.ID, Spec: body}); err != nil {
		return nil, err
	}
	if spec.Limits.Disk > 0 {
		how, err := kept.WatchDisk(ctx, client, spec, kept.OpenDir)
		if err != nil {
			return nil, err
		}
		a.Limits = append(a.Limits, how)
	}
	if _, err := client.Do(ctx, keeper.Request{Op: "annotate", Cell: spec.ID, Note: kept.Describe(a)}); err != nil {
		return nil, err
	}
	return b.instance(client, spec.ID, a), nil
}

func (b *Backend) instance(client *keeper.Client, id cell.ID, a cell.Assurance) backend.Instance {
	return &kept.Instance{Host: &kept.Host{Dir: b.host.Dir}, Client: client, Cell: id, Known: a,
		AfterRemove: func(ctx context.Context, last bool) error { return b.host.gone(ctx, id) }}
}

// Attach implements backend.Backend.
func (b *Backend) Attach(ctx context.Context, id, family cell.ID) (backend.Instance, error) {
	if !b.host.living(id) {
		return nil, cell.Errorf(cell.NotFound, "mem.Attach", "", "cell %s has no keeper", id)
	}
	client, _, err := keeper.Dial(ctx, b.host.Dir, socket(id))
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(ctx, keeper.Request{Op: "note", Cell: id})
	var a cell.Assurance
	if err == nil {
		err = json.Unmarshal(resp.Note, &a)
	}
	if err != nil {
		client.Close()
		return nil, err
	}
	return b.instance(client, id, a), nil
}

// Living implements backend.Backend.
func (b *Backend) Living(ctx context.Context) (list []cell.Held, err error) {
	b.host.mu.Lock()
	defer b.host.mu.Unlock()
	for id := range b.host.alive {
		list = append(list, cell.Held{ID: id})
	}
	return list, nil
}

// Leftovers implements backend.Backend: a keeper that ends takes all with it.
func (b *Backend) Leftovers(ctx context.Context, dry bool) ([]string, error) { return nil, nil }
