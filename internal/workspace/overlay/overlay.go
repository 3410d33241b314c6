// Package overlay keeps workspaces as overlayfs layers: a state is a stack of
// directories in overlay's own format, a generation puts an empty writable one
// on top, and freezing moves nothing. Reading a state, and finding what a
// layer changed, needs no mount.
//
// On disk, below the provider's root:
//
//	l-0123456789abcdef/
//	  fs/    the layer
//	  work/  overlayfs's own, while the layer is writable
//	  joined what Join made in it, while the layer is writable
//	  copied what its last snapshot had, while the layer is writable
package overlay

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/workspace"
)

// Name is the provider's word.
const Name = "overlay"

// maxLayers bounds the layers of a state; above it Compact merges them. The kernel allows 500;
// our mount options fit about 190 into a page.
const maxLayers = 100

// Provider implements workspace.Provider. It has no state but its files.
type Provider struct {
	root   string
	prefix string // of overlay's xattrs
	glance glanceBounds
}

// New returns the provider for the directory root. privileged says that root mounts its
// overlays, with marks in trusted.* attributes.
func New(root string, privileged bool) *Provider {
	p := &Provider{root: root, prefix: "user.overlay.", glance: usualGlance}
	if privileged {
		p.prefix = "trusted.overlay."
	}
	return p
}

// Name implements workspace.Provider.
func (p *Provider) Name() string { return Name }

// Mounts implements workspace.Provider.
func (p *Provider) Mounts() bool { return true }

func (p *Provider) fs(layer string) string { return filepath.Join(p.root, layer, "fs") }

// newLayer makes an empty layer with the attributes of like.
func (p *Provider) newLayer(like workspace.Entry, place string) (string, error) {
	var b [8]byte
	rand.Read(b[:])
	layer := "l-" + hex.EncodeToString(b[:])
	failpoint.Step("make layer")
	if place != "" {
		if err := workspace.PlaceLayer(filepath.Join(p.root, layer), place); err != nil {
			return layer, err
		}
	}
	if err := os.MkdirAll(filepath.Join(p.root, layer, "work"), 0o700); err != nil {
		return "", err
	}
	failpoint.Step("make the files of a layer")
	if err := os.Mkdir(p.fs(layer), 0o700); err != nil {
		return "", err
	}
	return layer, applyEntry(p.fs(layer), like)
}

// applyEntry sets the mode, mtime and attributes of e on a directory.
func applyEntry(dir string, e workspace.Entry) error {
	for _, x := range e.XAttrs {
		if err := unix.Setxattr(dir, x.Name, []byte(x.Value), 0); err != nil && err != unix.EOPNOTSUPP {
			return err
		}
	}
	if err := unix.Chmod(dir, e.Mode&0o7777); err != nil {
		return err
	}
	return os.Chtimes(dir, time.Time{}, time.Unix(0, e.MTime))
}

// Begin implements workspace.Provider.
func (p *Provider) Begin(ctx context.Context, base workspace.State, like workspace.Entry, place string) (_ workspace.Generation, err error) {
	layer, err := p.newLayer(like, place)
	if err != nil {
		if layer != "" {
			p.Drop(layer)
		}
		return workspace.Generation{}, err
	}
	if n := len(base.Layers); n > 0 { // the owner of the top is not in like
		var st unix.Stat_t
		if err = unix.Lstat(p.fs(base.Layers[n-1]), &st); err == nil {
			err = workspace.Own(p.fs(layer), st.Uid, st.Gid)
		}
		if err == nil {
			err = applyEntry(p.fs(layer), like)
		}
		if err != nil {
			p.Drop(layer)
			return workspace.Generation{}, err
		}
	}
	return workspace.Generation{Base: base, Layer: layer}, nil
}

// Resume implements workspace.Provider: overlayfs refuses a work directory that a volatile mount
// has left.
func (p *Provider) Resume(ctx context.Context, g workspace.Generation) error {
	work := filepath.Join(p.root, g.Layer, "work")
	failpoint.Step("resume a layer")
	if err := workspace.RemoveTree(work); err != nil {
		return err
	}
	return os.Mkdir(work, 0o700)
}

// Mount implements workspace.Provider.
func (p *Provider) Mount(g workspace.Generation, target string) cell.Mount {
	m := cell.Mount{Kind: cell.Overlay, Target: target, Owned: true, Role: cell.RoleWorkspace, Why: "workspace",
		Upper: p.fs(g.Layer), Work: filepath.Join(p.root, g.Layer, "work")}
	for i := len(g.Base.Layers) - 1; i >= 0; i-- {
		m.Lower = append(m.Lower, p.fs(g.Base.Layers[i]))
	}
	return m
}

// Claims implements workspace.Provider.
func (p *Provider) Claims(ctx context.Context, g workspace.Generation) (int64, error) {
	return workspace.Claims(ctx, p.fs(g.Layer))
}

// Stamp implements workspace.Provider.
func (p *Provider) Stamp(ctx context.Context, g workspace.Generation) (sum cell.Digest, settled bool, err error) {
	return workspace.Stamp(ctx, p.fs(g.Layer))
}

// Freeze implements workspace.Provider.
func (p *Provider) Freeze(ctx context.Context, g workspace.Generation) (workspace.State, error) {
	same, err := p.untouched(g)
	if err != nil {
		return workspace.State{}, err
	}
	if same {
		return g.Base, nil
	}
	if workspace.IsPlaced(filepath.Join(p.root, g.Layer)) {
		s, _, err := workspace.SnapshotNow(ctx, p, g)
		return s, err
	}
	if err := p.part(g.Layer, g.Layer); err != nil {
		return workspace.State{}, err
	}
	if err := os.Remove(p.copiedPath(g.Layer)); err != nil && !os.IsNotExist(err) {
		return workspace.State{}, err
	}
	return p.above(g.Base, g.Layer), p.dropWork(g.Layer)
}

// dropWork removes overlayfs's work directory, which an immutable layer does not need.
func (p *Provider) dropWork(layer string) error {
	failpoint.Step("drop the work of a layer")
	return workspace.RemoveTree(filepath.Join(p.root, layer, "work"))
}

func (p *Provider) above(base workspace.State, layer string) workspace.State {
	return workspace.State{Provider: Name, Layers: append(append([]string(nil), base.Layers...), layer)}
}

// untouched reports whether a layer is as Begin and Join made it: without other files, and with
// the attributes of the one below.
func (p *Provider) untouched(g workspace.Generation) (bool, error) {
	if len(g.Base.Layers) == 0 {
		return false, nil
	}
	mine, names, err := p.top(g.Layer)
	if err != nil {
		return false, err
	}
	if names {
		if only, err := p.onlyJoins(g.Layer); err != nil || !only {
			return false, err
		}
	}
	below, _, err := p.top(g.Base.Layers[len(g.Base.Layers)-1])
	return err == nil && mine.Mode == below.Mode && mine.Mtim == below.Mtim && mine.Uid == below.Uid && mine.Gid == below.Gid &&
		slices.Equal(mine.xattrs, below.xattrs), err
}

// top is the attributes of a layer's own directory.
type top struct {
	unix.Stat_t
	xattrs []workspace.XAttr
}

// top also reports whether the layer has any file.
func (p *Provider) top(layer string) (t top, filled bool, err error) {
	root, err := workspace.OpenRoot(p.fs(layer))
	if err != nil {
		return t, false, err
	}
	defer root.Close()
	if err := unix.Fstat(int(root.Fd()), &t.Stat_t); err != nil {
		return t, false, err
	}
	err = workspace.WithRights(root, "", func() error {
		fd, err := workspace.OpenBeneath(root, "", unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		d := os.NewFile(uintptr(fd), layer)
		defer d.Close()
		names, err := d.Readdirnames(1)
		if filled = len(names) > 0; !filled && err != io.EOF {
			return err
		}
		t.xattrs, err = workspace.ReadXAttrs(fd, workspace.KeptXAttr)
		return err
	})
	return t, filled, err
}

// mark accepts the attributes that belong to a layer.
func (p *Provider) mark(name string) bool {
	return strings.HasPrefix(name, p.prefix) || workspace.KeptXAttr(name)
}

// Extend implements workspace.Provider.
func (p *Provider) Extend(ctx context.Context, base workspace.State) (workspace.Writer, error) {
	layer, err := p.newLayer(workspace.Entry{Type: workspace.Folder, Mode: 0o755}, "")
	if err != nil {
		return nil, err
	}
	return &writer{p: p, base: base, layer: layer}, nil
}

type writer struct {
	p     *Provider
	base  workspace.State
	layer string
	done  bool
}

func (w *writer) Dir() string { return w.p.fs(w.layer) }

func (w *writer) Sparse() bool { return len(w.base.Layers) > 0 }

// Remove makes a whiteout: a character device 0:0, which needs no privilege.
func (w *writer) Remove(path string) error {
	if err := workspace.RemoveTree(filepath.Join(w.Dir(), path)); err != nil {
		return err
	}
	to, err := workspace.OpenRoot(w.Dir())
	if err != nil {
		return err
	}
	defer to.Close()
	return to.At(path, func(at string) error {
		if err := unix.Mknod(at, unix.S_IFCHR, 0); err != nil {
			return &os.PathError{Op: "whiteout", Path: path, Err: err}
		}
		return nil
	})
}

func (w *writer) Done() (workspace.State, error) {
	if err := w.p.dropWork(w.layer); err != nil {
		return workspace.State{}, err
	}
	w.done = true
	return w.p.above(w.base, w.layer), nil
}

func (w *writer) Abort() {
	if !w.done {
		w.p.Drop(w.layer)
	}
}

// Drop implements workspace.Provider.
func (p *Provider) Drop(layer string) error {
	return workspace.RemoveLayer(filepath.Join(p.root, layer))
}

// Layers implements workspace.Provider.
func (p *Provider) Layers() ([]string, error) { return workspace.ListLayers(p.root, "l-") }

// Size implements workspace.Provider.
func (p *Provider) Size(layer string) (int64, error) {
	return workspace.DiskUse(filepath.Join(p.root, layer))
}
