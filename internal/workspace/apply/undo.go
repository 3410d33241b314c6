package apply

import (
	"errors"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// finish removes the originals after the commit.
func (j *journal) finish(root *beneath) error {
	err := j.step("clean", "")
	if err == nil {
		err = j.removeStages(root)
	}
	if err == nil {
		err = j.drop()
	}
	if err != nil {
		return cell.Errorf(cell.Unavailable, "apply.Do", "restart pando: it removes them", "the changes are applied, but it cannot remove the originals: %w", err)
	}
	return nil
}

// undo restores the source, last step first. It derives the completed steps from the places of
// the files, so it can follow a crash at any point, also within undo. It ignores cancellation.
func (j *journal) undo(root *beneath) error {
	u := &undoer{root: root, j: j}
	u.openStages()
	defer u.closeStages()
	for _, op := range slices.Backward(j.ops) {
		switch op.Kind {
		case "chmod":
			u.do("undo chmod", op, u.chmodBack)
		case "put":
			u.do("undo put", op, u.putBack)
		}
	}
	made := j.plan.Made
	if j.live {
		made = j.mkdir
	}
	for _, p := range slices.Backward(made) {
		u.rmdir(string(p))
	}
	for _, d := range j.plan.Dirs {
		u.mkdir(d)
	}
	for _, op := range slices.Backward(j.ops) {
		if op.Kind == "take" {
			u.do("undo take", op, u.takeBack)
		}
	}
	if u.err == nil && len(u.left) == 0 {
		u.fail("", j.step("undo clean", ""))
	}
	if u.err == nil && len(u.left) == 0 {
		u.fail("", j.removeStages(root))
	}
	for _, d := range slices.Backward(j.plan.Dirs) {
		u.time(d)
	}
	if len(u.left) > 0 {
		u.err = errors.Join(u.err, cell.Errorf(cell.Conflict, "apply.Recover",
			"the originals are in the folder "+stagePrefix+"… of the source: take from there what you need",
			"cannot undo the apply: %w", &ConflictError{u.left}))
	}
	if u.err != nil {
		return u.err
	}
	return j.drop()
}

type undoer struct {
	root   *beneath
	j      *journal
	stages []int // descriptors, -1 if the folder is not there
	left   []PathConflict
	err    error
}

func (u *undoer) openStages() {
	for _, p := range u.j.plan.Stages {
		fd, err := u.root.folder(string(p))
		if err != nil {
			fd = -1
		}
		u.stages = append(u.stages, fd)
	}
}

func (u *undoer) closeStages() {
	for _, fd := range u.stages {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// fail records a failed step and continues.
func (u *undoer) fail(path string, err error) {
	if err != nil {
		u.err = errors.Join(u.err, hostError(path, "undo the change of", err))
	}
}

func (u *undoer) do(step string, op journalOp, f func(op journalOp, stage, dir int, name string) error) {
	if err := u.j.step(step, string(op.Path)); err != nil {
		u.fail(string(op.Path), err)
		return
	}
	if op.Stage < 0 || op.Stage >= len(u.stages) || u.stages[op.Stage] < 0 {
		return // the staging folder was not made or is already removed
	}
	err := u.root.in(string(op.Path), func(dir int, name string) error { return f(op, u.stages[op.Stage], dir, name) })
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		err = nil // its folder does not exist: nothing was done here, or the user undid it
	}
	u.fail(string(op.Path), err)
}

// leave records a path that was changed since; it is not touched.
func (u *undoer) leave(op journalOp, why string) error {
	u.left = append(u.left, PathConflict{string(op.Path), why})
	return nil
}

// putBack removes a new file and restores the original.
func (u *undoer) putBack(op journalOp, stage, dir int, name string) error {
	staged, taken := "n"+strconv.Itoa(op.N), "o"+strconv.Itoa(op.N)
	target, there, err := statAt(dir, name)
	if err != nil {
		return err
	}
	sn, hasN, err := statAt(stage, staged)
	if err != nil {
		return err
	}
	_, hasO, err := statAt(stage, taken)
	if err != nil {
		return err
	}
	original := ""
	switch {
	case hasO:
		original = taken
	case hasN && op.Old && sn.Ino != op.New.Ino:
		original = staged
	}
	switch {
	case there && target.Ino == op.New.Ino && markOf(&target) != op.New:
		return u.leave(op, "was changed since")
	case there && target.Ino == op.New.Ino && original == staged:
		err := renameat2(stage, staged, dir, name, unix.RENAME_EXCHANGE)
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
			return err
		}
		return unix.Renameat(stage, staged, dir, name)
	case there && target.Ino == op.New.Ino:
		if err := unix.Renameat(dir, name, stage, staged); err != nil || original == "" {
			return err
		}
		return renameNew(stage, original, dir, name)
	case there && original != "":
		return u.leave(op, "was replaced since")
	case original != "":
		return renameNew(stage, original, dir, name)
	}
	return nil // not done yet
}

// takeBack restores a removed file.
func (u *undoer) takeBack(op journalOp, stage, dir int, name string) error {
	taken := "o" + strconv.Itoa(op.N)
	if _, ok, err := statAt(stage, taken); !ok || err != nil {
		return err
	}
	err := renameNew(stage, taken, dir, name)
	if errors.Is(err, unix.EEXIST) {
		return u.leave(op, "was made anew since")
	}
	return err
}

// chmodBack restores the mode of a file, if it is the same file with the new mode.
func (u *undoer) chmodBack(op journalOp, _, dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	// Not by inode: on overlayfs a file may get another one with its mode.
	err = unix.Fstat(fd, &st)
	if now := markOf(&st); err != nil || now.Size != op.New.Size || now.MTime != op.New.MTime || st.Mode&0o7777 != op.Mode || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return err
	}
	return unix.Fchmodat(dir, name, op.OldMode, 0) // name is the regular file st describes
}

// rmdir removes a folder that was made, unless it is in use.
func (u *undoer) rmdir(path string) {
	if err := u.j.step("undo mkdir", path); err != nil {
		u.fail(path, err)
		return
	}
	err := u.root.in(path, func(dir int, name string) error { return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) })
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
	default:
		u.fail(path, err)
	}
}

// mkdir makes a removed folder again.
func (u *undoer) mkdir(d journalDir) {
	path := string(d.Path)
	if path == "" {
		return
	}
	if err := u.j.step("undo rmdir", path); err != nil {
		u.fail(path, err)
		return
	}
	err := u.root.in(path, func(dir int, name string) error {
		if err := unix.Mkdirat(dir, name, 0o700); err != nil {
			return err
		}
		unix.Fchownat(dir, name, int(d.UID), int(d.GID), unix.AT_SYMLINK_NOFOLLOW) // as far as permitted
		return unix.Fchmodat(dir, name, d.Mode, 0)
	})
	if !errors.Is(err, unix.EEXIST) {
		u.fail(path, err)
	}
}

// time restores a folder's modification time.
func (u *undoer) time(d journalDir) {
	fd, err := u.root.open(string(d.Path), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	// Only the owner may set it; for others nothing of theirs is lost.
	unix.UtimesNanoAt(fd, ".", []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(d.MTime)}, 0)
}

// removeStages removes the staging folders, which contain only files.
func (j *journal) removeStages(root *beneath) error {
	for _, p := range j.plan.Stages {
		fd, err := root.open(string(p), unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), string(p))
		names, err := f.Readdirnames(-1)
		for _, n := range names {
			if err == nil {
				err = unix.Unlinkat(fd, n, 0)
			}
		}
		f.Close()
		if err == nil {
			err = root.in(string(p), func(dir int, name string) error { return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}
