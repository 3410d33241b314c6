package result

import (
	"archive/tar"
	"context"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// The rest of a result, of which a part is in the source, is discarded: the cell goes back to before the result, and has
// the part. That is two steps, since the keeper writes the files: an operation of the journal.

// partsOf lists what was applied of what leaves the workspace when the cell goes from one checkpoint to
// another, oldest first.
func (m *Manager) partsOf(c *state.Cell, from, to cell.CheckpointID) (list []state.Applied) {
	was, will := m.cfg.Records.Ancestors(from), m.cfg.Records.Ancestors(to)
	for _, a := range c.Applied {
		if was[a.Checkpoint] && !will[a.Checkpoint] {
			list = append(list, a)
		}
	}
	return list
}

// keeping returns the tree to, with the files of the tree at that the source is known to have: by what was
// applied of them, or by what it had already.
func (m *Manager) keeping(ctx context.Context, c *state.Cell, at, to *workspace.Tree, parts []state.Applied) (*workspace.Tree, error) {
	known, err := m.known(ctx, c)
	if err != nil {
		return nil, err
	}
	first, err := m.firstOf(c)
	if err != nil {
		return nil, err
	}
	imported, err := m.cfg.TreeOf(ctx, &first)
	if err != nil {
		return nil, err
	}
	has := func(tree *workspace.Tree, path string) (*workspace.Entry, error) {
		e, err := tree.Lookup(path)
		if cell.KindOf(err) == cell.NotFound {
			return nil, nil
		}
		return &e, err
	}
	same := func(a, b *workspace.Entry) bool {
		return a == nil && b == nil || a != nil && b != nil && sameFile(a, b)
	}
	var paths []string
	leave, err := workspace.Changes(to, at)
	if err != nil {
		return nil, err
	}
	for _, ch := range leave {
		is, err := has(known, ch.Path)
		if err != nil {
			return nil, err
		}
		was, err := has(imported, ch.Path)
		if err != nil {
			return nil, err
		}
		if ch.Git() && same(is, ch.New) && !same(is, was) {
			paths = append(paths, ch.Path)
		}
	}
	applied, err := m.pathsOf(parts)
	if err != nil {
		return nil, err
	}
	paths = append(paths, applied...)
	slices.Sort(paths)
	return workspace.Taken(to, known, slices.Compact(paths))
}

// pathsOf are the paths that accepts wrote, or merged under another name.
func (m *Manager) pathsOf(list []state.Applied) (paths []string, err error) {
	for _, a := range list {
		changed, err := m.changed(a.Before, a.After)
		if err != nil {
			return nil, err
		}
		paths = append(paths, changed...)
		for _, f := range a.Merged {
			paths = append(append(paths, f.Path), f.Also...)
		}
	}
	return paths, nil
}

// agreeOnRest records that a cell at a checkpoint, which was brought from one tree to another for a discard, has in common with
// its source what it kept: that, and what was applied before. c is changed, not committed.
func (m *Manager) agreeOnRest(ctx context.Context, c *state.Cell, at *state.Checkpoint, from, to *workspace.Tree, parts []string) error {
	paths, err := changedPaths(from, to)
	if err != nil {
		return err
	}
	applied, err := m.pathsOf(slices.DeleteFunc(slices.Clone(c.Applied), func(a state.Applied) bool { return !slices.Contains(parts, a.ID) }))
	if err != nil {
		return err
	}
	paths = append(paths, applied...)
	slices.Sort(paths)
	return m.agree(ctx, c, state.Agreement{Checkpoint: at.ID}, to, slices.Compact(paths))
}

// discardArgs is a discard that was begun.
type discardArgs struct {
	ID     string            `json:"id"` // of its receipt
	Cell   cell.ID           `json:"cell"`
	At     cell.CheckpointID `json:"at"` // what the cell was
	To     cell.CheckpointID `json:"to"` // what it goes back to
	Covers []cell.RunID      `json:"covers"`
	Parts  []string          `json:"parts,omitempty"` // of what is in the source
	Tree   cell.Digest       `json:"tree,omitzero"`   // what the cell is to be, where it is not as at To
	Reason string            `json:"reason,omitempty"`
}

// key is that of the receipt.
func (a *discardArgs) key() string { return "discard/" + a.ID }

func (m *Manager) resumeDiscard(ctx context.Context, args discardArgs) error {
	if m.cfg.Evidence.Sealed(args.key()) {
		return nil // the operation of its seal goes on by itself
	}
	c, err := m.cfg.Records.Cell(args.Cell)
	if err != nil {
		return err
	}
	m.cfg.EndOrphan(ctx, &c)
	at, err := m.cfg.Records.Checkpoint(args.At)
	if err != nil {
		return err
	}
	to, err := m.cfg.Records.Checkpoint(args.To)
	if err != nil {
		return err
	}
	var covers []state.Run
	for _, id := range args.Covers {
		r, err := m.cfg.Records.Run(id)
		if err != nil {
			return err
		}
		covers = append(covers, r)
	}
	return m.doDiscard(ctx, &c, at, to, covers, args, nil)
}

// putBack puts a cell at the checkpoint again at which it was before something failed.
func (m *Manager) putBack(c *state.Cell, at cell.CheckpointID) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	k, err := m.cfg.Records.Checkpoint(at)
	if err != nil {
		return err
	}
	if _, err := m.moveHead(ctx, c, &k, false); err != nil {
		return err
	}
	services, moved, err := m.cfg.ServicesTo(ctx, c, &k)
	if err != nil {
		return err
	}
	err = m.cfg.Records.Commit(append([]any{c}, services...)...)
	moved(err == nil)
	return err
}

// bringIn writes into a cell, which is at a checkpoint and at rest, what a tree has otherwise, and makes that a checkpoint. c is
// changed and committed.
func (m *Manager) bringIn(ctx context.Context, c *state.Cell, from, to *workspace.Tree, k state.Checkpoint) (state.Checkpoint, error) {
	contents := m.pastOf(ctx, c)
	if err := m.cfg.Cells.Alone(ctx, c, func(inst backend.Instance) error { return change(ctx, inst, c, from, to, contents, false) }); err != nil {
		return k, err
	}
	return m.cfg.Checkpoint(ctx, c, k, "")
}

// change brings the workspace of a living cell from one tree to another. With anew no file is written in place, whatever its mode.
func change(ctx context.Context, inst backend.Instance, c *state.Cell, from, to *workspace.Tree, contents workspace.Contents, anew bool) error {
	changes, err := workspace.Changes(from, to)
	if err != nil {
		return err
	}
	linked := map[string]bool{} // written in place, it would change under its other names
	for _, names := range from.Links {
		for _, p := range names {
			linked[p] = true
		}
	}
	gone := ""
	for _, ch := range changes {
		if ch.Old == nil || ch.New != nil && ch.New.Type == ch.Old.Type && !linked[ch.Path] && (!anew || ch.Old.Type == workspace.Folder) || gone != "" && strings.HasPrefix(ch.Path, gone+"/") {
			continue
		}
		gone = ch.Path
		if err := inst.Manage(ctx, cell.FileAct{Act: cell.FileRemove, Path: path.Join(c.Top(), ch.Path)}, nil, io.Discard); err != nil && cell.KindOf(err) != cell.NotFound {
			return err
		}
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(pack(w, changes, contents)) }()
	defer r.Close()
	return inst.WriteFiles(ctx, c.Top(), c.Setup.User, r)
}

// pack writes what changes make into an archive.
func pack(to io.Writer, changes []workspace.Change, contents workspace.Contents) error {
	w := tar.NewWriter(to)
	for _, ch := range changes {
		if ch.New == nil {
			continue
		}
		h := tar.Header{Name: ch.Path, Mode: int64(ch.New.Mode), ModTime: time.Unix(0, ch.New.MTime)}
		switch ch.New.Type {
		case workspace.Folder:
			h.Typeflag, h.Name = tar.TypeDir, ch.Path+"/"
		case workspace.Symlink:
			h.Typeflag, h.Linkname = tar.TypeSymlink, ch.New.Target
		case workspace.File:
			h.Typeflag, h.Size = tar.TypeReg, ch.New.Size
		default:
			continue
		}
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		if ch.New.Type != workspace.File {
			continue
		}
		f, err := contents.Open(ch.Path, *ch.New)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	return w.Close()
}
