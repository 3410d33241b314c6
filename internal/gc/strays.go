package gc

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/volume"
)

// Strays are what an earlier daemon made or was removing when it ended, and nothing names.
type Strays struct {
	Layers  map[string][]string // by provider
	Folders []cell.ID           // of cells
	Files   []string            // of sources, that were to be renamed
}

// Strays finds them. It is called before anything goes on that could make a layer which no
// record names yet.
func (m *Manager) Strays() *Strays {
	s := &Strays{Layers: map[string][]string{}}
	beside := sync.OnceValue(m.beside)
	for _, p := range m.cfg.Providers {
		all, err := p.Layers()
		if err != nil {
			m.cfg.Log.Warn("cannot look for layers that nothing names", "error", err)
			continue
		}
		for _, l := range all {
			if m.unneeded(beside, l, "") {
				s.Layers[p.Name()] = append(s.Layers[p.Name()], l)
			}
		}
	}
	names, _ := filepath.Glob(filepath.Join(m.cfg.Home.Cells(), "c-*"))
	seen := map[cell.ID]bool{}
	for _, n := range names {
		id := cell.ID(strings.TrimSuffix(filepath.Base(n), volume.Suffix))
		if c, err := m.cfg.Records.Cell(id); !seen[id] && (err != nil || c.State == cell.Removed) {
			s.Folders = append(s.Folders, id)
		}
		seen[id] = true
	}
	s.Files, _ = filepath.Glob(filepath.Join(m.cfg.Home.Sources(), "*.new"))
	return s
}

// RemoveStrays takes them away. Cells that were using them have ended by now.
func (m *Manager) RemoveStrays(s *Strays) {
	for _, id := range s.Folders {
		if err := m.RemoveFolder(id); err != nil && !os.IsNotExist(err) {
			m.cfg.Log.Warn("cannot remove the files of a cell that is gone", "cell", id, "error", err)
		}
	}
	for _, f := range s.Files {
		os.Remove(f)
	}
	for provider, layers := range s.Layers {
		for _, l := range layers {
			m.DropLayer(provider, l)
		}
	}
}
