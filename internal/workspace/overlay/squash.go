package overlay

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/workspace"
)

// Squash makes one layer that, above any others, is what layers, bottom first, are together. Its
// files are hard links to theirs: no data is copied. Layers with redirects are an error: only
// mounts without linux.OverlayOptions.Plain make them.
func (p *Provider) Squash(ctx context.Context, layers []string) (_ string, err error) {
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	layer, err := p.newLayer(workspace.Entry{Type: workspace.Folder, Mode: 0o700}, "")
	if err != nil {
		if layer != "" {
			err = errors.Join(err, p.Drop(layer))
		}
		return "", err
	}
	undo.Add("drop the squashed layer", func(context.Context) error { return p.Drop(layer) })
	s := &squash{p: p, top: p.fs(layer)}
	if s.to, err = workspace.OpenRoot(s.top); err != nil {
		return "", err
	}
	defer s.to.Close()
	for _, l := range layers {
		if err := s.add(ctx, p.fs(l)); err != nil {
			return "", err
		}
	}
	if err := s.dress("", &s.root); err != nil {
		return "", err
	}
	return layer, p.dropWork(layer)
}

// squash is a layer that others are joined in.
type squash struct {
	p    *Provider
	top  string
	to   *linux.Dir
	root squashed
}

// squashed is an entry of it, as the last layer that has it says.
type squashed struct {
	what workspace.Type
	in   map[string]*squashed // of a folder

	// Of a folder, what it is given in the end.
	found  workspace.Found
	xattrs []workspace.XAttr
	opaque bool
}

// at finds the folder that an entry is in, which a layer before, or this one, has.
func (s *squash) at(path string) (in *squashed, name string) {
	in = &s.root
	for {
		first, rest, more := strings.Cut(path, "/")
		if !more || in == nil {
			return in, first
		}
		in, path = in.in[first], rest
	}
}

// whiteout stands, among types of entries, for what hides a name.
const whiteout = workspace.CharDev

// add puts a layer above what there is.
func (s *squash) add(ctx context.Context, fs string) error {
	from, err := workspace.OpenRoot(fs)
	if err != nil {
		return err
	}
	defer from.Close()
	all, err := workspace.Collect(ctx, from)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &st); err != nil {
		return err
	}
	top := workspace.Found{Stat: workspace.StatOf(&st), UID: st.Uid, GID: st.Gid}
	if err := s.folder(from, &top); err != nil {
		return err
	}
	for i := range all {
		if err := ctx.Err(); err != nil {
			return err
		}
		f := &all[i]
		if f.Type() == workspace.Folder {
			err = s.folder(from, f)
		} else {
			err = s.other(from, f)
		}
		if err != nil {
			return &os.PathError{Op: "squash", Path: linux.Abridged(f.Path), Err: err}
		}
	}
	return nil
}

// folder puts a folder there.
func (s *squash) folder(from *linux.Dir, f *workspace.Found) error {
	m, err := s.p.marks(from, f.Path)
	if err != nil {
		return err
	}
	if m.redirect != "" {
		return errors.New("it has a folder that was renamed")
	}
	d := &squashed{what: workspace.Folder, found: *f, opaque: m.opaque}
	if d.xattrs, err = s.xattrs(from, f.Path); err != nil {
		return err
	}
	if f.Path == "" {
		d.in = s.root.in
		s.root = *d
		return nil
	}
	in, name := s.at(f.Path)
	if in == nil {
		return errors.New("its folder is not in the layer")
	}
	old := in.in[name]
	if old != nil && old.what == workspace.Folder && !m.opaque {
		d.in, d.opaque = old.in, old.opaque
		in.in[name] = d
		return nil
	}
	if old != nil {
		d.opaque = d.opaque || old.what != workspace.Folder // nothing shows through what was hidden
		if err := s.remove(f.Path); err != nil {
			return err
		}
	}
	in.put(name, d)
	return s.to.At(f.Path, func(at string) error { return os.Mkdir(at, 0o700) })
}

func (d *squashed) put(name string, e *squashed) {
	if d.in == nil {
		d.in = map[string]*squashed{}
	}
	d.in[name] = e
}

// other puts a file, a whiteout, or something else there.
func (s *squash) other(from *linux.Dir, f *workspace.Found) error {
	if f.Type() == 0 || f.Type() == workspace.Block || f.Type() == workspace.CharDev && f.Rdev != 0 {
		return nil // no layer has one
	}
	in, name := s.at(f.Path)
	if in == nil {
		return errors.New("its folder is not in the layer")
	}
	if in.in[name] != nil {
		if err := s.remove(f.Path); err != nil {
			return err
		}
	}
	in.put(name, &squashed{what: f.Type()})
	if f.Type() == whiteout {
		return s.to.At(f.Path, func(at string) error { return unix.Mknod(at, unix.S_IFCHR, 0) })
	}
	return workspace.WithRights(from, f.Path, func() error { return workspace.LinkInto(from, f.Path, s.to, f.Path) })
}

// remove takes away what is at a path.
func (s *squash) remove(path string) error {
	s.to.Forget()
	return workspace.RemoveTree(filepath.Join(s.top, path))
}

func (s *squash) xattrs(from *linux.Dir, path string) (xs []workspace.XAttr, err error) {
	err = workspace.WithRights(from, path, func() error {
		fd, err := workspace.OpenBeneath(from, path, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		xs, err = workspace.ReadXAttrs(fd, workspace.KeptXAttr)
		return err
	})
	return xs, err
}

// dress gives a folder and those in it their owners, modes, times and marks, children first.
func (s *squash) dress(path string, d *squashed) error {
	for name, e := range d.in {
		if e.what == workspace.Folder {
			if err := s.dress(strings.TrimPrefix(path+"/"+name, "/"), e); err != nil {
				return err
			}
		}
	}
	err := s.to.At(path, func(at string) error {
		if d.opaque && path != "" {
			if err := unix.Lsetxattr(at, s.p.prefix+"opaque", []byte("y"), 0); err != nil {
				return err
			}
		}
		if err := workspace.Own(at, d.found.UID, d.found.GID); err != nil {
			return err
		}
		return applyEntry(at, workspace.Entry{Mode: d.found.Stat.Mode, MTime: d.found.Stat.MTime, XAttrs: d.xattrs})
	})
	if err != nil {
		return &os.PathError{Op: "squash", Path: linux.Abridged(path), Err: err}
	}
	return nil
}
