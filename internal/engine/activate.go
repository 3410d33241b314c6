package engine

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
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
	if err := e.awaitGone(ctx, c.ID); err != nil {
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
	e.mu.Lock()
	e.instances[c.ID] = inst
	e.mu.Unlock()
	e.watch(inst)
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

// watchTick is how often a living cell is looked at.
const watchTick = 2 * time.Second

// watch puts a cell to rest when what goes on in it by itself has ended: what
// a run or an exec left behind, or what an earlier daemon started.
func (e *Engine) watch(inst backend.Instance) {
	e.background(func(ctx context.Context) {
		tick := time.NewTicker(watchTick)
		defer tick.Stop()
		for e.instance(inst.ID()) == inst {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if e.runIn(inst.ID()) == nil {
				e.restIfEmpty(ctx, inst.ID())
			}
		}
	})
}

// deactivate ends a cell's processes for cause and takes its instance away.
// When it returns nothing runs in the cell and nothing can be started in it;
// the rest of the taking down goes on behind.
func (e *Engine) deactivate(ctx context.Context, id cell.ID, cause string) error {
	e.mu.Lock()
	inst := e.instances[id]
	delete(e.instances, id)
	lived := e.interps[id] != nil
	delete(e.interps, id)
	e.mu.Unlock()
	if lived {
		e.endInterp(id, cause)
	}
	if inst == nil && e.isUnreached(id) {
		c, err := e.reg.Cell(id)
		if err != nil {
			return err
		}
		b, err := e.backend(c.Backend)
		if err != nil {
			return err
		}
		if inst, err = b.Attach(ctx, id, c.Family); err != nil && cell.KindOf(err) != cell.NotFound {
			return unreachable(&c, err)
		}
		e.mu.Lock()
		delete(e.unreached, id)
		e.mu.Unlock()
		e.endInterp(id, cause)
	}
	if inst == nil {
		return nil
	}
	return e.takeDown(ctx, inst, cause)
}

// quiet is how long processes that were killed may take to be gone, before
// their namespaces are taken away under them.
const quiet = 2 * time.Second

// takeDown ends what runs in an instance that nobody can reach any more, and
// removes it.
func (e *Engine) takeDown(ctx context.Context, inst backend.Instance, cause string) error {
	e.countLastRefused(ctx, inst)
	empty := func() bool {
		list, err := inst.List(ctx)
		return err == nil && len(list) == 0 || cell.KindOf(err) == cell.NotFound // its keeper has it no more
	}
	if !empty() {
		if n, err := inst.KillAll(ctx, cause); err == nil && n > 0 { // a sealed interpreter stays until its cell goes
			for began := time.Now(); time.Since(began) < quiet && !empty(); {
				time.Sleep(time.Millisecond)
			}
		}
		if !empty() {
			return e.removeInstance(ctx, inst, cause)
		}
	}
	gone := make(chan struct{})
	e.mu.Lock()
	e.ending[inst.ID()] = gone
	e.mu.Unlock()
	e.background(func(ctx context.Context) {
		defer func() {
			e.mu.Lock()
			delete(e.ending, inst.ID())
			e.mu.Unlock()
			close(gone)
		}()
		if err := e.removeInstance(ctx, inst, cause); err != nil {
			e.log.Warn("cannot take down a cell", "cell", inst.ID(), "error", err)
		}
	})
	return nil
}

// removeInstance removes an instance, and the writable layers over caches with
// it. It is not given up when the daemon ends.
func (e *Engine) removeInstance(ctx context.Context, inst backend.Instance, cause string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup.Grace)
	defer cancel()
	if err := inst.Remove(ctx, cause); err != nil {
		return err
	}
	return workspace.RemoveTree(filepath.Join(e.private(inst.ID()), "cache"))
}

// awaitGone waits until an instance that is being taken down is gone.
func (e *Engine) awaitGone(ctx context.Context, id cell.ID) error {
	e.mu.Lock()
	gone := e.ending[id]
	e.mu.Unlock()
	if gone == nil {
		return nil
	}
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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
