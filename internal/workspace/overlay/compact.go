package overlay

import (
	"context"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/workspace"
)

// Compact implements workspace.Provider. The new layer's files are hard links
// to those of the old ones, which nothing writes any more: no data is copied.
func (p *Provider) Compact(ctx context.Context, s workspace.State, t *workspace.Tree) (_ workspace.State, err error) {
	if len(s.Layers) <= maxLayers {
		return s, nil
	}
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	layer, err := p.newLayer(workspace.Entry{Type: workspace.Folder, Mode: 0o700}, "")
	if err != nil {
		return s, err
	}
	undo.Add("drop the merged layer", func(context.Context) error { return p.Drop(layer) })
	c := &contents{p, s}
	type folder struct {
		path string
		e    workspace.Entry
	}
	dirs := []folder{{"", t.Root}}
	err = t.Walk("", func(name string, e workspace.Entry) error {
		at := filepath.Join(p.fs(layer), name)
		switch e.Type {
		case workspace.Folder:
			dirs = append(dirs, folder{name, e})
			return os.Mkdir(at, 0o700)
		case workspace.File:
			from, err := c.find(name)
			if err != nil {
				return err
			}
			return os.Link(c.full(from), at)
		case workspace.Symlink:
			if err := os.Symlink(e.Target, at); err != nil {
				return err
			}
		case workspace.Fifo:
			if err := unix.Mkfifo(at, e.Mode); err != nil {
				return err
			}
		case workspace.Socket:
			if err := unix.Mknod(at, unix.S_IFSOCK|e.Mode, 0); err != nil {
				return err
			}
		default:
			return nil
		}
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(e.MTime)}
		return unix.UtimesNanoAt(unix.AT_FDCWD, at, ts, unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		return s, err
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := dress(filepath.Join(p.fs(layer), dirs[i].path), dirs[i].e); err != nil {
			return s, err
		}
	}
	os.RemoveAll(filepath.Join(p.root, layer, "work"))
	return workspace.State{Provider: Name, Layers: []string{layer}}, nil
}
