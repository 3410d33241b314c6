package engine

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/fault"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// writeApplied writes a patch of what an apply really did to the source, which
// is known to have been before, into the run's folder: git apply -R takes that
// back. It may be less than the run's own patch (something was held back), and
// more (earlier runs of the cell came along).
func (e *Engine) writeApplied(ctx context.Context, run *Run, k *Checkpoint, before *workspace.Tree, after workspace.Side, paths []string) (name string, err error) {
	tree, err := workspace.Taken(before, after.Tree, paths)
	if err != nil {
		return "", err
	}
	old := workspace.Side{Tree: before, Contents: past{e, ctx, k.ID}}
	d, err := diff.Compare(ctx, old, workspace.Side{Tree: tree, Contents: after.Contents}, diff.Options{NoRenames: true})
	if err != nil {
		return "", err
	}
	fault.Step("write a patch of what was applied")
	f, err := createNext(run.Folder, "applied", ".patch")
	if err != nil {
		return "", err
	}
	info, err := d.Patch(ctx, f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil && info.TooLarge {
		err = fmt.Errorf("the patch would be larger than %s holds", filepath.Base(f.Name()))
	}
	if err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// createNext creates stem.ext, or stem-2.ext and so on: a run may be applied
// again, with more included.
func createNext(dir, stem, ext string) (*os.File, error) {
	for n := 1; ; n++ {
		name := stem + ext
		if n > 1 {
			name = fmt.Sprintf("%s-%d%s", stem, n, ext)
		}
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if !os.IsExist(err) {
			return f, err
		}
	}
}

// past finds the contents of what the source was: each file comes from the
// import, or from a run that was applied since, so that some checkpoint on the
// way to the newest has it.
type past struct {
	e      *Engine
	ctx    context.Context
	newest cell.CheckpointID
}

// Open implements workspace.Contents.
func (p past) Open(path string, want workspace.Entry) (io.ReadCloser, error) {
	for id := p.newest; id != ""; {
		k, err := p.e.reg.checkpoint(id)
		if err != nil {
			return nil, err
		}
		id = k.Parent
		side, err := p.e.side(p.ctx, &k)
		if err != nil {
			continue // it has expired
		}
		if has, err := side.Tree.Lookup(path); err == nil && has.Type == want.Type && has.Digest == want.Digest {
			return side.Contents.Open(path, has)
		}
	}
	return nil, cell.Errorf(cell.NotFound, "engine.past", "", "no checkpoint has %s as it was in the source", path)
}
