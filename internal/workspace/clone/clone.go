// Package clone keeps each state of a workspace as a whole directory, for
// hosts on which overlayfs can't be used. Beginning a generation copies the
// state (sharing file data where the file system has reflinks), so its cost is
// that of the workspace; everything else is as with package overlay.
//
// On disk, below the provider's root:
//
//	d-0123456789abcdef/fs/   the workspace
package clone

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/workspace"
)

// Name is the provider's word.
const Name = "clone"

// Provider implements workspace.Provider.
type Provider struct {
	root string

	mu    sync.Mutex // guards fresh
	fresh map[string]map[string]workspace.Stat
}

// New returns the provider over the directory root.
func New(root string) *Provider {
	return &Provider{root: root, fresh: map[string]map[string]workspace.Stat{}}
}

// Name implements workspace.Provider.
func (p *Provider) Name() string { return Name }

// Mounts implements workspace.Provider.
func (p *Provider) Mounts() bool { return false }

func (p *Provider) fs(layer string) string { return filepath.Join(p.root, layer, "fs") }

// copyOf makes a new directory with what base has, or an empty one.
func (p *Provider) copyOf(ctx context.Context, base workspace.State, like workspace.Entry, place string) (layer string, err error) {
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	var b [8]byte
	rand.Read(b[:])
	layer = "d-" + hex.EncodeToString(b[:])
	if place != "" {
		if err := workspace.PlaceLayer(filepath.Join(p.root, layer), place); err != nil {
			return "", err
		}
	}
	undo.Add("drop the copy", func(context.Context) error { return p.Drop(layer) })
	if err := os.MkdirAll(p.fs(layer), 0o700); err != nil {
		return "", err
	}
	if len(base.Layers) == 0 {
		return layer, os.Chmod(p.fs(layer), os.FileMode(like.Mode&0o777))
	}
	return layer, workspace.CopyTree(ctx, p.fs(base.Layers[0]), p.fs(layer), workspace.CopyOptions{})
}

// Begin implements workspace.Provider.
func (p *Provider) Begin(ctx context.Context, base workspace.State, like workspace.Entry, place string) (workspace.Generation, error) {
	layer, err := p.copyOf(ctx, base, like, place)
	if err != nil {
		return workspace.Generation{}, err
	}
	// What the copy looks like now tells later which files were touched.
	stats, err := p.stats(ctx, layer)
	if err != nil {
		p.Drop(layer)
		return workspace.Generation{}, err
	}
	p.mu.Lock()
	p.fresh[layer] = stats
	p.mu.Unlock()
	return workspace.Generation{Base: base, Layer: layer}, nil
}

func (p *Provider) stats(ctx context.Context, layer string) (map[string]workspace.Stat, error) {
	root, err := workspace.OpenRoot(p.fs(layer))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	all, err := workspace.Collect(ctx, root)
	if err != nil {
		return nil, err
	}
	m := make(map[string]workspace.Stat, len(all))
	// A file made in this tick of the clock could be changed in the same
	// tick, and its times would not show it.
	sure := time.Now().UnixNano() - workspace.RacySlack
	for i := range all {
		if all[i].Stat.CTime < sure {
			m[all[i].Path] = all[i].Stat
		}
	}
	return m, nil
}

// Join implements workspace.Provider: a copy has the links of what it is a copy of.
func (p *Provider) Join(ctx context.Context, g workspace.Generation, groups []workspace.LinkGroup) error {
	return nil
}

// Resume implements workspace.Provider.
func (p *Provider) Resume(ctx context.Context, g workspace.Generation) error { return nil }

// Mount implements workspace.Provider.
func (p *Provider) Mount(g workspace.Generation, target string) cell.Mount {
	return cell.Mount{Kind: cell.Bind, Source: p.fs(g.Layer), Target: target, Owned: true, Role: cell.RoleWorkspace, Why: "workspace"}
}

// Claims implements workspace.Provider.
func (p *Provider) Claims(ctx context.Context, g workspace.Generation) (int64, error) {
	n, err := workspace.Claims(ctx, p.fs(g.Layer))
	if err != nil || len(g.Base.Layers) == 0 {
		return n, err
	}
	was, err := workspace.Claims(ctx, p.fs(g.Base.Layers[0]))
	return max(n-was, 0), err
}

// Stamp implements workspace.Provider.
func (p *Provider) Stamp(ctx context.Context, g workspace.Generation) (sum cell.Digest, settled bool, err error) {
	return workspace.Stamp(ctx, p.fs(g.Layer))
}

// Freeze implements workspace.Provider. Whether anything changed shows only
// in the tree.
func (p *Provider) Freeze(ctx context.Context, g workspace.Generation) (workspace.State, error) {
	if workspace.IsPlaced(filepath.Join(p.root, g.Layer)) {
		s, _, err := workspace.SnapshotNow(ctx, p, g)
		return s, err
	}
	return workspace.State{Provider: Name, Layers: []string{g.Layer}}, nil
}

// Snapshot implements workspace.Provider: all is copied while the processes stand still.
func (p *Provider) Snapshot(_ context.Context, g workspace.Generation, _ workspace.SnapshotOptions) (workspace.Snapshot, error) {
	return &snapshot{p: p, g: g}, nil
}

type snapshot struct {
	p      *Provider
	g      workspace.Generation
	layer  string // the copy
	done   bool   // it is a state
	claims int64
}

// Unmoved implements workspace.Snapshot. Nothing is known of the copy before.
func (s *snapshot) Unmoved(context.Context) (workspace.State, bool, error) {
	return workspace.State{}, false, nil
}

// Ahead implements workspace.Snapshot.
func (s *snapshot) Ahead(context.Context) error { return nil }

// Take implements workspace.Snapshot.
func (s *snapshot) Take(ctx context.Context) (err error) {
	if s.claims, err = s.p.Claims(ctx, s.g); err != nil {
		return err
	}
	s.layer, err = s.p.copyOf(ctx, workspace.State{Layers: []string{s.g.Layer}}, workspace.Entry{}, "")
	return err
}

// After implements workspace.Snapshot.
func (s *snapshot) After(context.Context) error { return nil }

// Claims implements workspace.Snapshot.
func (s *snapshot) Claims() int64 { return s.claims }

// Done implements workspace.Snapshot.
func (s *snapshot) Done(context.Context) (workspace.State, error) {
	s.done = true
	return workspace.State{Provider: Name, Layers: []string{s.layer}}, nil
}

// Made implements workspace.Snapshot.
func (s *snapshot) Made() string {
	if !s.done {
		return ""
	}
	return s.layer
}

// Keep implements workspace.Snapshot.
func (s *snapshot) Keep(workspace.State) error { return nil }

// Drop implements workspace.Snapshot.
func (s *snapshot) Drop() error {
	if s.layer == "" || s.done {
		return nil
	}
	return s.p.Drop(s.layer)
}

// Tree implements workspace.Provider: every file is looked at, and read when
// it was touched since the copy was made.
func (p *Provider) Tree(ctx context.Context, base *workspace.Tree, s workspace.State) (*workspace.Tree, error) {
	p.mu.Lock()
	fresh := p.fresh[s.Layers[0]]
	p.mu.Unlock()
	was := base.Finder()
	known := func(path string, st workspace.Stat) (workspace.Entry, bool) {
		if old, ok := fresh[path]; !ok || old != st {
			return workspace.Entry{}, false
		}
		e, err := was.Lookup(path)
		return e, err == nil
	}
	return workspace.WalkKnown(ctx, p.fs(s.Layers[0]), base.Objects(), known)
}

// Walk implements workspace.Provider.
func (p *Provider) Walk(ctx context.Context, s workspace.State, objs workspace.Objects) (*workspace.Tree, error) {
	if len(s.Layers) == 0 {
		return workspace.EmptyTree(objs)
	}
	return workspace.Walk(ctx, p.fs(s.Layers[0]), objs)
}

// Contents implements workspace.Provider.
func (p *Provider) Contents(s workspace.State) workspace.Contents { return contents{p, s} }

type contents struct {
	p *Provider
	s workspace.State
}

func (c contents) Open(path string, e workspace.Entry) (io.ReadCloser, error) {
	if len(c.s.Layers) == 0 {
		return nil, cell.Errorf(cell.NotFound, "clone.Open", "", "no %s in an empty workspace", path)
	}
	root, err := workspace.OpenRoot(c.p.fs(c.s.Layers[0]))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	fd, err := workspace.OpenReadable(root, path, false)
	if err != nil {
		return nil, err
	}
	return workspace.Verified(os.NewFile(uintptr(fd), path), path, e), nil
}

// Extend implements workspace.Provider.
func (p *Provider) Extend(ctx context.Context, base workspace.State) (workspace.Writer, error) {
	layer, err := p.copyOf(ctx, base, workspace.Entry{Mode: 0o755}, "")
	if err != nil {
		return nil, err
	}
	return &writer{p: p, layer: layer}, nil
}

type writer struct {
	p     *Provider
	layer string
	done  bool
}

func (w *writer) Dir() string { return w.p.fs(w.layer) }

func (w *writer) Sparse() bool { return false }

func (w *writer) Remove(path string) error {
	return workspace.RemoveTree(filepath.Join(w.Dir(), path))
}

func (w *writer) Done() (workspace.State, error) {
	w.done = true
	return workspace.State{Provider: Name, Layers: []string{w.layer}}, nil
}

func (w *writer) Abort() {
	if !w.done {
		w.p.Drop(w.layer)
	}
}

// Compact implements workspace.Provider: there is one layer only.
func (p *Provider) Compact(ctx context.Context, s workspace.State, t *workspace.Tree) (workspace.State, error) {
	return s, nil
}

// Drop implements workspace.Provider.
func (p *Provider) Drop(layer string) error {
	p.mu.Lock()
	delete(p.fresh, layer)
	p.mu.Unlock()
	return workspace.RemoveLayer(filepath.Join(p.root, layer))
}

// Layers implements workspace.Provider.
func (p *Provider) Layers() ([]string, error) { return workspace.ListLayers(p.root, "d-") }

// Size implements workspace.Provider.
func (p *Provider) Size(layer string) (int64, error) {
	return workspace.DiskUse(filepath.Join(p.root, layer))
}
