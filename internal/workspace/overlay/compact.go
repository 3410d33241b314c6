package overlay

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/workspace"
)

// Compact implements workspace.Provider. The new layer's files are hard links to those of the
// old, immutable ones: no data is copied.
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
	to, err := workspace.OpenRoot(p.fs(layer))
	if err != nil {
		return s, err
	}
	defer to.Close()
	c := p.contents(s).open()
	defer c.close()
	type folder struct {
		path string
		e    workspace.Entry
	}
	dirs := []folder{{"", t.Root}}
	own := func(name string, at place) error {
		var st unix.Stat_t
		if err := c.lstat(at, &st); err != nil {
			return &os.PathError{Op: "stat", Path: linux.Abridged(name), Err: err}
		}
		return to.At(name, func(at string) error { return workspace.Own(at, st.Uid, st.Gid) })
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
		switch e.Type {
		case workspace.Folder:
			dirs = append(dirs, folder{name, e})
			if err := to.At(name, func(at string) error { return os.Mkdir(at, 0o700) }); err != nil {
				return err
			}
			return own(name, from)
		case workspace.File:
			return c.within(from, func() error {
				return c.in(from, func(root *linux.Dir) error { return workspace.LinkInto(root, from.at, to, name) })
			})
		}
		return to.At(name, func(at string) error { return remake(at, e, func() error { return own(name, from) }) })
	})
	if err != nil {
		return s, err
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		err := to.At(dirs[i].path, func(at string) error { return applyEntry(at, dirs[i].e) })
		if err != nil {
			return s, err
		}
	}
	if err := p.dropWork(layer); err != nil {
		return s, err
	}
	return workspace.State{Provider: Name, Layers: []string{layer}}, nil
}

// remake makes the symlink, fifo or socket e at a path. own sets its owner.
func remake(at string, e workspace.Entry, own func() error) error {
	switch e.Type {
	case workspace.Symlink:
		if err := os.Symlink(e.Target, at); err != nil {
			return err
		}
		if err := own(); err != nil {
			return err
		}
	case workspace.Fifo, workspace.Socket:
		kind := uint32(unix.S_IFIFO)
		if e.Type == workspace.Socket {
			kind = unix.S_IFSOCK
		}
		if err := unix.Mknod(at, kind|0o600, 0); err != nil {
			return &os.PathError{Op: "mknod", Path: at, Err: err}
		}
		if err := own(); err != nil {
			return err
		}
		if err := os.Chmod(at, os.FileMode(e.Mode&0o777)); err != nil {
			return err
		}
	default:
		return cell.Errorf(cell.Internal, "overlay.Compact", "", "%s is a %s, which no layer holds", at, e.Type)
	}
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(e.MTime)}
	return unix.UtimesNanoAt(unix.AT_FDCWD, at, ts, unix.AT_SYMLINK_NOFOLLOW)
}
