package apply

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// stage is a folder on the source's file system, from which files are renamed to their places.
// For operation N it has "nN", the new file (after an exchange: the original), and "oN", an
// original that was moved away. Originals are moved, never copied: restoring them needs no space
// and restores all their attributes.
type stage struct {
	dir  string // relative to the source
	name string
	fd   int
}

const stagePrefix = ".pando-apply-"

// begin writes the first part of the journal, from which Recover knows the staging folders. The
// source is unchanged yet.
func (a *applier) begin(j *journal) error {
	var r [8]byte
	rand.Read(r[:])
	for i := range a.stages {
		a.stages[i].name = stagePrefix + hex.EncodeToString(r[:])
		j.plan.Stages = append(j.plan.Stages, rawPath(path.Join(a.stages[i].dir, a.stages[i].name)))
	}
	j.plan.Source = rawPath(a.root.path)
	for _, p := range a.make {
		j.plan.Made = append(j.plan.Made, rawPath(p))
	}
	if err := a.rememberDirs(j); err != nil {
		return err
	}
	if err := a.step("journal", ""); err != nil {
		return err
	}
	if err := j.create(a.req.Backup); err != nil {
		return err
	}
	a.journal = j
	return nil
}

// rememberDirs records mode, owner and time of all existing folders that may be changed.
func (a *applier) rememberDirs(j *journal) error {
	paths := map[string]bool{"": true}
	for _, op := range a.plan.ops {
		for p := workspace.Parent(op.path); !op.done && !paths[p]; p = workspace.Parent(p) {
			paths[p] = true
		}
	}
	for _, p := range a.remove {
		paths[p] = true
	}
	for p := range paths {
		st, err := a.root.lstat(p)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue // it is to be made
		}
		j.plan.Dirs = append(j.plan.Dirs, journalDir{rawPath(p), st.Mode & 0o7777, st.Uid, st.Gid, st.Mtim.Nano()})
		if p == "" {
			j.plan.Dev, j.plan.Ino = st.Dev, st.Ino
		}
	}
	slices.SortFunc(j.plan.Dirs, func(x, y journalDir) int { return strings.Compare(string(x.Path), string(y.Path)) })
	return nil
}

// stageAll writes all new files into the staging folders, then the second part of the journal.
func (a *applier) stageAll() error {
	for i := range a.stages {
		s := &a.stages[i]
		if err := a.step("stage", s.dir); err != nil {
			return err
		}
		dir, err := a.root.folder(s.dir)
		if err != nil {
			return hostError(s.dir, "write in", err)
		}
		if err = unix.Mkdirat(dir, s.name, 0o700); err == nil {
			s.fd, err = unix.Openat(dir, s.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		}
		unix.Close(dir)
		if err != nil {
			return hostError(s.dir, "write in", err)
		}
	}
	a.setTimes(time.Now())
	a.findLinks()
	var files []journalOp
	staged := 0
	for _, op := range a.plan.ops {
		if op.done {
			continue
		}
		rec := journalOp{Path: rawPath(op.path), Kind: "take", N: op.n, Stage: op.stage, Old: op.seen.typ != 0 && op.seen.typ != workspace.Folder}
		switch {
		case op.chmod():
			rec.Kind, rec.Mode, rec.OldMode = "chmod", diff.Exec(op.seen.stat.Mode, diff.ModeOf(op.after) == 0o100755), op.seen.stat.Mode&0o7777
			rec.New = markOf(&op.seen.stat)
		case op.after != nil:
			if err := a.step("write", op.path); err != nil {
				return err
			}
			if err := a.stageFile(op, &staged); err != nil {
				return err
			}
			rec.Kind, rec.New = "put", op.made
		}
		files = append(files, rec)
	}
	if err := a.sync(staged); err != nil {
		return err
	}
	if err := a.step("journal", ""); err != nil {
		return err
	}
	return a.journal.add(journalPart{Ops: files})
}

// timeStep is the difference between the times of successive files: small, so that the last one
// is not long in the future, and large enough for programs that keep times in floating point.
const timeStep = time.Microsecond

// setTimes sets the modification times of the files to write: now, in their order in After. With
// their times in After, make would not rebuild dependents if the source was built meanwhile;
// with the times of writing, it would rebuild what the cell has built.
func (a *applier) setTimes(now time.Time) {
	var ops []*operation
	for _, op := range a.plan.ops {
		if !op.done && op.after != nil && !op.chmod() {
			ops = append(ops, op)
		}
	}
	slices.SortStableFunc(ops, func(x, y *operation) int { return cmp.Compare(x.after.MTime, y.after.MTime) })
	at := now.UnixNano()
	for i, op := range ops {
		if i > 0 && op.after.MTime != ops[i-1].after.MTime {
			at += int64(timeStep)
		}
		op.time = at
	}
}

// setTime sets the time of a staged file, as far as the file system allows.
func (op *operation) setTime(stage int, name string) {
	unix.UtimesNanoAt(stage, name, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(op.time)}, unix.AT_SYMLINK_NOFOLLOW)
}

// chmod reports whether only the executable bit changes.
func (op *operation) chmod() bool {
	return op.base != nil && op.after != nil && op.base.Type == workspace.File && op.after.Type == workspace.File && op.base.Digest == op.after.Digest
}

// inode identifies the file of several names.
type inode struct{ dev, ino uint64 }

func (op *operation) inode() inode { return inode{uint64(op.seen.stat.Dev), op.seen.stat.Ino} }

// findLinks finds the files with the same several names in After and in the source: one new file
// replaces all of them. Their content is the same then, and so are the owner and the time.
func (a *applier) findLinks() {
	a.leaders = map[*operation]*operation{}
	type file struct {
		inode
		stage int
	}
	for _, names := range a.req.After.Tree.Links {
		leaders := map[file]*operation{}
		for _, name := range names {
			op := a.plan.byPath[name]
			if op == nil || op.done || op.after == nil || op.after.Type != workspace.File || op.chmod() || op.seen.typ != workspace.File {
				continue
			}
			at := file{op.inode(), op.stage}
			if first := leaders[at]; first != nil {
				a.leaders[op] = first
			} else {
				leaders[at] = op
			}
		}
	}
}

// stageFile makes op's new file or symlink as "nN".
func (a *applier) stageFile(op *operation, synced *int) error {
	s, name := a.stages[op.stage].fd, "n"+strconv.Itoa(op.n)
	if first := a.leaders[op]; first != nil {
		if unix.Linkat(s, "n"+strconv.Itoa(first.n), s, name, 0) == nil {
			op.made = first.made
			return nil
		} // a file system without links, or too many links to this file
	}
	owner := a.owner(op)
	if op.after.Type == workspace.Symlink {
		if err := unix.Symlinkat(op.after.Target, s, name); err != nil {
			return hostError(op.path, "write", err)
		}
		unix.Fchownat(s, name, owner.uid, owner.gid, unix.AT_SYMLINK_NOFOLLOW) // as far as permitted
		op.setTime(s, name)
	} else {
		mode := uint32(0o666) // less the umask, as git does
		if diff.ModeOf(op.after) == 0o100755 {
			mode = 0o777
		}
		fd, err := unix.Openat(s, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		if err != nil {
			return hostError(op.path, "write", err)
		}
		f := os.NewFile(uintptr(fd), name)
		if err := a.fill(f, op, owner); err != nil {
			f.Close()
			return err
		}
		op.setTime(s, name)
		if *synced < syncEach {
			*synced++
			err = flush(fsync, int(f.Fd()))
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return hostError(op.path, "write", err)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstatat(s, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return hostError(op.path, "write", err)
	}
	op.made = markOf(&st)
	return nil
}

// fill writes content, owner, attributes and mode of a staged file.
func (a *applier) fill(f *os.File, op *operation, owner owner) error {
	if err := diff.CopyContent(a.ctx, f, a.req.After.Contents, op.path, *op.after); err != nil {
		if a.ctx.Err() != nil {
			return cell.Errorf(cell.Interrupted, "apply.Do", "", "cannot apply: %w", err)
		}
		return hostError(op.path, "write", err)
	}
	if owner != noOwner {
		f.Chown(owner.uid, owner.gid) // as far as permitted
	}
	if op.seen.typ != workspace.File {
		return nil
	}
	a.copyAttributes(f, op.path)
	mode := diff.Exec(op.seen.stat.Mode, diff.ModeOf(op.after) == 0o100755)
	if err := unix.Fchmod(int(f.Fd()), mode); err != nil {
		return hostError(op.path, "write", err)
	}
	return nil
}

type owner struct{ uid, gid int }

var noOwner = owner{-1, -1}

// owner returns the owner of op's new file: that of the replaced file; else, for root, that of
// the folder, and in a setgid folder its group.
func (a *applier) owner(op *operation) owner {
	if op.seen.typ == workspace.File || op.seen.typ == workspace.Symlink {
		return owner{int(op.seen.stat.Uid), int(op.seen.stat.Gid)}
	}
	return a.folderOwner(workspace.Parent(op.path))
}

func (a *applier) folderOwner(dir string) owner {
	for {
		st, err := a.root.lstat(dir)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return ownerIn(&st, os.Geteuid())
		}
		if dir == "" {
			return noOwner
		}
		dir = workspace.Parent(dir)
	}
}

func ownerIn(folder *unix.Stat_t, euid int) owner {
	switch {
	case euid == 0:
		return owner{int(folder.Uid), int(folder.Gid)}
	case folder.Mode&unix.S_ISGID != 0:
		return owner{-1, int(folder.Gid)}
	}
	return noOwner
}

// copyAttributes copies the extended attributes of a replaced file, as far as permitted. It
// omits capabilities, which, like setuid, were given to other content.
func (a *applier) copyAttributes(to *os.File, path string) {
	fd, err := a.root.open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	list := make([]byte, 64<<10)
	n, err := unix.Flistxattr(fd, list)
	if err != nil {
		return
	}
	value := make([]byte, 64<<10)
	for _, name := range strings.Split(string(list[:n]), "\x00") {
		if !strings.HasPrefix(name, "user.") && name != "system.posix_acl_access" && name != "security.selinux" {
			continue
		}
		if n, err := unix.Fgetxattr(fd, name, value); err == nil {
			unix.Fsetxattr(int(to.Fd()), name, value[:n], 0)
		}
	}
}

// syncEach is the number of files up to which each is synced; beyond, the whole file system is.
const syncEach = 32

// sync makes the staged files durable; up to syncEach files already are.
func (a *applier) sync(staged int) error {
	for _, s := range a.stages {
		var err error
		if staged >= syncEach {
			err = flush(syncfs, s.fd)
		} else {
			err = flush(fsync, s.fd)
		}
		if err != nil {
			return hostError(path.Join(s.dir, s.name), "write", err)
		}
	}
	return nil
}

// fsync and syncfs are variables for tests of when they are called.
var (
	fsync  = unix.Fsync
	syncfs = unix.Syncfs
)

// flush makes f durable, on file systems that support it.
func flush(f func(fd int) error, fd int) error {
	err := f(fd)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}
