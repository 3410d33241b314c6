package govern

import (
	"os"
	"path"
	"path/filepath"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

const (
	whyHidden   = "hidden by the policy"
	whyReadOnly = "read-only by the policy"
)

// Mask covers what the policy of a cell hides, denies or makes read-only, and programs with
// rights of another user that the cell could write to, among its mounts, in the state that it
// starts from (nil: its head).
func (m *Manager) Mask(c *state.Cell, from *state.Checkpoint, mounts []cell.Mount) ([]cell.Mount, error) {
	mounts, err := m.mask(c, from, mounts)
	if err != nil {
		return nil, err
	}
	if mounts, err = m.coverSetID(c, mounts); err != nil {
		return nil, err
	}
	return m.denyPrograms(c, mounts)
}

// mask covers the parts of the workspace that the policy hides, or makes
// read-only, as they are in the state that the cell starts from (nil: its head). A mount covers
// the file itself: whatever name, symlink or /proc path leads there. What is
// not there has nothing to be covered, and is named as not enforced.
func (m *Manager) mask(c *state.Cell, from *state.Checkpoint, mounts []cell.Mount) ([]cell.Mount, error) {
	c.Setup.Unmasked = nil
	if len(c.Setup.Hidden)+len(c.Setup.ReadOnly) == 0 {
		return mounts, nil
	}
	if from == nil {
		head, err := m.cfg.Records.Checkpoint(c.Head)
		if err != nil {
			return nil, err
		}
		from = &head
	}
	tree, err := m.cfg.Tree(m.cfg.Life, from)
	if err != nil {
		return nil, err
	}
	plan, top := &image.HostPlan{}, c.Top()
	for _, x := range mounts {
		if x.Role == cell.RoleWorkspace && len(c.Repositories) == 0 {
			top = x.Target
		}
		if x.Role != cell.RoleHidden && x.Role != cell.RoleReadOnly {
			plan.Mounts = append(plan.Mounts, x)
		}
	}
	empty := filepath.Join(m.folder(c.ID), "empty")
	if err := os.WriteFile(empty, nil, 0o444); err != nil && !os.IsPermission(err) { // it is there already
		return nil, err
	}
	for _, rel := range inAll(c, tree, c.Setup.Hidden) {
		switch entry, why := maskable(tree, rel); {
		case why != "":
			c.Setup.Unmasked = append(c.Setup.Unmasked, rel+" is not hidden: "+why)
		case entry.Type == workspace.Folder:
			plan.Insert(cell.Mount{Kind: cell.Tmpfs, Target: path.Join(top, rel), ReadOnly: true, Role: cell.RoleHidden, Why: whyHidden})
		default:
			plan.Insert(cell.Mount{Kind: cell.Bind, Target: path.Join(top, rel), Source: empty, ReadOnly: true, Owned: true, Role: cell.RoleHidden, Why: whyHidden})
		}
	}
	for _, rel := range inAll(c, tree, c.Setup.ReadOnly) {
		if _, why := maskable(tree, rel); why != "" {
			c.Setup.Unmasked = append(c.Setup.Unmasked, rel+" is not read-only: "+why)
		} else {
			plan.Insert(cell.Mount{Kind: cell.Protect, Target: path.Join(top, rel), ReadOnly: true, Role: cell.RoleReadOnly, Why: whyReadOnly})
		}
	}
	return plan.Mounts, nil
}

// inAll are the paths of a workspace that a policy means, which has them as in a repository: those in the first, and where the
// others have such a path, theirs.
func inAll(c *state.Cell, tree *workspace.Tree, paths []string) (list []string) {
	for _, rel := range paths {
		for i, d := range c.Parts() {
			at := path.Join(d.At, rel)
			if _, err := tree.Lookup(at); i == 0 || cell.KindOf(err) != cell.NotFound {
				list = append(list, at)
			}
		}
	}
	return list
}

// maskable is what a path of the workspace is, or why no mount can lie there.
func maskable(tree *workspace.Tree, rel string) (entry workspace.Entry, why string) {
	for dir := path.Dir(rel); dir != "."; dir = path.Dir(dir) {
		if e, err := tree.Lookup(dir); err == nil && e.Type == workspace.Symlink {
			return entry, dir + " is a symlink; name what it leads to"
		}
	}
	entry, err := tree.Lookup(rel)
	switch {
	case cell.KindOf(err) == cell.NotFound:
		return entry, "it was not there when the cell started"
	case err != nil:
		return entry, err.Error()
	case entry.Type != workspace.Folder && entry.Type != workspace.File:
		return entry, "it is neither a file nor a folder; name what it leads to"
	}
	return entry, ""
}
