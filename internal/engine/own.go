package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/volume"
	"github.com/pando-dev/pando/internal/workspace"
)

// moveOwn brings a home and a /tmp that became layers of their own to where
// layers are. What has them open keeps them.
func (e *Engine) moveOwn(c *state.Cell, p workspace.Provider) error {
	for name, g := range map[string]*workspace.Generation{"home": c.Home, "tmp": c.Tmp} {
		if g == nil || len(g.Base.Layers) > 0 {
			continue
		}
		from := filepath.Join(e.private(c.ID), name)
		if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
			continue // it was one from the beginning, or was moved
		}
		m := p.Mount(*g, "/")
		failpoint.Step("move a cell's " + name)
		at, err := filepath.Rel(e.cfg.Home.State, from)
		if err != nil {
			return err
		}
		to, err := filepath.Rel(e.cfg.Home.State, writable(&m)) // a directory that is empty
		if err != nil {
			return err
		}
		if err := volume.Move(e.cfg.Home.State, at, to); err != nil {
			return err
		}
	}
	return nil
}

// ownDir is the directory of the host that holds what a cell wrote to its home
// or /tmp; "" when it has none. What it has from the cell that it was forked
// from is not there.
func (e *Engine) ownDir(c *state.Cell, role cell.Role) string {
	g := c.Home
	if role == cell.RoleTmp {
		g = c.Tmp
	}
	for i := range c.Setup.Mounts {
		m := &c.Setup.Mounts[i]
		if m.Role != role {
			continue
		}
		if g != nil {
			if p, err := e.providerOf(c.Provider); err == nil {
				own := p.Mount(*g, m.Target)
				return writable(&own)
			}
		}
		return m.Source
	}
	return ""
}
