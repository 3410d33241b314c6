package result

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// Changed is what a run changed.
type Changed struct {
	unread  bool // see Unread
	a, b    workspace.Side
	diff    *diff.Diff
	ignored func(string, bool) bool
	held    []api.Held // what accept would hold back
	apart   bool       // a part was accepted while the run went on: what there is to decide about is not told from before the run
	taken   bool       // see Taken
}

// partsOf are the directories of a cell with several, with what each was in two trees.
func partsOf(c *state.Cell, before, after *workspace.Tree) (list []state.RunPart, err error) {
	if len(c.Repositories) == 0 {
		return nil, nil
	}
	for _, d := range c.Parts() {
		p := state.RunPart{Source: d.Source, At: d.At}
		for _, x := range []struct {
			of *workspace.Tree
			to *cell.Digest
		}{{before, &p.Before}, {after, &p.After}} {
			t, err := x.of.Part(d.At)
			if err != nil {
				return nil, err
			}
			*x.to = t.Digest()
		}
		list = append(list, p)
	}
	return list, nil
}

// Compare computes what a run changed from one checkpoint of its cell to another, and notes it
// in the run.
func (m *Manager) Compare(ctx context.Context, run *state.Run, c *state.Cell, before, after *state.Checkpoint) (*Changed, error) {
	d := &Changed{}
	var err error
	if d.a, err = m.cfg.Side(ctx, before); err != nil {
		return nil, err
	}
	if d.b, err = m.cfg.Side(ctx, after); err != nil {
		return nil, err
	}
	run.Before, run.After = before.Point(), after.Point()
	run.In.After = after.ID
	if run.In.Parts, err = partsOf(c, d.a.Tree, d.b.Tree); err != nil {
		return nil, err
	}
	var unreadable string
	if d.ignored, unreadable, err = m.ignoredBy(ctx, c, d.a, d.b); err != nil {
		return nil, err
	}
	if d.diff, err = diff.Compare(ctx, d.a, d.b, diff.Options{Ignored: d.ignored}); err != nil {
		return nil, err
	}
	if unreadable != "" {
		run.Notes = append(run.Notes, unreadable)
		d.unread = true
	}
	rest, err := m.withTaken(c, run, d.a.Tree, after.ID)
	if err != nil {
		return nil, err
	}
	d.apart = len(c.TakenDuring(run.RunID())) > 0
	d.taken = d.apart && rest.ContentDigest() == d.b.Tree.ContentDigest()
	run.Changes = countChanges(d.diff)
	if run.Changes.Bytes, err = changedBytes(d.a.Tree, d.b.Tree); err != nil {
		return nil, err
	}
	first, held, err := m.review(c, d.a, d.b, d.ignored, nil)
	if err != nil {
		return nil, err
	}
	d.held = held
	run.Changes.FirstMore = max(0, len(first)-maxFirst)
	run.Changes.First = first[:min(len(first), maxFirst)]
	run.Conflicts = reservedTouched(c.LeftOut, d.diff)
	if run.Commits, err = commitsIn(c, d.a, d.b); err != nil {
		run.Notes = append(run.Notes, fmt.Sprintf("which commits were made in the cell can't be told: %v", err))
	}
	return d, nil
}

func countChanges(d *diff.Diff) state.Changes {
	c := state.Changes{Files: len(d.Files) + d.Ignored.Count, Ignored: d.Ignored.Count}
	for _, f := range d.Files {
		switch f.Status {
		case diff.StatusAdded:
			c.Added++
		case diff.StatusDeleted:
			c.Deleted++
		}
	}
	return c
}

// changedBytes is the size of the files that are new or have other content.
func changedBytes(a, b *workspace.Tree) (n int64, err error) {
	changes, err := workspace.Changes(a, b)
	for _, c := range changes {
		if c.New != nil && c.New.Type == workspace.File && !c.Meta() {
			n += c.New.Size
		}
	}
	return n, err
}

// reservedTouched lists the paths which import left out and which the result
// has all the same: apply will refuse them.
func reservedTouched(left []workspace.LeftOut, d *diff.Diff) []string {
	var out []string
	for _, f := range d.Files {
		for _, l := range left {
			if l.Kind != workspace.Outside && (f.Path == l.Path || strings.HasPrefix(f.Path, l.Path+"/")) {
				out = append(out, f.Path)
				break
			}
		}
	}
	return out
}

// Taken reports whether the source has all of it, by accepts while the run went on.
func (d *Changed) Taken() bool { return d.taken }

// Unread reports whether git's index or its rules could not be read.
func (d *Changed) Unread() bool { return d.unread }

// Nothing reports whether nothing differs but the times of files and folders, and git's index:
// a look at the tree refreshes that, and it is never applied.
func (d *Changed) Nothing() bool {
	if d.apart {
		return false
	}
	if d.a.Tree.Digest() == d.b.Tree.Digest() {
		return true
	}
	if len(d.diff.Files) > 0 || d.diff.Ignored.Count > 0 {
		return false
	}
	changes, err := workspace.Changes(d.a.Tree, d.b.Tree)
	if err != nil {
		return false
	}
	return !slices.ContainsFunc(changes, func(c workspace.Change) bool {
		if c.Path == ".git/index" || strings.HasSuffix(c.Path, "/.git/index") {
			return false
		}
		o, n := c.Old, c.New
		return o == nil || n == nil || o.Type != n.Type || o.Mode != n.Mode || !slices.Equal(o.XAttrs, n.XAttrs) ||
			o.Type != workspace.Folder && (o.Digest != n.Digest || o.Target != n.Target || o.Rdev != n.Rdev)
	})
}

// WritePatch writes what accept would apply as a patch. note says why there is none, or not all.
func (d *Changed) WritePatch(ctx context.Context, f *os.File) (note string, err error) {
	changes := d.diff
	if len(changes.Files) == 0 {
		return "", nil
	}
	// The result itself is kept as a checkpoint, from which a patch can be made.
	const again = "pando diff --patch makes it"
	if n := changes.Weight(); n > patchLimit {
		return fmt.Sprintf("the patch is not kept: the files that changed hold %s; %s", policy.FormatSize(n), again), nil
	}
	if len(d.held) > 0 { // without renames: one could lead from what is applied to what is held back
		if changes, err = diff.Compare(ctx, d.a, d.b, diff.Options{Ignored: d.ignored, NoRenames: true}); err != nil {
			return "", err
		}
		withoutHeld(changes, d.held)
	}
	err = changes.Patch(ctx, f)
	if durable.IsFull(err) {
		note = fmt.Sprintf("the patch could not be kept: %v; %s", err, again)
		err = f.Truncate(0)
	}
	return note, err
}

// patchLimit is how many bytes of changed files a run's patches are made of. What
// is larger (a disk image, a model) is no patch to read, and would be
// compressed for longer than the run took.
const patchLimit = 256 << 20
