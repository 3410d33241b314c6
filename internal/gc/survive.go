package gc

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/workspace"
)

// Layers are written without syncs: a result that is thrown away does not wait for a disk.
// What was accepted is synced.

// SyncLayers makes all layers survive power loss. It syncs the file system that they lie on,
// which takes a few milliseconds unless much was just written: one call, whatever the number
// of files, and the base is among them.
func (m *Manager) SyncLayers() error {
	d, err := os.Open(m.cfg.Home.Layers())
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		hint := "check the disk that holds pando's state"
		if durable.IsFull(err) {
			hint = "free some space (`pando gc` shows what pando can free), then try again"
		}
		return cell.Errorf(cell.Unavailable, "gc.SyncLayers", hint, "cannot bring the workspace to the disk: %w", err)
	}
	return nil
}

// Survived reports whether the base of a state, which was recorded at a start of the host with
// its tree, is what it was. After another start it may not be: nothing synced it.
func (m *Manager) Survived(boot string, s workspace.State, tree cell.Digest) (bool, error) {
	if boot == linux.BootID() {
		return true, nil
	}
	p, err := m.cfg.Provider(s.Provider)
	if err != nil {
		return false, err
	}
	t, err := p.Walk(context.Background(), s, m.cfg.Pins)
	if err != nil {
		return false, err
	}
	return t.Digest() == tree, nil
}
