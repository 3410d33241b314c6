package microvm

import (
	"context"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gofer"
	"github.com/pando-dev/pando/internal/keeper"
)

// denials are what stands in the place of denied programs in a machine's files.
func (m *machine) denials() (paths []string, by map[string]cell.Denial) {
	by = map[string]cell.Denial{}
	for _, x := range m.spec.Mounts {
		if x.Denies != nil {
			paths = append(paths, x.Target)
			by[x.Target] = *x.Denies
		}
	}
	return paths, by
}

// executed asks who serves the machine's files how often denied programs were executed,
// since the first time. A machine's kernel says so when it opens them; whoever has taken
// it over says what he likes.
func (m *machine) executed(files *gofer.Remote) map[keeper.Denied]int64 {
	paths, by := m.denials()
	if files == nil || len(paths) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stillGrace) // who gives up can ask nothing any more
	defer cancel()
	times, _ := files.Executed(ctx, paths) // or it has ended, and nobody knows
	out := map[keeper.Denied]int64{}
	for path, n := range times {
		out[keeper.Denied{Program: path, Denial: by[path]}] = n
	}
	return out
}

// DeniedPrograms implements keeper.Denier.
func (d *Driver) DeniedPrograms(id cell.ID) map[keeper.Denied]int64 {
	m, ok := d.Kernel(id).(*machine)
	if !ok {
		return nil
	}
	m.mu.Lock()
	files := m.gofer
	m.mu.Unlock()
	return m.executed(files)
}
