// Package gvisor is the backend of gVisor: an application kernel in user space
// between a cell's commands and the host. It needs no KVM and no root.
//
// A gVisor cell is a cell in namespaces that contains a sandbox instead of commands. Namespaces,
// mounts, cgroups, disk limit and link are package isolation's, and the sandbox runs on the
// cell's Stage. Code that breaks out of the application kernel is still in those namespaces.
//
// The first process in the sandbox is pando-guest, which starts the commands
// (package guest).
//
//	daemon: Create ── isolation.Host.Create ──▶ keeper: Driver.Create ── isolation.Driver.Create, boot
//	daemon: Start ─────────────────────────────▶ keeper: Driver.Start ─── guest.Client.Start
package gvisor

import (
	"context"
	"fmt"
	"os"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/isolation/guestkernel"
	"github.com/pando-dev/pando/internal/keeper/server"
)

// Name is the name of the backend.
const Name = "gvisor"

// Config configures a Backend.
type Config struct {
	isolation.Config
	Runsc string // path of pando-runsc
	Guest string // path of pando-guest
}

// Backend runs cells on gVisor.
type Backend struct {
	*isolation.Host
	cfg   Config
	build func() (string, error) // identifies the build of gVisor
}

// New returns the backend. It starts nothing.
func New(cfg Config) *Backend {
	b := &Backend{cfg: cfg, build: buildsOf(cfg.Runsc)}
	cfg.Backend, cfg.Above = Name, &isolation.Above{
		Isolation: []string{"gVisor's application kernel"}, Open: b.open,
		PIDs: func(asked int64) int64 { return 4*asked + sentryThreads }, UserNS: 64, Link: "veth",
	}
	b.Host = isolation.NewHost(cfg.Config)
	return b
}

// sentryThreads is the maximum number of gVisor's own threads. Each thread of the cell needs up
// to four more on the host.
const sentryThreads = 512

// Probe implements backend.Backend. It starts no cell: see Try.
func (b *Backend) Probe(ctx context.Context) (backend.Caps, error) {
	caps, err := b.Host.Probe(ctx)
	if err != nil {
		return caps, err
	}
	for _, p := range []string{b.cfg.Runsc, b.cfg.Guest} {
		if _, err := os.Stat(p); err != nil {
			return caps, cell.Errorf(cell.Unsupported, "gvisor.Probe", "build it with `make`, or install it beside pando", "cannot find %s: %w", p, err)
		}
	}
	caps.Refuses = "gVisor says that a chmod on a read-only mount worked, and does nothing"
	caps.Fork, caps.LiveBranch = whole, whole
	caps.Landlock = "gVisor has no Landlock: its mounts say what can be written"
	return caps, nil
}

// whole is the reason why interpreters are not forked.
const whole = "a whole gVisor cell is copied, by its memory"

// Create implements backend.Backend.
func (b *Backend) Create(ctx context.Context, spec cell.Spec) (backend.Instance, error) {
	spec.Mounts = append([]cell.Mount(nil), spec.Mounts...)
	spec.Mounts = append(spec.Mounts, cell.Mount{Kind: cell.Bind, Source: b.cfg.Guest, Target: guestkernel.GuestPath, ReadOnly: true, Why: "guest"})
	i, err := b.Host.Create(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("cannot make a gVisor cell: %w", err)
	}
	b.images().Hook(i)
	return i, nil
}

// Attach implements backend.Backend.
func (b *Backend) Attach(ctx context.Context, id, family cell.ID) (backend.Instance, error) {
	i, err := b.Host.Attach(ctx, id, family)
	if err != nil {
		return nil, err
	}
	b.images().Hook(i)
	return i, nil
}

// Driver is the keeper's side of the backend.
type Driver struct{ *guestkernel.Driver }

// NewDriver prepares what all cells of a keeper share.
func NewDriver() (server.Driver, error) {
	d, err := guestkernel.New(guestkernel.Kind{Name: Name, Title: "gVisor", Files: 1, Images: len(imageFiles), New: newSandbox})
	if err != nil {
		return nil, err
	}
	return &Driver{d}, nil
}
