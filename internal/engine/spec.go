package engine

import (
	"context"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// specify is what the instance of a cell is made of, and clears the places of its mounts.
func (e *Engine) specify(c *state.Cell) (cell.Spec, error) {
	s := e.spec(c, c.Setup.Mounts)
	var err error
	if s.Network, err = e.govern.Governance(c, e.runNow(c.ID)); err != nil {
		return s, err
	}
	return s, e.makeWay(c)
}

// prepareStart gives a cell at rest a writable layer, and points its mounts there. The objects
// that it makes are kept until done is called: what changed is recorded by then.
func (e *Engine) prepareStart(ctx context.Context, c *state.Cell) (changed []any, done func(), err error) {
	done = e.pins.Begin().End
	if err := e.reg.Unfinished(c, ""); err != nil {
		return nil, done, err
	}
	if c.State == cell.Failed {
		return nil, done, cell.Errorf(cell.Conflict, "engine.exec", "bring it back with pando restore "+c.Title()+"@N", "cell %s failed: %s", c.Title(), c.Cause)
	}
	p, err := e.providerOf(c.Provider)
	if err != nil {
		return nil, done, err
	}
	if c.Gen == nil {
		head, err := e.reg.Checkpoint(c.Head)
		if err != nil {
			return nil, done, err
		}
		if err := e.begin(ctx, c, p, &head); err != nil {
			return nil, done, err
		}
		changed = append(changed, &head)
	} else if err := p.Resume(ctx, *c.Gen); err != nil {
		return nil, done, err
	}
	c.Family = e.alive.FreeKeeper(c.ID)
	return changed, done, e.refit(c, p, nil)
}

// woken gives a cell that was at rest what it had beside its gateway when it ran last.
func (e *Engine) woken(ctx context.Context, c *state.Cell, inst backend.Instance) {
	if err := e.govern.Equip(ctx, c, inst, c.SSHAgent); err != nil {
		e.log.Warn("cannot lend keys of SSH again", "cell", c.ID, "error", err)
	}
}

// spec is what a cell is made of, but for what its gateway goes by.
func (e *Engine) spec(c *state.Cell, mounts []cell.Mount) cell.Spec {
	s := cell.Spec{
		ID: c.ID, Family: c.Family, Hostname: c.Hostname(), User: c.Setup.User, Kernel: c.Setup.Kernel, Mounts: mounts, Workdir: c.Source,
		Limits: c.Limits(), Asked: c.Setup.Asked, Private: e.private(c.ID), Writes: []string{e.private(c.ID)},
	}
	if c.Gen != nil {
		s.Layer = c.Gen.Layer
	}
	if c.Volume > 0 {
		s.Sized, s.Limits.Disk = true, c.Volume
	}
	for i := range s.Mounts {
		switch m := &s.Mounts[i]; {
		case m.Role == cell.RoleWorkspace, m.Role == cell.RoleHome && c.Home != nil, m.Role == cell.RoleTmp && c.Tmp != nil:
			s.Writes = append(s.Writes, writable(m))
		}
	}
	return s
}
