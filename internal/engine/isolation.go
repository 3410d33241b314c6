package engine

import (
	"errors"
	"io/fs"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// standingLayers reads the policies of the host and of the user, which govern
// whatever is started, each time anew. read is told of each file.
func (e *Engine) standingLayers(read func(layer, name string, text []byte) error) error {
	for _, f := range []struct{ layer, path string }{{policy.LayerHost, e.cfg.HostPolicy}, {policy.LayerUser, e.cfg.Home.Policy}} {
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

// mayStart refuses whatever would start something in a cell, or make a cell of
// it, when its backend isolates less than the policy of the host or the user
// demands now, which may be younger than the cell, or when it has secrets that
// this policy masks. (Its own policy was asked when it was made.) What it has can be
// taken from it, and it can be stopped and removed.
func (e *Engine) mayStart(c *state.Cell) error {
	var layers []policy.Layer
	err := e.standingLayers(func(layer, name string, text []byte) error {
		f, err := policy.ParseFile(name, text)
		layers = append(layers, policy.Layer{Name: layer, File: f})
		return err
	})
	if err != nil {
		return err
	}
	least, origins := policy.Defaults(e.cfg.Host).Isolation.Bound(layers)
	what := "start anything in cell " + c.Title()
	if err := least.Refuse(origins, what, c.Backend); err != nil {
		return err
	}
	word, origins := policy.Defaults(e.cfg.Host).Secrets.Bound(layers)
	return word.Refuse(origins, what, trackedIn(c))
}

// trackedIn returns the secrets that a cell has because git tracks them.
func trackedIn(c *state.Cell) (paths []string) {
	for _, l := range c.LeftOut {
		if l.Kind == workspace.Tracked {
			paths = append(paths, l.Path)
		}
	}
	return paths
}

// backendUnder is the backend that is asked for; without one, the first of this
// installation that isolates enough for a policy.
func (e *Engine) backendUnder(asked string, least policy.Isolation) (backend.Backend, error) {
	b, err := e.backend(asked)
	if err != nil || asked != "" && asked != "auto" || least.Allows(b.Name()) {
		return b, err
	}
	for _, o := range e.cfg.Backends {
		if least.Allows(o.Name()) {
			return o, nil
		}
	}
	return b, nil
}

// planBackend chooses the backend of a cell that is to be made, and refuses one
// that isolates less than the policy of the run demands.
func (e *Engine) planBackend(p *runPlan) (err error) {
	if p.cell == nil {
		if p.backend, err = e.backendUnder(orElse(p.req.Backend, p.req.Prefer), p.policy.Isolation); err != nil {
			return err
		}
	}
	return p.policy.Isolation.Refuse(p.policy.Origins, "run", p.backend.Name())
}
