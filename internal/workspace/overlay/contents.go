package overlay

import (
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// Contents implements workspace.Provider.
func (p *Provider) Contents(s workspace.State) workspace.Contents { return &contents{p, s} }

// contents finds files in a stack of layers as overlayfs would.
type contents struct {
	p *Provider
	s workspace.State
}

func (c *contents) Open(name string, e workspace.Entry) (io.ReadCloser, error) {
	at, err := c.find(name)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenFile(c.p.fs(c.s.Layers[at.layer]), unix.O_PATH|unix.O_DIRECTORY, 0)
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

// place is a directory or file in one layer.
type place struct {
	layer int // index into the state's layers
	at    string
}

// find returns where the file at name really lies, which is another path
// below a renamed directory.
func (c *contents) find(name string) (place, error) {
	dir, comp := path.Split(name)
	for _, d := range c.merged(len(c.s.Layers)-1, strings.TrimSuffix(dir, "/")) {
		at := path.Join(d.at, comp)
		switch mode := c.mode(d.layer, at); mode & unix.S_IFMT {
		case 0:
			continue
		case unix.S_IFREG:
			return place{d.layer, at}, nil
		}
		break // a whiteout or something else hides what is below
	}
	return place{}, cell.Errorf(cell.NotFound, "overlay.find", "", "no file %s in the workspace's layers", name)
}

// merged lists the directories that make up dir as layers up to top show it,
// topmost first, by overlayfs's rules: a non-directory or an opaque mark ends
// the list, a redirect goes on under another name.
func (c *contents) merged(top int, dir string) []place {
	if dir == "" {
		var all []place
		for i := top; i >= 0; i-- {
			all = append(all, place{i, ""})
		}
		return all
	}
	up, comp := path.Split(dir)
	var list []place
	for _, d := range c.merged(top, strings.TrimSuffix(up, "/")) {
		here := place{d.layer, path.Join(d.at, comp)}
		mode := c.mode(here.layer, here.at)
		if mode == 0 {
			continue
		}
		if mode&unix.S_IFMT != unix.S_IFDIR {
			break
		}
		list = append(list, here)
		m := c.p.marks(c.full(here))
		if m.opaque {
			break
		}
		if strings.HasPrefix(m.redirect, "/") {
			return append(list, c.merged(d.layer-1, strings.Trim(path.Clean(m.redirect), "/"))...)
		}
		if m.redirect != "" {
			comp = m.redirect
		}
	}
	return list
}

func (c *contents) full(p place) string { return c.p.fs(c.s.Layers[p.layer]) + "/" + p.at }

// mode returns the mode bits of what is at a place, 0 when nothing is.
func (c *contents) mode(layer int, at string) uint32 {
	var st unix.Stat_t
	if unix.Lstat(c.full(place{layer, at}), &st) != nil {
		return 0
	}
	return st.Mode
}
