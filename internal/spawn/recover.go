package spawn

import (
	"context"
	"os"
	"path/filepath"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// Recover makes the templates known that are images, and takes away what an earlier daemon left:
// captured memory, and the cells of templates that were replaced or removed.
func (m *Manager) Recover() {
	m.forgetMemory()
	m.recoverImages()
	m.endReplaced()
}

// TakeUp makes the pool known of a template with a cell that an earlier daemon made.
func (m *Manager) TakeUp(c *state.Cell) {
	if _, _, lives := m.live.SealedUse(c.ID); !lives || !m.warmParentOf(c) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.poolOf(c.Template, c.ID)
}

// forgetMemory removes the images of captures, and of copies that were begun.
func (m *Manager) forgetMemory() {
	names, _ := filepath.Glob(filepath.Join(m.cfg.Home.Memory(), "*"))
	for _, n := range names {
		if err := os.RemoveAll(n); err != nil {
			m.log.Warn("cannot remove an image of memory", "path", n, "error", err)
		}
	}
}

// warmParentOf reports whether a cell is the present one of its template.
func (m *Manager) warmParentOf(c *state.Cell) bool {
	t, err := m.reg.Template(c.Template)
	return c.Template != "" && err == nil && t.Cell == c.ID
}

// endReplaced removes the cells of templates that were built anew, or removed,
// when the daemon ended before it could.
func (m *Manager) endReplaced() {
	for _, c := range m.reg.AllCells() {
		if c.Template == "" || c.State == cell.Removed || c.State == cell.Creating || m.warmParentOf(&c) {
			continue
		}
		m.cfg.Work(func(ctx context.Context) {
			if err := m.removeCell(ctx, c.ID); err != nil {
				m.log.Warn("cannot remove the cell of a template that is gone", "template", c.Template, "cell", c.ID, "error", err)
			}
		})
	}
}
