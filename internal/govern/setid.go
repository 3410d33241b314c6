package govern

import (
	"errors"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/state"
)

const whySetID = "runs with the rights of another user"

// maxSetID bounds how many files of one mount are covered.
const maxSetID = 256

// coverSetID covers programs with set-user-id or set-group-id bits, or capabilities,
// that lie in directories of the host to which the cell can write: they are read-only
// in it. The kernel takes these rights away from what is written to, but not from what
// is written to through memory. A cell can make no others (linux.NoSetIDFilter).
func (m *Manager) coverSetID(c *state.Cell, mounts []cell.Mount) ([]cell.Mount, error) {
	plan := &image.HostPlan{}
	for _, x := range mounts {
		if x.Role != cell.RoleSetID {
			plan.Mounts = append(plan.Mounts, x)
		}
	}
	spec := m.cfg.Spec(c, plan.Mounts)
	for _, x := range slices.Clone(plan.Mounts) {
		if !spec.Outside(x) {
			continue
		}
		found, err := setIDFiles(x.Source)
		if err != nil {
			return nil, cell.Errorf(cell.Unsupported, "govern.coverSetID", "mount it read-only", "cannot look for set-user-id programs in %s, to which the cell could write: %w", x.Source, err)
		}
		for _, rel := range found {
			target := path.Join(x.Target, rel)
			if rel == "." {
				return nil, cell.Errorf(cell.Denied, "govern.coverSetID", "mount it read-only, or run chmod u-s,g-s "+x.Source,
					"cannot mount %s so that the cell can write to it: it %s", x.Source, whySetID)
			}
			if !slices.ContainsFunc(plan.Mounts, func(o cell.Mount) bool { // something else is seen there
				return o.Target != x.Target && inside(o.Target, x.Target) && inside(target, o.Target)
			}) {
				plan.Insert(cell.Mount{Kind: cell.Protect, Target: target, ReadOnly: true, Role: cell.RoleSetID, Why: whySetID})
			}
		}
	}
	return plan.Mounts, nil
}

// inside reports whether a path is another, or lies in it.
func inside(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

var errManySetID = errors.New("there are too many")

// setIDFiles are the programs below root, in its file system, that run with rights
// that their callers don't have, by their paths below it; "." is root itself.
func setIDFiles(root string) (found []string, err error) {
	var dev uint64
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if p == root {
				return err
			}
			return nil // gone, or not readable for the user of the cell
		}
		if !d.IsDir() && !d.Type().IsRegular() {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		st := info.Sys().(*syscall.Stat_t)
		switch {
		case p == root:
			dev = st.Dev
		case st.Dev != dev && d.IsDir():
			return fs.SkipDir // another file system: it is not in the mount
		case st.Dev != dev:
			return nil
		}
		if d.IsDir() || !setsID(p, st.Mode) {
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if found = append(found, rel); len(found) > maxSetID {
			return errManySetID
		}
		return nil
	})
	return found, err
}

func setsID(p string, mode uint32) bool {
	if mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		return true
	}
	if mode&0o111 == 0 {
		return false
	}
	n, err := unix.Lgetxattr(p, "security.capability", nil)
	return err == nil && n > 0
}
