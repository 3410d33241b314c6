package overlay

import (
	"context"
	"os"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/workspace"
)

// Tree implements workspace.Provider: it applies the topmost layer of s to
// base, as overlayfs would show it.
func (p *Provider) Tree(ctx context.Context, base *workspace.Tree, s workspace.State) (*workspace.Tree, error) {
	if len(s.Layers) == 0 {
		return base, nil
	}
	return p.apply(ctx, base, s.Layers[len(s.Layers)-1])
}

// Walk implements workspace.Provider.
func (p *Provider) Walk(ctx context.Context, s workspace.State, objs workspace.Objects) (*workspace.Tree, error) {
	t, err := workspace.EmptyTree(objs)
	for _, l := range s.Layers {
		if err != nil {
			return nil, err
		}
		t, err = p.apply(ctx, t, l)
	}
	return t, err
}

// item is one thing in a layer, with what overlayfs's marks say of it.
type item struct {
	workspace.Found
	entry    workspace.Entry
	whiteout bool
	marks
}

func (p *Provider) apply(ctx context.Context, base *workspace.Tree, layer string) (*workspace.Tree, error) {
	root, err := workspace.OpenRoot(p.fs(layer))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return nil, err
	}
	found, err := workspace.Collect(ctx, root)
	if err != nil {
		return nil, err
	}
	items := make([]item, len(found)+1)
	items[0].Found = workspace.Found{Stat: workspace.StatOf(&st)}
	for i := range found {
		items[i+1].Found = found[i]
	}
	var mu sync.Mutex
	var skip []string
	err = workspace.Parallel(ctx, len(items), func(i int) error {
		it := &items[i]
		it.entry = workspace.EntryOf(&it.Found)
		switch it.entry.Type {
		case workspace.CharDev:
			it.whiteout = it.Rdev == 0
			return nil
		case 0:
			mu.Lock()
			defer mu.Unlock()
			skip = append(skip, it.Path)
			return nil
		case workspace.Folder:
			var err error
			if it.marks, err = p.marks(root, it.Path); err != nil {
				return err
			}
		}
		return workspace.ReadEntry(root, it.Path, &it.entry)
	})
	if err != nil {
		return nil, err
	}
	ed := base.Edit()
	// origin maps each directory of the layer to the one of the base that is
	// merged below it; "\x00" stands for none.
	origin := map[string]string{}
	for i := range items {
		it := &items[i]
		switch {
		case it.entry.Type == 0:
			continue
		case it.whiteout:
			err = ed.Remove(it.Path)
		default:
			err = ed.Put(it.Path, it.entry)
			if err == nil && it.entry.Type == workspace.Folder {
				from := below(origin, it)
				origin[it.Path] = from
				if it.redirect != "" && from != none {
					err = ed.Graft(it.Path, base, from)
				} else if it.opaque {
					err = ed.Clear(it.Path)
				}
			}
			if it.entry.Type == workspace.File && it.Stat.Nlink > 1 {
				ed.Link(it.Path, workspace.LinkKey(&it.Stat))
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return ed.Commit()
}

// none is the origin of a directory with nothing below it.
const none = "\x00"

// below returns the path in the base of what is merged below a directory.
func below(origin map[string]string, it *item) string {
	if it.Path == "" {
		return ""
	}
	dir, name := path.Split(it.Path)
	up := origin[strings.TrimSuffix(dir, "/")]
	switch {
	case it.opaque:
		return none
	case strings.HasPrefix(it.redirect, "/"):
		return strings.Trim(path.Clean(it.redirect), "/")
	case up == none:
		return none
	case it.redirect != "":
		name = it.redirect
	}
	return path.Join(up, name)
}

// marks are what overlayfs wrote on a directory.
type marks struct {
	opaque   bool   // hides the directory below
	redirect string // it was renamed: its old name, or its old path from the root if that begins with a slash
}

// marks reads the marks of the directory at a path below the top of a layer.
func (p *Provider) marks(root *linux.Dir, path string) (m marks, err error) {
	err = workspace.WithRights(root, path, func() error {
		fd, err := workspace.OpenBeneath(root, path, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		opaque, err := p.readMark(fd, "opaque")
		if err != nil {
			return err
		}
		m.opaque = opaque == "y"
		m.redirect, err = p.readMark(fd, "redirect")
		return err
	})
	return m, err
}

// readMark reads one of overlayfs's attributes, "" when it is not there.
func (p *Provider) readMark(fd int, name string) (string, error) {
	buf := make([]byte, 4096)
	n, err := unix.Fgetxattr(fd, p.prefix+name, buf)
	if err == unix.ENODATA || err == unix.EOPNOTSUPP {
		return "", nil
	}
	if err != nil {
		return "", os.NewSyscallError("getxattr "+p.prefix+name, err)
	}
	return string(buf[:n]), nil
}
