package live

import (
	"context"
	"io"
	"path/filepath"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// ReadFiles sends a path of a cell as a tar archive. The cell is made live
// for it, so that the path means what it means to its processes.
func (m *Manager) ReadFiles(ctx context.Context, id cell.ID, path string, w io.Writer) error {
	inst, c, release, err := m.ensureLive(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	return m.orEnded(id, inst, inst.ReadFiles(ctx, inCell(&c, path), w))
}

// WriteFiles extracts a tar archive below a directory of a cell.
func (m *Manager) WriteFiles(ctx context.Context, id cell.ID, path string, r io.Reader) error {
	inst, c, release, err := m.ensureLive(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	return m.orEnded(id, inst, inst.WriteFiles(ctx, inCell(&c, path), c.Setup.User, r))
}

// inCell makes a path absolute: relative ones begin in the workspace.
func inCell(c *state.Cell, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(c.Source, path)
}
