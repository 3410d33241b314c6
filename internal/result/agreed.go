package result

import (
	"context"
	"slices"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// What a cell changed is told from what it and its source last had in common. That is what the source is known to
// be, as long as the cell's work alone came there: then a result that leaves the cell looks like one to be taken out of
// the source, too. Once lines of the source itself came into the cell, by a sync, or were merged with the cell's in the source, it
// is not: told from the source, a checkpoint without them would remove them there. Then it follows from the list of what came to be in
// common, as far as it holds for a checkpoint: what came into the cell holds for what comes of that checkpoint alone, and
// what came into the source for all, but for files in which that has lines which the checkpoint never got.

// agreedAt is the tree by which the changes of a cell at a checkpoint are told.
func (m *Manager) agreedAt(ctx context.Context, c *state.Cell, at cell.CheckpointID) (*workspace.Tree, error) {
	if !c.Apart {
		return m.known(ctx, c)
	}
	return m.replay(ctx, c, at, func(state.Agreement) bool { return true })
}

// broughtAt is what the source was imported as, with what came from it into a cell at a checkpoint since.
func (m *Manager) broughtAt(ctx context.Context, c *state.Cell, at cell.CheckpointID) (*workspace.Tree, error) {
	return m.replay(ctx, c, at, func(a state.Agreement) bool { return a.Applied == "" })
}

// replay is the import of a cell's source, with those of its agreements that hold at a checkpoint.
func (m *Manager) replay(ctx context.Context, c *state.Cell, at cell.CheckpointID, wanted func(state.Agreement) bool) (*workspace.Tree, error) {
	first, err := m.firstOf(c)
	if err != nil {
		return nil, err
	}
	tree, err := m.cfg.TreeOf(ctx, &first)
	if err != nil {
		return nil, err
	}
	here := m.cfg.Records.Ancestors(at)
	type elsewhere struct { // what came into the cell, but not there
		at    cell.CheckpointID
		paths map[string]bool
	}
	var others []elsewhere
	for _, a := range c.Agreed {
		if !wanted(a) {
			continue
		}
		after, err := m.cfg.Tree(a.After)
		if err != nil {
			return nil, err
		}
		paths, err := m.changed(a.Before, a.After)
		if err != nil {
			return nil, err
		}
		switch {
		case a.Applied == "" && !here[a.Checkpoint]:
			o := elsewhere{a.Checkpoint, map[string]bool{}}
			for _, p := range paths {
				o.paths[p] = true
			}
			others = append(others, o)
			continue
		case a.Applied != "" && len(others) > 0:
			from := m.cfg.Records.Ancestors(a.Checkpoint)
			paths = slices.DeleteFunc(paths, func(p string) bool {
				return slices.ContainsFunc(others, func(o elsewhere) bool { return from[o.at] && o.paths[p] })
			})
		}
		if tree, err = workspace.Taken(tree, after, paths); err != nil {
			return nil, err
		}
	}
	return tree, nil
}

// changed are the paths at which git sees that two trees differ, with none twice.
func (m *Manager) changed(before, after cell.Digest) ([]string, error) {
	a, err := m.cfg.Tree(before)
	if err != nil {
		return nil, err
	}
	b, err := m.cfg.Tree(after)
	if err != nil {
		return nil, err
	}
	return changedPaths(a, b)
}

func changedPaths(a, b *workspace.Tree) (paths []string, err error) {
	changes, err := workspace.Changes(a, b)
	if err != nil {
		return nil, err
	}
	for i := range changes {
		if changes[i].Git() {
			paths = append(paths, changes[i].Path)
		}
	}
	return paths, nil
}

// agree records that a cell at a checkpoint and its source have some paths in common, as in a tree. a says how it
// came to be. c is changed, not committed.
func (m *Manager) agree(ctx context.Context, c *state.Cell, a state.Agreement, in *workspace.Tree, paths ...[]string) error {
	before, err := m.agreedAt(ctx, c, a.Checkpoint)
	if err != nil {
		return err
	}
	after, err := workspace.Taken(before, in, paths...)
	if err != nil {
		return err
	}
	if a.Before, err = m.cfg.PutTree(before); err != nil || before.Digest() == after.Digest() {
		return err
	}
	if a.After, err = m.cfg.PutTree(after); err != nil {
		return err
	}
	c.Agreed = append(slices.Clone(c.Agreed), a)
	return nil
}
