package apply

import (
	"context"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// move moves everything to its place. The order lets files and folders take each other's
// names: first removals, then folders, then new files. Each original is checked once more after
// it was moved away, which finds a file that was changed in the last moment, and undo restores
// it.
func (a *applier) move() error {
	var ops []*operation
	for _, op := range a.plan.ops {
		if !op.done {
			ops = append(ops, op)
		}
	}
	for _, op := range ops {
		if err := a.recheck(op); err != nil {
			return err
		}
	}
	for _, op := range ops {
		if op.after == nil {
			if err := a.take(op); err != nil {
				return err
			}
		}
	}
	for _, dir := range a.remove {
		if err := a.rmdir(dir); err != nil {
			return err
		}
	}
	for _, dir := range a.make {
		if err := a.mkdir(dir); err != nil {
			return err
		}
	}
	for _, op := range ops {
		var err error
		switch {
		case op.after == nil:
		case op.chmod():
			err = a.chmod(op)
		default:
			err = a.put(op)
		}
		if err != nil {
			return err
		}
	}
	for _, op := range ops {
		if op.after == nil {
			if err := a.prune(workspace.Parent(op.path)); err != nil {
				return err
			}
		}
	}
	return a.syncDirs()
}

// commit records that everything is in its place, here and where others go by this journal.
func (a *applier) commit() error {
	if err := a.step("journal", ""); err != nil {
		return err
	}
	return a.journal.add(journalPart{Committed: true})
}

// meanwhile is the conflict of a path that changed after check.
func meanwhile(path, why string) error {
	return conflict([]PathConflict{{path, why + " while the changes were being applied"}})
}

// recheck checks a path again before anything is moved.
func (a *applier) recheck(op *operation) error {
	if err := a.step("recheck", op.path); err != nil {
		return err
	}
	st, err := a.root.lstat(op.path)
	was := &op.seen.stat
	if err == nil && op.seen.typ != 0 && st.Ino == was.Ino && st.Dev == was.Dev && st.Mode == was.Mode &&
		st.Size == was.Size && st.Mtim == was.Mtim && st.Ctim == was.Ctim {
		return nil
	}
	if op.seen.typ == 0 && errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err := a.look(op); err != nil {
		return err
	}
	if why := a.judge(op); why != "" || op.done {
		return meanwhile(op.path, "changed")
	}
	return nil
}

// take moves the original of op into the staging folder.
func (a *applier) take(op *operation) error {
	if err := a.step("take", op.path); err != nil {
		return err
	}
	if err := a.takeAway(op); err != nil {
		return err
	}
	return a.confirm(op, "o")
}

func (a *applier) takeAway(op *operation) error {
	err := a.root.in(op.path, func(dir int, name string) error {
		return renameNew(dir, name, a.stages[op.stage].fd, "o"+strconv.Itoa(op.n))
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return meanwhile(op.path, "went away")
	}
	if err != nil {
		return hostError(op.path, "remove", err)
	}
	return nil
}

// confirm checks that the original, now in the staging folder as prefix and number, still equals
// the base.
func (a *applier) confirm(op *operation, prefix string) error {
	s, name := a.stages[op.stage].fd, prefix+strconv.Itoa(op.n)
	fd, err := unix.Openat(s, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return hostError(op.path, "read", err)
	}
	defer unix.Close(fd)
	reopen := func(flags int) (int, error) {
		return unix.Openat(s, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	found, err := a.root.lookAt(context.WithoutCancel(a.ctx), fd, reopen, []int64{op.base.Size})
	if err != nil {
		return hostError(op.path, "read", err)
	}
	if !found.is(op.base) {
		return meanwhile(op.path, "changed")
	}
	return nil
}

// put moves the new file to its place.
func (a *applier) put(op *operation) error {
	if err := a.step("put", op.path); err != nil {
		return err
	}
	s, name := a.stages[op.stage].fd, "n"+strconv.Itoa(op.n)
	if op.seen.typ != 0 && op.seen.typ != workspace.Folder {
		err := a.root.in(op.path, func(dir int, to string) error {
			return renameat2(s, name, dir, to, unix.RENAME_EXCHANGE)
		})
		switch {
		case err == nil:
			return a.confirm(op, "n")
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP):
			return meanwhile(op.path, "went away")
		case !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS):
			return hostError(op.path, "write", err)
		}
		// A file system without exchange (NFS, FAT): in two steps.
		if err := a.take(op); err != nil {
			return err
		}
	}
	err := a.root.in(op.path, func(dir int, to string) error { return renameNew(s, name, dir, to) })
	if errors.Is(err, unix.EEXIST) {
		return meanwhile(op.path, "appeared")
	}
	if err != nil {
		return hostError(op.path, "write", err)
	}
	return nil
}

// chmod sets or clears the executable bit of a file with unchanged content.
func (a *applier) chmod(op *operation) error {
	if err := a.step("chmod", op.path); err != nil {
		return err
	}
	now, err := a.root.look(context.WithoutCancel(a.ctx), op.path, op.base.Size)
	if err != nil {
		return hostError(op.path, "read", err)
	}
	fd, err := a.root.open(op.path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return hostError(op.path, "change the mode of", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return hostError(op.path, "change the mode of", err)
	}
	was := op.base
	if a.chmods[op.inode()] { // under another name
		was = op.after
	}
	if !now.is(was) || st.Ino != op.seen.stat.Ino || st.Ino != now.stat.Ino {
		return meanwhile(op.path, "changed")
	}
	if err := unix.Fchmod(fd, diff.Exec(st.Mode, diff.ModeOf(op.after) == 0o100755)); err != nil {
		return hostError(op.path, "change the mode of", err)
	}
	if a.chmods == nil {
		a.chmods = map[inode]bool{}
	}
	a.chmods[op.inode()] = true
	return nil
}

// rmdir removes a folder that a file replaces.
func (a *applier) rmdir(dir string) error {
	if err := a.step("rmdir", dir); err != nil {
		return err
	}
	err := a.root.in(dir, func(fd int, name string) error { return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR) })
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return meanwhile(dir, "got new files")
	}
	if err != nil {
		return hostError(dir, "remove", err)
	}
	return nil
}

// mkdir makes a folder for new files.
func (a *applier) mkdir(dir string) error {
	if err := a.step("mkdir", dir); err != nil {
		return err
	}
	owner := a.folderOwner(workspace.Parent(dir))
	err := a.root.in(dir, func(fd int, name string) error {
		if err := unix.Mkdirat(fd, name, 0o777); err != nil {
			return err
		}
		if owner != noOwner {
			unix.Fchownat(fd, name, owner.uid, owner.gid, unix.AT_SYMLINK_NOFOLLOW) // as far as permitted
		}
		return nil
	})
	if errors.Is(err, unix.EEXIST) {
		return meanwhile(dir, "appeared")
	}
	if err != nil {
		return hostError(dir, "make the folder", err)
	}
	a.journal.mkdir = append(a.journal.mkdir, rawPath(dir))
	return nil
}

// prune removes dir and the folders above it that became empty, as git does.
func (a *applier) prune(dir string) error {
	for ; dir != ""; dir = workspace.Parent(dir) {
		if err := a.step("prune", dir); err != nil {
			return err
		}
		err := a.root.in(dir, func(fd int, name string) error { return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR) })
		switch {
		case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
			// Missing, or a file by now: the folder above may be empty.
		case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST), errors.Is(err, unix.EBUSY):
			return nil
		default:
			return hostError(dir, "remove the folder", err)
		}
	}
	return nil
}

// syncDirs makes the renames durable before the journal says so.
func (a *applier) syncDirs() error {
	if len(a.journal.plan.Dirs)+len(a.make) > syncEach {
		return a.sync(syncEach)
	}
	for _, p := range append(pathsOf(a.journal.plan.Dirs), a.make...) {
		fd, err := a.root.open(p, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			continue // pruned, or unreadable: then only this folder's own time is at stake
		}
		err = flush(fsync, fd)
		unix.Close(fd)
		if err != nil {
			return hostError(p, "write the folder", err)
		}
	}
	return nil
}
