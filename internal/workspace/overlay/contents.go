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
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/workspace"
)

// Contents implements workspace.Provider.
func (p *Provider) Contents(s workspace.State) workspace.Contents { return p.contents(s) }

func (p *Provider) contents(s workspace.State) *contents {
	return &contents{p: p, s: s, found: &found{dirs: map[string][]place{}}}
}

// contents finds files in a stack of layers as overlayfs would.
type contents struct {
	p *Provider
	s workspace.State
	*found
	roots []*linux.Dir // of the layers, while they are open; used by one goroutine
}

// found caches lookups in a stack of immutable layers.
type found struct {
	mu   sync.Mutex         // guards dirs
	dirs map[string][]place // by merged
}

// open returns a view of the same layers that keeps opened layers until it is closed: one lookup
// resolves a path for each folder on the way.
func (c *contents) open() *contents {
	return &contents{c.p, c.s, c.found, make([]*linux.Dir, len(c.s.Layers))}
}

func (c *contents) close() {
	for _, r := range c.roots {
		if r != nil {
			r.Close()
		}
	}
}

func (c *contents) Open(name string, e workspace.Entry) (io.ReadCloser, error) {
	c = c.open()
	defer c.close()
	at, mode, err := c.find(name)
	if err == nil && mode&unix.S_IFMT != unix.S_IFREG {
		err = c.no(name)
	}
	if err != nil {
		return nil, err
	}
	fd := -1
	err = c.in(at, func(root *linux.Dir) error {
		fd, err = workspace.OpenReadable(root, at.at, false)
		return err
	})
	if err != nil {
		return nil, err
	}
	return workspace.Verified(os.NewFile(uintptr(fd), name), name, e), nil
}

// in calls f with the layer of a place.
func (c *contents) in(at place, f func(root *linux.Dir) error) error {
	if c.roots[at.layer] == nil {
		root, err := workspace.OpenRoot(c.p.fs(c.s.Layers[at.layer]))
		if err != nil {
			return err
		}
		c.roots[at.layer] = root
	}
	return f(c.roots[at.layer])
}

func (c *contents) no(name string) error {
	return cell.Errorf(cell.NotFound, "overlay.find", "", "no file %s in the workspace's layers", name)
}

// place is a directory or file in one layer.
type place struct {
	layer int // index into the state's layers
	at    string
}

// find returns the place of name, which is another path below a renamed directory, and its mode.
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
		case mode&unix.S_IFMT == unix.S_IFCHR: // a whiteout: it hides the layers below
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

// mergedFrom is merged for layers up to top, by overlayfs's rules: a non-directory or an opaque
// mark ends the list, a redirect continues under another name.
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

func (c *contents) marks(at place) (m marks, err error) {
	err = c.in(at, func(root *linux.Dir) error {
		m, err = c.p.marks(root, at.at)
		return err
	})
	return m, err
}

// lstat describes the file at a place.
func (c *contents) lstat(p place, st *unix.Stat_t) error {
	return c.in(p, func(root *linux.Dir) error {
		return root.At(p.at, func(at string) error { return unix.Lstat(at, st) })
	})
}

// mode returns the mode bits of the file at a place, 0 when there is none.
func (c *contents) mode(at place) (uint32, error) {
	var st unix.Stat_t
	err := c.lstat(at, &st)
	if errors.Is(err, unix.EACCES) {
		err = c.within(at, func() error { return c.lstat(at, &st) })
	}
	switch {
	case err == nil:
		return st.Mode, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return 0, nil
	}
	return 0, &os.PathError{Op: "stat", Path: at.at, Err: err}
}

// within runs f, which needs the directory of a place.
func (c *contents) within(at place, f func() error) error {
	return c.in(at, func(root *linux.Dir) error { return workspace.WithRights(root, workspace.Parent(at.at), f) })
}
