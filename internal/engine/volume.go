package engine

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/volume"
	"github.com/pando-dev/pando/internal/workspace"
)

// private is the folder of what belongs to one cell alone: its home, its /tmp,
// its layers over caches. With a volume it is a file system of its own, and
// holds the writable layer, too.
func (e *Engine) private(id cell.ID) string {
	return filepath.Join(e.cfg.Home.Cells(), string(id))
}

// begin gives a cell at rest a writable layer over a checkpoint. A checkpoint of
// too many layers becomes one of fewer, of the same files; the caller commits it
// with the cell. Until then nothing names the new layer, and a crash leaves it
// to the collection.
func (e *Engine) begin(ctx context.Context, c *state.Cell, p workspace.Provider, at *state.Checkpoint) error {
	t, err := e.tree(context.WithoutCancel(ctx), at)
	if err != nil {
		return err
	}
	if err := e.giveVolume(ctx, c); err != nil {
		return err
	}
	place := ""
	if c.Volume > 0 {
		place = filepath.Join(e.private(c.ID), "layers")
		if err := os.MkdirAll(place, 0o700); err != nil {
			return err
		}
	}
	if s, err := p.Compact(ctx, at.State, t); err == nil {
		at.State = s
	} else { // the kernel's limit is further away than ours
		e.log.Warn("cannot merge the layers of a checkpoint", "checkpoint", at.ID, "layers", len(at.State.Layers), "error", err)
	}
	g, err := e.beginJoined(ctx, c, p, at.State, t, place)
	if err != nil {
		return full(err)
	}
	c.Gen = &g
	return nil
}

// beginJoined makes a layer in which the hard links of its base hold, as far as they
// fit (see workspace.Tree.Joinable). Where there is no room for that the layer is made
// without: then a name comes apart from the others when it is written.
func (e *Engine) beginJoined(ctx context.Context, c *state.Cell, p workspace.Provider, at workspace.State, t *workspace.Tree, place string) (workspace.Generation, error) {
	g, err := p.Begin(ctx, at, t.Root, place)
	if err != nil || len(t.Links) == 0 {
		return g, err
	}
	groups, _, err := t.Joinable(workspace.MaxJoinedNames, c.JoinedBytes(workspace.MaxJoinedBytes))
	if err == nil {
		err = p.Join(ctx, g, groups)
	}
	if err == nil {
		return g, nil
	}
	if err := p.Drop(g.Layer); err != nil {
		return workspace.Generation{}, err
	}
	if ctx.Err() != nil {
		return workspace.Generation{}, context.Cause(ctx)
	}
	e.log.Warn("cannot join the hard links of a workspace", "cell", c.ID, "error", err)
	return p.Begin(ctx, at, t.Root, place)
}

// giveVolume makes the volume of a new cell for which a limit on its disk was
// asked, where the backend can have one; elsewhere what it writes is counted.
// A volume's size is for its cell's life.
func (e *Engine) giveVolume(ctx context.Context, c *state.Cell) error {
	asked := slices.Contains(c.Setup.Asked, "disk")
	if c.Volume > 0 {
		if asked && c.Limits().Disk != c.Volume {
			return cell.Errorf(cell.Conflict, "engine.volume", "leave out --disk, or work in a new cell",
				"cell %s has a disk of %s, which cannot change", c.Title(), policy.FormatSize(c.Volume))
		}
		return volume.Open(e.private(c.ID))
	}
	if !asked {
		return nil
	}
	b, err := e.backend(c.Backend)
	if err != nil {
		return err
	}
	caps, err := e.caps(ctx, b)
	if err != nil || caps.DiskLimit != "" {
		return err
	}
	dir := e.private(c.ID)
	if _, err := os.Lstat(dir); err == nil {
		return nil // it has written things already, which would be covered
	}
	if err := volume.Make(ctx, dir, c.Limits().Disk); err != nil {
		return full(err)
	}
	c.Volume = c.Limits().Disk
	return nil
}

// openVolumes opens the volumes of the cells that there are: an earlier
// daemon's mounts ended with it.
func (e *Engine) openVolumes() {
	for _, c := range e.reg.Cells() {
		if c.Volume == 0 {
			continue
		}
		if err := volume.Open(e.private(c.ID)); err != nil {
			e.log.Error("cannot open the disk of a cell", "cell", c.ID, "error", err)
		}
	}
}
