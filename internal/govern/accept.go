package govern

import (
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// SignOffs is what has to be signed in a cell before it is accepted, and by which approvers: what the policies of the host, the user and the
// project say now, with what those of its runs said, and of the runs that these come from, as far as they are kept. Approvers are those of now. A policy that can't be read is an error: without it, less
// might be demanded.
func (m *Manager) SignOffs(c *state.Cell, runs, from []state.Run) (policy.Accept, error) {
	var layers []policy.Layer
	add := func(layer, name string, text []byte) error {
		f, err := policy.ParseFile(name, text)
		layers = append(layers, policy.Layer{Name: layer, File: f})
		return err
	}
	if err := m.standingLayers(add); err != nil {
		return policy.Accept{}, err
	}
	if !c.NoSource {
		text, _, err := m.projectPolicy(c.Top())
		if err == nil && text != nil {
			err = add(policy.LayerProject, ProjectPolicy, text)
		}
		if err != nil {
			return policy.Accept{}, err
		}
	}
	rule, err := policy.MergeAccept(layers)
	if err != nil {
		return rule, err
	}
	for i := range runs {
		if runs[i].NeverStarted() || runs[i].Policy == "" {
			continue
		}
		p, err := m.cfg.RunPolicy(&runs[i])
		if err != nil {
			return rule, err
		}
		rule = rule.Tighten(p.Accept)
	}
	for i := range from {
		if p, err := m.cfg.RunPolicy(&from[i]); err == nil {
			rule = rule.Tighten(p.Accept)
		}
	}
	return rule, nil
}
