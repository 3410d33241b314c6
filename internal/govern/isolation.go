package govern

import (
	"errors"
	"io/fs"

	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// standingLayers reads the policies of the host and of the user, which govern
// all that is started, each time anew. read is told of each file.
func (m *Manager) standingLayers(read func(layer, name string, text []byte) error) error {
	for _, f := range []struct{ layer, path string }{{policy.LayerHost, m.cfg.HostPolicy}, {policy.LayerUser, m.cfg.Home.Policy}} {
		if f.path == "" {
			continue
		}
		text, err := readPolicy(f.path, f.layer == policy.LayerHost)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = read(f.layer, f.path, text)
		}
		if err != nil { // a bound that can't be read is no reason to go without
			return err
		}
	}
	return nil
}

// MayStart refuses what Isolates does, and to start something in a cell of which the budget is used up.
func (m *Manager) MayStart(c *state.Cell) error {
	if err := m.Isolates(c); err != nil {
		return err
	}
	return m.withinBudget(c)
}

// Isolates refuses to start something in a cell, or to make a cell of it, when its backend isolates less than the policy of the host or the user
// demands now, which may be younger than the cell, or when it has secrets that
// this policy masks. (Its own policy was asked when it was made.) What it has can be
// taken from it, and it can be stopped and removed.
func (m *Manager) Isolates(c *state.Cell) error {
	var layers []policy.Layer
	err := m.standingLayers(func(layer, name string, text []byte) error {
		f, err := policy.ParseFile(name, text)
		layers = append(layers, policy.Layer{Name: layer, File: f})
		return err
	})
	if err != nil {
		return err
	}
	least, origins := policy.Defaults(m.cfg.Host).Isolation.Bound(layers)
	what := "start anything in cell " + c.Title()
	if err := least.Refuse(origins, what, c.Backend); err != nil {
		return err
	}
	word, origins := policy.Defaults(m.cfg.Host).Secrets.Bound(layers)
	return word.Refuse(origins, what, Tracked(c))
}

// Tracked returns the secrets that a cell has because git tracks them.
func Tracked(c *state.Cell) (paths []string) {
	for _, l := range c.LeftOut {
		if l.Kind == workspace.Tracked {
			paths = append(paths, l.Path)
		}
	}
	return paths
}
