package engine

import (
	"context"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// Layers are written without syncs: a run that is thrown away anyway shall not
// wait for a disk. What somebody accepted is another thing.

// syncLayers makes all layers survive power loss. It syncs the file system that
// they lie on, which takes a few milliseconds unless much was just written:
// one call, whatever the number of files, and the base is among them.
func (e *Engine) syncLayers() error {
	d, err := os.Open(e.cfg.Home.Layers())
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return full(cell.Errorf(cell.Unavailable, "engine.syncLayers", "check the disk that holds pando's state", "cannot bring the workspace to the disk: %w", err))
	}
	return nil
}

// bootID names the time since this host was started.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // "" is the same at any time: nothing is checked
	return strings.TrimSpace(string(b))
}

// survived reports whether the base that a record names is what it was before
// the host was started anew. It may not be: nobody synced it.
func (e *Engine) survived(rec *sourceRecord) (bool, error) {
	if rec.Boot == bootID() {
		return true, nil
	}
	p, err := e.providerOf(rec.State.Provider)
	if err != nil {
		return false, err
	}
	t, err := p.Walk(context.Background(), rec.State, e.cfg.Objects)
	if err != nil {
		return false, err
	}
	return t.Digest() == rec.Tree, nil
}
