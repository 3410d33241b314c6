package apply

import (
	"context"
	"errors"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// check checks every path in the source and collects all conflicts.
func (a *applier) check() error {
	conflicts := slices.Clone(a.plan.reserved)
	for _, op := range a.plan.ops {
		if err := a.look(op); err != nil {
			return err
		}
		if why := a.judge(op); why != "" {
			conflicts = append(conflicts, PathConflict{op.path, why})
		}
	}
	if len(conflicts) == 0 {
		for _, op := range a.plan.ops {
			if op.done || op.after == nil || op.seen.typ != workspace.Folder {
				continue
			}
			found, err := a.clearable(op, op.path)
			if err != nil {
				return err
			}
			conflicts = append(conflicts, found...)
		}
	}
	if len(conflicts) > 0 {
		return conflict(conflicts)
	}
	if err := a.recall(); err != nil {
		return err
	}
	return a.places()
}

// recall removes held changes that the source already has, because they were included before.
func (a *applier) recall() error {
	r := &a.plan.result
	var held []Held
	for i, op := range a.plan.held {
		if err := a.look(op); err != nil {
			return err
		}
		if a.judge(op); op.done {
			r.Already = append(r.Already, op.path)
		} else {
			held = append(held, r.Held[i])
		}
	}
	r.Held = held
	return nil
}

// look records the source's state of op's path.
func (a *applier) look(op *operation) (err error) {
	a.sizes = a.sizes[:0]
	for _, e := range []*workspace.Entry{op.base, op.after} {
		if e != nil && e.Type == workspace.File {
			a.sizes = append(a.sizes, e.Size)
		}
	}
	op.seen, err = a.root.look(a.ctx, op.path, a.sizes...)
	if err != nil {
		if a.ctx.Err() != nil {
			return cell.Errorf(cell.Interrupted, "apply.Do", "", "cannot apply: %w", context.Cause(a.ctx))
		}
		return hostError(op.path, "read", err)
	}
	return nil
}

// judge compares the source with the base. It sets done if the source already has the new state.
// It returns the conflict.
func (a *applier) judge(op *operation) string {
	s := &op.seen
	if s.wall != "" {
		w := a.plan.byPath[s.wall]
		switch {
		case w == nil:
			// The folder does not belong to the changes.
			return "lies below " + diff.Quote(s.wall) + ", which is no folder now"
		case !w.done && w.folder && w.seen.is(w.base):
			// It is removed before this path is written.
		case w.done && op.after == nil:
			op.done = true
			return ""
		default:
			return "lies below " + diff.Quote(s.wall) + ", which is no folder now"
		}
		s.typ = 0
	}
	if s.is(op.after) || (op.folder && s.typ == workspace.Folder) {
		op.done = true
		return ""
	}
	if s.is(op.base) {
		return ""
	}
	switch {
	case op.base == nil:
		return "is there already, as a " + s.typ.String()
	case s.typ == 0:
		return "is gone"
	case s.typ != op.base.Type:
		return "is a " + s.typ.String() + " now"
	case s.typ == workspace.Symlink:
		return "points elsewhere now"
	case s.stat.Size == op.base.Size && s.digest == op.base.Digest:
		return "has another executable bit now"
	}
	if slices.Contains(a.req.Scrubbed, op.path) {
		return "came into the cell without its credentials: change it by hand"
	}
	return "has other content now"
}

// clearable returns an entry of a folder that the changes do not remove.
func (a *applier) clearable(op *operation, dir string) (found []PathConflict, err error) {
	names, err := a.root.list(dir)
	if err != nil {
		return nil, hostError(dir, "read", err)
	}
	for _, name := range names {
		p := path.Join(dir, name)
		st, err := a.root.lstat(p)
		if err != nil {
			return nil, hostError(p, "read", err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			below, err := a.clearable(op, p)
			if err != nil {
				return nil, err
			}
			found = append(found, below...)
			continue
		}
		if other := a.plan.byPath[p]; other == nil || other.after != nil || other.done {
			why := "and the cell did not remove it"
			if gitdir.Inside(p) {
				why = "and is git's own: remove that folder by hand first"
			}
			found = append(found, PathConflict{p, "is in the folder that " + diff.Quote(op.path) + " replaces, " + why})
		}
	}
	a.remove = append(a.remove, dir) // after its contents
	return found, nil
}

// list returns the names in a folder, sorted.
func (b *beneath) list(path string) ([]string, error) {
	fd, err := b.open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// places finds the folder of each change, which must be writable, and its staging folder. It
// collects the folders to make.
func (a *applier) places() error {
	a.mounts = map[string]mount{}
	made := map[string]bool{}
	stageAt := map[string]int{}
	for _, op := range a.plan.ops {
		if op.done {
			continue
		}
		dir := workspace.Parent(op.path)
		m := a.mount(dir)
		for ; m.err == nil && m.id == (mountID{}); m = a.mount(dir) {
			if op.after != nil && !made[dir] {
				made[dir] = true
				a.make = append(a.make, dir)
			}
			dir = workspace.Parent(dir)
		}
		if m.err != nil {
			return hostError(op.path, "write", m.err)
		}
		// One staging folder for each mount, as high as it is writable.
		for dir != "" && a.mount(workspace.Parent(dir)) == m {
			dir = workspace.Parent(dir)
		}
		n, ok := stageAt[dir]
		if !ok {
			n = len(a.stages)
			stageAt[dir] = n
			a.stages = append(a.stages, stage{dir: dir})
		}
		op.stage = n
	}
	slices.Sort(a.make) // parents first
	return nil
}

// mount is the mount of a folder, or the reason why it can't be written. Both are zero when
// there is no folder.
type mount struct {
	id  mountID
	err error
}

func (a *applier) mount(dir string) mount {
	m, ok := a.mounts[dir]
	if !ok {
		m.id, m.err = a.root.mount(dir)
		a.mounts[dir] = m
	}
	return m
}

// mountID identifies folders between which files can be renamed: those of one mount and, for
// btrfs, one subvolume.
type mountID struct {
	id  uint64
	dev uint32
	min uint32
}

// mount returns the mount of the folder at path, the zero mountID if there is no folder. It
// fails if the folder can't be written.
func (b *beneath) mount(path string) (mountID, error) {
	fd, err := b.folder(path)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return mountID{}, nil
	}
	if err != nil {
		return mountID{}, err
	}
	defer unix.Close(fd)
	if err := unix.Faccessat(fd, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return mountID{}, err
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return mountID{}, err
	}
	return mountID{st.Mnt_id + 1, st.Dev_major, st.Dev_minor}, nil
}
