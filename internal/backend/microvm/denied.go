package microvm

import (
	"context"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/fuseproxy"
	"github.com/pando-dev/pando/internal/keeper/server"
)

// denials returns the files that replace denied programs in a machine.
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

// executed asks the fuseproxy how often denied programs were executed since the first query. A
// machine's kernel reports it when it opens them; a compromised kernel may report anything.
func (m *machine) executed(files *fuseproxy.Remote) map[server.Denied]int64 {
	paths, by := m.denials()
	if files == nil || len(paths) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stillGrace) // after a cancelled query the connection is unusable
	defer cancel()
	times, _ := files.Executed(ctx, paths) // on an error the counts are unknown
	out := map[server.Denied]int64{}
	for path, n := range times {
		out[server.Denied{Program: path, Denial: by[path]}] = n
	}
	return out
}

// DeniedPrograms implements server.Observer.
func (d *Driver) DeniedPrograms(id cell.ID) map[server.Denied]int64 {
	m, ok := d.Kernel(id).(*machine)
	if !ok {
		return nil
	}
	m.mu.Lock()
	files := m.proxy
	m.mu.Unlock()
	return m.executed(files)
}
