// Package namespace is the backend of Linux namespaces: user, mount, pid,
// network, ipc, uts and cgroup namespaces, a root file system of its own,
// dropped capabilities, Landlock, seccomp, cgroups. It needs no root and no
// set-up.
//
// All of that is package isolation's. What is here is that cells fork: their interpreters
// are sealed, forked, adopted and branched, and what a fork must not have is looked for from
// outside.
//
//	daemon: fork ──── isolation.Host.Prepare ──▶ keeper: Driver.Fork ── forkParent.fork, Pending.Inhabit, audits
//	daemon: branch ── isolation.Host.Prepare ──▶ keeper: branching
package namespace

import (
	"context"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/keeper/client"
)

// Name is the name of the backend.
const Name = "namespace"

// Backend runs cells in namespaces.
type Backend struct{ *isolation.Host }

// New returns the backend. It starts nothing.
func New(cfg isolation.Config) *Backend {
	cfg.Backend = Name
	return &Backend{isolation.NewHost(cfg)}
}

// Probe implements backend.Backend.
func (b *Backend) Probe(ctx context.Context) (backend.Caps, error) {
	caps, err := b.Host.Probe(ctx)
	caps.Memory = "backend namespace keeps files in checkpoints, not memory"
	return caps, err
}

// Create implements backend.Backend.
func (b *Backend) Create(ctx context.Context, spec cell.Spec) (backend.Instance, error) {
	i, err := b.Host.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	b.hook(i)
	return i, nil
}

// Attach implements backend.Backend.
func (b *Backend) Attach(ctx context.Context, id, family cell.ID) (backend.Instance, error) {
	i, err := b.Host.Attach(ctx, id, family)
	if err != nil {
		return nil, err
	}
	b.hook(i)
	return i, nil
}

// hook sets the functions of an instance.
func (b *Backend) hook(i *client.Instance) {
	b.Hook(i)
	i.MakeFork, i.MakeBranches = b.fork, b.branch
}
