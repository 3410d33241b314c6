// Package mem is the fake backend of other packages' tests, in one process: its
// cells are directories that the spec names, their processes are goroutines, and
// their streams are in memory. It passes the suite of package backendtest, without
// isolation. There is no program, socket or pipe in it, so that it can be used in
// the bubbles of testing/synctest: time that its commands sleep is the bubble's.
//
// A command is a script of sh, which package interp of mvdan.cc/sh interprets, or
// one of the few programs that are written here (programs.go); there are no others,
// whatever the host has. An absolute path in a script is the host's.
//
// A Host is the machine: its cells live as long as the test does. Each Backend
// that it opens is a daemon's view of it, and closing one ends no cell.
package mem

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/server"
)

// Name is the name of the backend.
const Name = "mem"

const noIsolation = "no isolation: a fake for tests"

// Host holds the cells of all Backends that it opens.
type Host struct {
	Events server.NewEvents // of runs; nil for none

	mu    sync.Mutex // guards the fields below, and the state of the rooms
	rooms map[cell.ID]*room
	tasks map[int]*task // of all rooms
	last  int           // PID of the last task
	work  sync.WaitGroup
}

// Open returns a daemon's view of the host.
func (h *Host) Open() *Backend { return &Backend{h} }

// Wait returns when all commands and their tasks have ended.
func (h *Host) Wait() { h.work.Wait() }

// Cells lists the living cells.
func (h *Host) Cells() []cell.ID {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.rooms))
}

// Backend implements backend.Backend.
type Backend struct{ host *Host }

// Name implements backend.Backend.
func (b *Backend) Name() string { return Name }

// Probe implements backend.Backend.
func (b *Backend) Probe(ctx context.Context) (backend.Caps, error) {
	lacks := "backend mem can't"
	return backend.Caps{
		Isolation: noIsolation, Mounts: "backend mem shows the host's own files", Files: lacks, Terminal: lacks, Memory: lacks, Eval: "backend mem has no interpreters",
		Fork: lacks, LiveBranch: lacks, MemoryLimit: lacks, CPULimit: lacks, ProcessLimit: lacks, DiskLimit: lacks, ManyIDs: lacks, Landlock: lacks, Network: lacks,
	}, nil
}

// Create implements backend.Backend.
func (b *Backend) Create(ctx context.Context, spec cell.Spec) (backend.Instance, error) {
	const op = "mem.Create"
	for _, limit := range spec.Asked {
		if slices.Contains([]string{"memory", "cpus", "pids"}, limit) {
			return nil, cell.Errorf(cell.Unsupported, op, "leave out --"+limit, "cannot limit %s in a fake", limit)
		}
	}
	if spec.Network != nil {
		return nil, cell.Errorf(cell.Unsupported, op, "leave out the network rules", "cannot govern the network of a fake")
	}
	for _, m := range spec.Mounts {
		if m.Kind == cell.Overlay || m.Target == "/" {
			return nil, cell.Errorf(cell.Unsupported, op, "use a workspace that is a directory", "cannot mount a workspace in a fake")
		}
	}
	a := cell.Assurance{Backend: Name, Network: "the host's", IDs: "the caller", Downgrades: []string{noIsolation, "memory, cpus and processes are not limited"}}
	r := &room{host: b.host, id: spec.ID, spec: spec, tasks: map[int]*task{}, commands: map[string]*command{}}
	if n := spec.Limits.Disk; n > 0 {
		lim := cell.AppliedLimit{Name: "disk", Applied: strconv.FormatInt(n, 10), How: "accounted: what is written is counted, and a cell above its limit is ended"}
		if slices.Contains(spec.Asked, "disk") {
			lim.Asked = lim.Applied
		}
		if spec.Sized {
			lim.How = "a file system of its own"
		}
		a.Limits = append(a.Limits, lim)
	}
	r.known = a
	b.host.mu.Lock()
	defer b.host.mu.Unlock()
	if b.host.rooms[spec.ID] != nil {
		return nil, cell.Errorf(cell.Exists, op, "", "cell %s is alive already", spec.ID)
	}
	if b.host.rooms == nil {
		b.host.rooms, b.host.tasks, b.host.last = map[cell.ID]*room{}, map[int]*task{}, firstTask
	}
	b.host.rooms[spec.ID] = r
	return &instance{r}, nil
}

// Attach implements backend.Backend.
func (b *Backend) Attach(ctx context.Context, id, family cell.ID) (backend.Instance, error) {
	b.host.mu.Lock()
	defer b.host.mu.Unlock()
	if r := b.host.rooms[id]; r != nil {
		return &instance{r}, nil
	}
	return nil, cell.Errorf(cell.NotFound, "mem.Attach", "", "no cell %s lives", id)
}

// Living implements backend.Backend.
func (b *Backend) Living(ctx context.Context) (list []cell.Held, err error) {
	for _, id := range b.host.Cells() {
		list = append(list, cell.Held{ID: id})
	}
	return list, nil
}

// Leftovers implements backend.Backend. Removing a cell removes everything.
func (b *Backend) Leftovers(ctx context.Context, dry bool) ([]string, error) { return nil, nil }
