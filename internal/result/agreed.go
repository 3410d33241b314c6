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
// the source, too. Once the source has something of its own, by a merge, by a sync, or because both made the same change, it is
// not: told from the source, a checkpoint that never got that would remove it there. Then it follows from the list of what came
// to be in common: each of it holds for what comes of its checkpoint, and where several hold for a path, the one that is latest in
// the cell's history. So what a checkpoint is told from is something that it, or what it comes of, once was: where the source
// is another, that is a conflict, and nothing is overwritten.

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
	return m.replayOn(tree, c, at, wanted)
}

// replayOn is a tree with some of the agreements of a cell that hold at a checkpoint.
func (m *Manager) replayOn(tree *workspace.Tree, c *state.Cell, at cell.CheckpointID, wanted func(state.Agreement) bool) (*workspace.Tree, error) {
	for _, a := range m.holding(c, at) {
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
		if tree, err = workspace.Taken(tree, after, paths); err != nil {
			return nil, err
		}
	}
	return tree, nil
}

// holding are the agreements of a cell that hold at a checkpoint: those of what it comes of, in that order.
func (m *Manager) holding(c *state.Cell, at cell.CheckpointID) (list []state.Agreement) {
	depth := map[cell.CheckpointID]int{} // how far above a checkpoint is
	for id := at; id != ""; {
		if _, seen := depth[id]; seen {
			break
		}
		depth[id] = len(depth)
		k, err := m.cfg.Records.Checkpoint(id)
		if err != nil {
			break
		}
		id = k.Parent
	}
	for _, a := range c.Agreed {
		if _, here := depth[a.Checkpoint]; here {
			list = append(list, a)
		}
	}
	slices.SortStableFunc(list, func(a, b state.Agreement) int { return depth[b.Checkpoint] - depth[a.Checkpoint] })
	return list
}

// changed are the paths at which git sees that two trees differ.
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
func (m *Manager) agree(ctx context.Context, c *state.Cell, a state.Agreement, in *workspace.Tree, lists ...[]string) error {
	paths := slices.Concat(lists...)
	if len(paths) == 0 {
		return nil
	}
	known, err := m.known(ctx, c)
	if err != nil {
		return err
	}
	after, err := workspace.Taken(known, in, paths)
	if err != nil {
		return err
	}
	less, err := unlike(after, paths)
	if err != nil {
		return err
	}
	if a.Before, err = m.cfg.PutTree(less); err != nil {
		return err
	}
	if a.After, err = m.cfg.PutTree(after); err != nil {
		return err
	}
	c.Agreed = append(slices.Clone(c.Agreed), a)
	return nil
}

// unlike is a tree that differs from another at some paths: what is there is gone, and where nothing is there is an
// empty file.
func unlike(tree *workspace.Tree, paths []string) (*workspace.Tree, error) {
	made := tree.Edit()
	var gone []string
	for _, p := range paths {
		_, there, err := made.Lookup(p)
		if err != nil {
			return nil, err
		}
		if !there {
			gone = append(gone, p)
		} else if err := made.Remove(p); err != nil {
			return nil, err
		}
	}
	slices.Sort(gone)
	for _, p := range slices.Compact(gone) {
		for i := range p {
			if p[i] != '/' {
				continue
			}
			e, there, err := made.Lookup(p[:i])
			if err != nil {
				return nil, err
			}
			if !there || e.Type != workspace.Folder {
				if err := made.Put(p[:i], workspace.Entry{Type: workspace.Folder, Mode: 0o755}); err != nil {
					return nil, err
				}
			}
		}
		if err := made.Put(p, workspace.Entry{Type: workspace.File, Mode: 0o644, Digest: cell.Sum(nil)}); err != nil {
			return nil, err
		}
	}
	return made.Commit()
}

// disagree takes out of what a cell and its source have in common what was applied and is taken back. Where something else
// came to be in common as that was, it is now what was there before.
func (m *Manager) disagree(c *state.Cell, list []state.Applied) error {
	c.Agreed = slices.DeleteFunc(slices.Clone(c.Agreed), func(a state.Agreement) bool {
		return slices.ContainsFunc(list, func(l state.Applied) bool { return l.ID == a.Applied && !a.There })
	})
	for _, l := range slices.Backward(list) {
		before, err := m.cfg.Tree(l.Before)
		if err != nil {
			return err
		}
		after, err := m.cfg.Tree(l.After)
		if err != nil {
			return err
		}
		paths, err := changedPaths(before, after)
		if err != nil {
			return err
		}
		for i := range c.Agreed {
			a := &c.Agreed[i]
			was, err := m.cfg.Tree(a.Before)
			if err != nil {
				return err
			}
			is, err := m.cfg.Tree(a.After)
			if err != nil {
				return err
			}
			of, err := changedPaths(was, is)
			if err != nil {
				return err
			}
			differ, err := changedPaths(is, after)
			if err != nil {
				return err
			}
			both := slices.DeleteFunc(slices.Clone(of), func(p string) bool { return !slices.Contains(paths, p) || slices.Contains(differ, p) })
			if len(both) == 0 {
				continue
			}
			if is, err = workspace.Taken(is, before, both); err != nil {
				return err
			}
			if a.Before, err = m.cfg.PutTree(was); err != nil {
				return err
			}
			if a.After, err = m.cfg.PutTree(is); err != nil {
				return err
			}
		}
	}
	return nil
}
