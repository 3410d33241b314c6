package overlay

import (
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// Contents implements workspace.Provider.
func (p *Provider) Contents(s workspace.State) workspace.Contents { return p.contents(s) }

func (p *Provider) contents(s workspace.State) *contents {
	return &contents{p: p, s: s, dirs: map[string][]place{}}
}

// contents finds files in a stack of layers as overlayfs would.
type contents struct {
	p *Provider
	s workspace.State

	mu   sync.Mutex         // guards dirs
	dirs map[string][]place // what merged found; layers don't change
}

func (c *contents) Open(name string, e workspace.Entry) (io.ReadCloser, error) {
	at, mode, err := c.find(name)
	if err == nil && mode&unix.S_IFMT != unix.S_IFREG {
		err = c.no(name)
	}
	if err != nil {
		return nil, err
	}
	root, err := c.root(at)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	fd, err := workspace.OpenReadable(root, at.at, false)
	if err != nil {
		return nil, err
	}
	return workspace.Verified(os.NewFile(uintptr(fd), name), name, e), nil
}

// root opens the layer that a place is in.
func (c *contents) root(at place) (*os.File, error) {
	return workspace.OpenRoot(c.p.fs(c.s.Layers[at.layer]))
}

func (c *contents) no(name string) error {
	return cell.Errorf(cell.NotFound, "overlay.find", "", "no file %s in the workspace's layers", name)
}

// place is a directory or file in one layer.
type place struct {
	layer int // index into the state's layers
	at    string
}

// find returns where what is at name really lies, which is another path below
// a renamed directory, and its mode.
func (c *contents) find(name string) (place, uint32, error) {
	dir, comp := path.Split(name)
	list, err := c.merged(strings.TrimSuffix(dir, "/"))
	if err != nil {
		return place{}, 0, err
	}
	for _, d := range list {
		at := place{d.layer, path.Join(d.at, comp)}
		mode, err := c.mode(at)
		switch {
		case err != nil:
			return place{}, 0, err
		case mode == 0:
			continue
		case mode&unix.S_IFMT == unix.S_IFCHR: // a whiteout: it hides what is below
			return place{}, 0, c.no(name)
		}
		return at, mode, nil
	}
	return place{}, 0, c.no(name)
}

// merged lists the directories that make up dir, topmost first.
func (c *contents) merged(dir string) ([]place, error) {
	return c.mergedFrom(len(c.s.Layers)-1, dir)
}

// mergedFrom is merged as layers up to top show it, by overlayfs's rules: a
// non-directory or an opaque mark ends the list, a redirect goes on under
// another name.
func (c *contents) mergedFrom(top int, dir string) ([]place, error) {
	whole := top == len(c.s.Layers)-1
	if whole {
		c.mu.Lock()
		list, ok := c.dirs[dir]
		c.mu.Unlock()
		if ok {
			return list, nil
		}
	}
	list, err := c.merge(top, dir)
	if whole && err == nil {
		c.mu.Lock()
		c.dirs[dir] = list
		c.mu.Unlock()
	}
	return list, err
}

func (c *contents) merge(top int, dir string) ([]place, error) {
	if dir == "" {
		var all []place
		for i := top; i >= 0; i-- {
			all = append(all, place{i, ""})
		}
		return all, nil
	}
	up, comp := path.Split(dir)
	above, err := c.mergedFrom(top, strings.TrimSuffix(up, "/"))
	if err != nil {
		return nil, err
	}
	var list []place
	for _, d := range above {
		here := place{d.layer, path.Join(d.at, comp)}
		mode, err := c.mode(here)
		if err != nil {
			return nil, err
		}
		if mode == 0 {
			continue
		}
		if mode&unix.S_IFMT != unix.S_IFDIR {
			break
		}
		list = append(list, here)
		m, err := c.marks(here)
		if err != nil {
			return nil, err
		}
		if m.opaque {
			break
		}
		if strings.HasPrefix(m.redirect, "/") {
			more, err := c.mergedFrom(d.layer-1, strings.Trim(path.Clean(m.redirect), "/"))
			return append(list, more...), err
		}
		if m.redirect != "" {
			comp = m.redirect
		}
	}
	return list, nil
}

func (c *contents) marks(at place) (marks, error) {
	root, err := c.root(at)
	if err != nil {
		return marks{}, err
	}
	defer root.Close()
	return c.p.marks(root, at.at)
}

func (c *contents) full(p place) string { return c.p.fs(c.s.Layers[p.layer]) + "/" + p.at }

// mode returns the mode bits of what is at a place, 0 when nothing is.
func (c *contents) mode(at place) (uint32, error) {
	var st unix.Stat_t
	err := unix.Lstat(c.full(at), &st)
	if err == unix.EACCES {
		err = c.within(at, func() error { return unix.Lstat(c.full(at), &st) })
	}
	switch {
	case err == nil:
		return st.Mode, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return 0, nil
	}
	return 0, &os.PathError{Op: "stat", Path: at.at, Err: err}
}

// within does f, which needs the directory that a place is in.
func (c *contents) within(at place, f func() error) error {
	root, err := c.root(at)
	if err != nil {
		return err
	}
	defer root.Close()
	return workspace.WithRights(root, workspace.Parent(at.at), f)
}
