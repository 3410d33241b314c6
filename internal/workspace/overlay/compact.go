package overlay

import (
	"context"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
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
	c := p.contents(s)
	type folder struct {
		path string
		e    workspace.Entry
	}
	dirs := []folder{{"", t.Root}}
	own := func(name string, at place) error {
		var st unix.Stat_t
		if err := unix.Lstat(c.full(at), &st); err != nil {
			return &os.PathError{Op: "stat", Path: name, Err: err}
		}
		return workspace.Own(filepath.Join(p.fs(layer), name), st.Uid, st.Gid)
	}
	if err := own("", place{layer: len(s.Layers) - 1}); err != nil {
		return s, err
	}
	err = t.Walk("", func(name string, e workspace.Entry) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		from, _, err := c.find(name)
		if err != nil {
			return err
		}
		at := filepath.Join(p.fs(layer), name)
		switch e.Type {
		case workspace.Folder:
			dirs = append(dirs, folder{name, e})
			if err := os.Mkdir(at, 0o700); err != nil {
				return err
			}
			return own(name, from)
		case workspace.File:
			return c.within(from, func() error { return os.Link(c.full(from), at) })
		case workspace.Symlink:
			err = os.Symlink(e.Target, at)
		case workspace.Fifo, workspace.Socket:
			kind := uint32(unix.S_IFIFO)
			if e.Type == workspace.Socket {
				kind = unix.S_IFSOCK
			}
			if err := unix.Mknod(at, kind|0o600, 0); err != nil {
				return &os.PathError{Op: "mknod", Path: name, Err: err}
			}
			if err = own(name, from); err == nil {
				err = os.Chmod(at, os.FileMode(e.Mode&0o777))
			}
		default:
			return cell.Errorf(cell.Internal, "overlay.Compact", "", "%s is a %s, which no layer holds", name, e.Type)
		}
		if err == nil && e.Type == workspace.Symlink {
			err = own(name, from)
		}
		if err != nil {
			return err
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
	if err := p.dropWork(layer); err != nil {
		return s, err
	}
	return workspace.State{Provider: Name, Layers: []string{layer}}, nil
}
