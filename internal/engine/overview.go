package engine

import (
	"context"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/state"
)

// withInstances are the cells that have processes, newest first.
func (e *Engine) withInstances() (out []state.Cell) {
	for _, inst := range e.alive.Instances() {
		if c, err := e.reg.Cell(inst.ID()); err == nil && c.State != cell.Removed {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b state.Cell) int { return a.Key().Compare(b.Key()) })
	return out
}

// AllStats is what everything uses now, and what the host has.
func (e *Engine) AllStats(ctx context.Context) (api.Overview, error) {
	out := api.Overview{Templates: []api.TemplateUse{}, Cells: map[string]int{}, Stats: []api.Stats{}}
	for _, t := range e.reg.Templates() {
		v := e.templateStanding(&t)
		u := api.TemplateUse{Template: t.Name, State: v.State, Cells: e.forksOf(t.Name)}
		if inst := e.alive.Instance(t.Cell); inst != nil {
			if st, err := inst.Stats(ctx); err == nil {
				u.Memory = st.Memory
			}
		} else {
			u.Memory = e.imageSize(&t)
		}
		e.mu.Lock()
		if m := e.measured[t.Name]; m != nil {
			u.PerCell = m.memory
		}
		if p := e.pools[t.Name]; p != nil {
			u.Ready, u.Wanted, u.Hits, u.Misses = len(p.slots), p.want(time.Now()), p.hits, p.misses
			if len(p.slots) > 0 {
				u.OldestMS = time.Since(p.slots[0].made).Milliseconds()
			}
			u.IdleMS = time.Since(p.used).Milliseconds()
			out.Host.Pooled += len(p.slots)
		}
		e.mu.Unlock()
		out.Templates = append(out.Templates, u)
	}
	for k, n := range e.All().Standing() {
		out.Cells[k[0]] += n
	}
	for _, c := range e.withInstances() {
		if c.Template != "" {
			continue
		}
		if s, err := e.Stats(ctx, c.ID); err == nil {
			out.Stats = append(out.Stats, s)
		} else if cell.KindOf(err) == cell.Interrupted {
			return out, err
		}
	}
	out.Host.PooledMax = e.mayPool()
	var err error
	if out.Host.MemoryAvailable, out.Host.Memory, err = linux.Memory(); err != nil {
		return out, err
	}
	out.Host.Processes, out.Host.ProcessesMax = processes()
	e.mu.Lock()
	out.Host.Reserved = e.promised.memory
	e.mu.Unlock()
	return out, nil
}
