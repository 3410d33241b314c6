package engine

import (
	"context"
	"slices"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/spawn"
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

// AllStats returns the resource use of all living cells, and of the host.
func (e *Engine) AllStats(ctx context.Context) (api.Overview, error) {
	out := api.Overview{Cells: map[string]int{}, Stats: []api.Stats{}}
	out.Templates, out.Host.Pooled = e.spawn.Use(ctx)
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
	out.Host.PooledMax, out.Host.Reserved = e.spawn.Most()
	var err error
	if out.Host.MemoryAvailable, out.Host.Memory, err = linux.Memory(); err != nil {
		return out, err
	}
	out.Host.Processes, out.Host.ProcessesMax = spawn.Processes()
	return out, nil
}
