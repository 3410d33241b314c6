package engine

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// leaving is how long the keeper of a cell that is at rest may still be on its way out, when
// the daemon that sent it away died meanwhile. After leavingSelf it is ended: it came to be
// after this daemon had looked for such keepers.
const (
	leaving     = 30 * time.Second
	leavingSelf = time.Second
)

// activate makes an instance of a cell that is at rest.
func (e *Engine) activate(ctx context.Context, c *state.Cell) (backend.Instance, error) {
	b, err := e.backend(c.Backend)
	if err != nil {
		return nil, err
	}
	if err := e.mayStart(c); err != nil {
		return nil, err
	}
	if err := e.alive.AwaitGone(ctx, c.ID); err != nil {
		return nil, err
	}
	spec := e.spec(c, c.Setup.Mounts)
	if spec.Network, err = e.governance(c, e.runNow(c.ID)); err != nil {
		return nil, err
	}
	if err := e.makeWay(c); err != nil {
		return nil, err
	}
	// A layer over a cache is mounted once: what an attempt left behind goes.
	if err := workspace.RemoveTree(filepath.Join(e.private(c.ID), "cache")); err != nil {
		return nil, err
	}
	inst, err := b.Create(ctx, spec)
	ended := false
	for began := time.Now(); cell.KindOf(err) == cell.Exists && time.Since(began) < leaving && ctx.Err() == nil; {
		time.Sleep(10 * time.Millisecond)
		if !ended && time.Since(began) > leavingSelf {
			ended = true
			e.endOrphan(ctx, b, cell.Held{ID: c.ID, Family: c.Family})
		}
		inst, err = b.Create(ctx, spec)
	}
	if err != nil {
		return nil, err
	}
	e.alive.Add(c, inst, nil)
	if c.Talks() {
		e.followAsks(inst)
	}
	return inst, nil
}

// spec is what a cell is made of, but for what its gateway goes by.
func (e *Engine) spec(c *state.Cell, mounts []cell.Mount) cell.Spec {
	s := cell.Spec{
		ID: c.ID, Family: c.Family, Hostname: hostname(c), User: c.Setup.User, Kernel: c.Setup.Kernel, Mounts: mounts, Workdir: c.Source,
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
		case m.Why == whyWorkspace, m.Why == whyHome && c.Home != nil, m.Why == whyTmp && c.Tmp != nil:
			s.Writes = append(s.Writes, writable(m))
		}
	}
	return s
}

// hostname is a valid host name made of the cell's name.
func hostname(c *state.Cell) string {
	name := strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '-'
	}, c.Title()), "-")
	return orElse(name, string(c.ID))
}
