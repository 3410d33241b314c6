package engine

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/volume"
)

// strays are what an earlier daemon made or was removing when it ended, and
// nothing names: layers, folders of cells, files that were to be renamed.
type strays struct {
	layers  map[string][]string // by provider
	folders []cell.ID
	files   []string
}

// strays looks for them before anything goes on that could make a layer which
// is not named yet.
func (e *Engine) strays() strays {
	s := strays{layers: map[string][]string{}}
	needed, _, _ := e.needed()
	for _, p := range e.cfg.Providers {
		all, err := p.Layers()
		if err != nil {
			e.log.Warn("cannot look for layers that nothing names", "error", err)
			continue
		}
		for _, l := range all {
			if !needed[l] {
				s.layers[p.Name()] = append(s.layers[p.Name()], l)
			}
		}
	}
	names, _ := filepath.Glob(filepath.Join(e.cfg.Home.Cells(), "c-*"))
	seen := map[cell.ID]bool{}
	for _, n := range names {
		id := cell.ID(strings.TrimSuffix(filepath.Base(n), volume.Suffix))
		if c, err := e.reg.Cell(id); !seen[id] && (err != nil || c.State == cell.Removed) {
			s.folders = append(s.folders, id)
		}
		seen[id] = true
	}
	s.files, _ = filepath.Glob(e.sourcePath("*", "*.new"))
	return s
}

// remove takes them away. Cells that were using them have ended by now.
func (s strays) remove(e *Engine) {
	for _, id := range s.folders {
		if err := e.removePrivate(id); err != nil && !os.IsNotExist(err) {
			e.log.Warn("cannot remove the files of a cell that is gone", "cell", id, "error", err)
		}
	}
	for _, f := range s.files {
		os.Remove(f)
	}
	for provider, layers := range s.layers {
		for _, l := range layers {
			e.dropLayer(provider, l)
		}
	}
}
