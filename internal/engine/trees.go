package engine

import (
	"context"
	"errors"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/store"
	"github.com/pando-dev/pando/internal/workspace"
)

// treeCache keeps trees by digest: their own few bytes as objects beside the
// directories they are made of.
type treeCache struct {
	objs store.Store

	mu sync.Mutex // guards m
	m  map[cell.Digest]*workspace.Tree
}

// cachedTrees bounds the trees in memory; one is small, its directories stay
// in the store.
const cachedTrees = 256

func newTreeCache(objs store.Store) *treeCache {
	return &treeCache{objs: objs, m: map[cell.Digest]*workspace.Tree{}}
}

func (c *treeCache) put(t *workspace.Tree) (cell.Digest, error) {
	d := t.Digest()
	// Also when it is cached: the store may have dropped it meanwhile.
	if err := c.objs.Put(d, t.Encode()); err != nil {
		return d, err
	}
	c.keep(d, t)
	return d, nil
}

func (c *treeCache) keep(d cell.Digest, t *workspace.Tree) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.m) >= cachedTrees {
		clear(c.m)
	}
	c.m[d] = t
}

// forget drops what is cached: the store may not have it any more.
func (c *treeCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.m)
}

func (c *treeCache) get(d cell.Digest) (*workspace.Tree, error) {
	c.mu.Lock()
	t := c.m[d]
	c.mu.Unlock()
	if t != nil {
		return t, nil
	}
	b, err := c.objs.Get(d)
	if err != nil {
		return nil, err
	}
	if t, err = workspace.DecodeTree(b, c.objs); err != nil {
		return nil, err
	}
	c.keep(d, t)
	return t, nil
}

// tree returns the tree of a checkpoint, computing what is not there.
func (e *Engine) tree(ctx context.Context, k *state.Checkpoint) (*workspace.Tree, error) {
	if !k.Tree.IsZero() {
		t, err := e.trees.get(k.Tree)
		if err == nil || !errors.Is(err, cell.KindError(cell.NotFound)) && !errors.Is(err, cell.KindError(cell.Corrupt)) {
			return t, err
		}
	}
	return e.computeTree(ctx, k)
}

// computeTree is the tree of a checkpoint's layers, and commits its digests.
func (e *Engine) computeTree(ctx context.Context, k *state.Checkpoint) (*workspace.Tree, error) {
	t, err := e.walk(ctx, k)
	if err != nil {
		return nil, err
	}
	return t, e.reg.Commit(k)
}

// walk reads everything of a checkpoint, and finds out if it is not what it was.
func (e *Engine) walk(ctx context.Context, k *state.Checkpoint) (*workspace.Tree, error) {
	p, err := e.providerOf(k.State.Provider)
	if err != nil {
		return nil, err
	}
	t, err := p.Walk(ctx, k.State, e.cfg.Objects)
	if err != nil {
		return nil, err
	}
	d, err := e.trees.put(t)
	if err != nil {
		return nil, err
	}
	if !k.Tree.IsZero() && k.Tree != d {
		return nil, cell.Errorf(cell.Corrupt, "engine.walk", "", "checkpoint @%d is not what it was: expected %s, found %s", k.Number, k.Tree, d)
	}
	k.Tree, k.Content = d, t.ContentDigest()
	return t, nil
}

// side is a checkpoint as one side of a comparison.
func (e *Engine) side(ctx context.Context, k *state.Checkpoint) (workspace.Side, error) {
	if p, err := e.providerOf(k.State.Provider); k.Gone && (err != nil || !haveLayers(p, k.State)) {
		return workspace.Side{}, cell.Errorf(cell.NotFound, "engine.side", "", "checkpoint @%d was removed: it expired, was given up, or made room", k.Number)
	}
	t, err := e.tree(ctx, k)
	if err != nil {
		return workspace.Side{}, err
	}
	p, err := e.providerOf(k.State.Provider)
	if err != nil {
		return workspace.Side{}, err
	}
	return workspace.Side{Tree: t, Contents: p.Contents(k.State)}, nil
}
