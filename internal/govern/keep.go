package govern

import (
	"github.com/pando-dev/pando/internal/policy"
)

// KeepEvidence is for how long the policies of the host and the user say now that the evidence of runs is kept, with where each word is said.
func (m *Manager) KeepEvidence() (policy.Keep, map[string]string, error) {
	var layers []policy.Layer
	err := m.standingLayers(func(layer, name string, text []byte) error {
		f, err := policy.ParseFile(name, text)
		layers = append(layers, policy.Layer{Name: layer, File: f})
		return err
	})
	if err != nil {
		return policy.Keep{}, nil, err
	}
	return policy.MergeKeep(layers)
}
