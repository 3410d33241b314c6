package archive

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// maxListed bounds the entries of one list.
const maxListed = 100_000

// Manage runs an action on files below root. in has the bytes of cell.FileWrite. out gets those
// of FileRead, else JSON: a FileInfo, or a line for each entry of FileList and FileWatch.
func Manage(root *os.File, a cell.FileAct, in io.Reader, out io.Writer, stop <-chan struct{}) error {
	p, who := path.Clean("/"+a.Path), owner{a.UID, a.GID}
	switch a.Act {
	case cell.FileStat:
	case cell.FileList:
		return list(root, p, max(a.Depth, 1), maxListed, json.NewEncoder(out))
	case cell.FileMkdir:
		if d, err := Open(root, p, unix.O_PATH|unix.O_NOFOLLOW, 0); err == nil {
			d.Close()
			return cell.Errorf(cell.Exists, "archive.mkdir", "", "cannot make directory %s: it exists", p)
		}
		if err := mkdirs(root, p, who); err != nil {
			return err
		}
	case cell.FileMove:
		to := path.Clean("/" + a.To)
		if err := move(root, p, to, who); err != nil {
			return err
		}
		p = to
	case cell.FileRemove:
		return remove(root, p)
	case cell.FileRead:
		return read(root, p, a.Size, out)
	case cell.FileWrite:
		if err := write(root, p, who, in); err != nil {
			return err
		}
	case cell.FileWatch:
		return watch(root, p, a.Depth > 0, json.NewEncoder(out), stop)
	default:
		return cell.Errorf(cell.Unsupported, "archive.Manage", "", "cannot do %q with files", a.Act)
	}
	info, err := stat(root, p)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(info)
}

// stat describes the file at p; for a symlink, itself and its target.
func stat(root *os.File, p string) (info cell.FileInfo, err error) {
	f, err := Open(root, p, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return info, notInCell(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return info, err
	}
	info = cell.FileInfo{Path: p, Type: typeOf(&st), Size: st.Size, Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid), MTime: time.Unix(st.Mtim.Unix()).UTC()}
	if info.Type != cell.TypeSymlink {
		return info, nil
	}
	buf := make([]byte, 4097)
	if n, err := unix.Readlinkat(int(f.Fd()), "", buf); err == nil {
		info.Target = string(buf[:n])
	}
	if t, err := Open(root, p, unix.O_PATH, 0); err == nil {
		defer t.Close()
		if unix.Fstat(int(t.Fd()), &st) == nil {
			info.Leads, info.Size = typeOf(&st), st.Size
		}
	}
	return info, nil
}

func typeOf(st *unix.Stat_t) string {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return cell.TypeFile
	case unix.S_IFDIR:
		return cell.TypeDirectory
	case unix.S_IFLNK:
		return cell.TypeSymlink
	}
	return cell.TypeOther
}

// namesIn returns the names in a directory, sorted: all of them, or more than most.
func namesIn(root *os.File, p string, flags, most int) ([]string, error) {
	d, err := Open(root, p, unix.O_RDONLY|unix.O_DIRECTORY|flags, 0)
	if flags == 0 && errors.Is(err, unix.ENOTDIR) { // one below it was replaced meanwhile
		return nil, cell.Errorf(cell.Invalid, "archive.list", "", "cannot list %s: it is no directory", p)
	}
	if err != nil {
		return nil, notInCell(err)
	}
	defer d.Close()
	names, err := d.Readdirnames(most + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}

// list lists a directory down to a depth. Only the directory itself may be a symlink. Where there
// are more than most files it fails: a list is not cut.
func list(root *os.File, p string, depth, most int, to *json.Encoder) error {
	left := most
	var walk func(p string, depth, flags int) error
	walk = func(p string, depth, flags int) error {
		names, err := namesIn(root, p, flags, most)
		if err != nil {
			return err
		}
		for _, n := range names {
			info, err := stat(root, path.Join(p, n))
			if cell.KindOf(err) == cell.NotFound {
				continue // removed meanwhile
			}
			if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
				continue // not accessible, such as /proc
			}
			if err != nil {
				return err
			}
			if left--; left < 0 {
				return cell.Errorf(cell.Invalid, "archive.list", "list a smaller part", "cannot list %s: more than %d files", p, most)
			}
			if err := to.Encode(info); err != nil {
				return err
			}
			if info.Type == cell.TypeDirectory && depth > 1 {
				err := walk(info.Path, depth-1, unix.O_NOFOLLOW)
				switch {
				case err == nil, cell.KindOf(err) == cell.NotFound, errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
				default:
					return err
				}
			}
		}
		return nil
	}
	return walk(p, depth, 0)
}

// move renames from to to, and makes the directories above to. Between file systems of the cell
// it copies.
func move(root *os.File, from, to string, who owner) error {
	if from == "/" || to == "/" {
		return cell.Errorf(cell.Invalid, "archive.move", "", "cannot move %s to %s", from, to)
	}
	if _, err := stat(root, from); err != nil {
		return err
	}
	for _, p := range []string{from, to} {
		if isMount(root, p) {
			return moveMount(from, to, p)
		}
	}
	if err := mkdirs(root, path.Dir(to), who); err != nil {
		return err
	}
	err := Rename(root, from, to)
	if !errors.Is(err, unix.EXDEV) {
		return err
	}
	if in, err := leadsInto(root, path.Dir(to), from); err != nil {
		return notInCell(err)
	} else if in {
		return cell.Errorf(cell.Invalid, "archive.move", "choose another path", "cannot move %s into itself", from)
	}
	var b [6]byte
	rand.Read(b[:])
	aside := path.Join(path.Dir(to), ".pando-move-"+hex.EncodeToString(b[:]))
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := send(root, from, w, func(p string, at *os.File) error {
			if linux.IsMount(int(at.Fd()), "") { // it could not be removed afterwards
				return moveMount(from, to, p)
			}
			return nil
		})
		w.CloseWithError(err)
		sent <- err
	}()
	err = Take(root, aside, who.uid, who.gid, r)
	r.CloseWithError(err)
	if serr := <-sent; cell.KindOf(serr) == cell.Denied {
		err = serr
	}
	if err == nil {
		err = Rename(root, path.Join(aside, path.Base(from)), to)
	}
	if rerr := remove(root, aside); err == nil {
		err = rerr
	}
	if err != nil {
		return err
	}
	return remove(root, from)
}

// moveMount is the error for a move that would take what is mounted at p away from the cell.
func moveMount(from, to, p string) error {
	return cell.Errorf(cell.Denied, "archive.move", "move what is in it", "cannot move %s to %s: the cell has %s mounted", from, to, linux.Abridged(p))
}

// leadsInto reports whether the directory dir is the one at p, or below it.
func leadsInto(root *os.File, dir, p string) (bool, error) {
	at, err := Open(root, p, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, err
	}
	defer at.Close()
	d, err := Open(root, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return false, err
	}
	defer func() { d.Close() }()
	for {
		if same, err := sameFile(d, at); same || err != nil {
			return same, err
		}
		if top, err := sameFile(d, root); top || err != nil {
			return false, err
		}
		fd, err := unix.Openat(int(d.Fd()), "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return false, os.NewSyscallError("openat", err)
		}
		up := os.NewFile(uintptr(fd), "..")
		end, err := sameFile(up, d)
		d.Close()
		d = up
		if end || err != nil {
			return false, err
		}
	}
}

func sameFile(a, b *os.File) (bool, error) {
	var x, y unix.Stat_t
	if err := errors.Join(unix.Fstat(int(a.Fd()), &x), unix.Fstat(int(b.Fd()), &y)); err != nil {
		return false, err
	}
	return x.Dev == y.Dev && x.Ino == y.Ino, nil
}

// isMount reports whether something is mounted at p (linux.IsMount).
func isMount(root *os.File, p string) bool {
	f, err := Open(root, p, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return linux.IsMount(int(f.Fd()), "")
}

// Rename gives a file another name, and replaces what has that. Nothing that the cell has mounted is moved or replaced.
func Rename(root *os.File, from, to string) error {
	a, err := Open(root, path.Dir(from), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return notInCell(err)
	}
	defer a.Close()
	b, err := Open(root, path.Dir(to), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return notInCell(err)
	}
	defer b.Close()
	if linux.IsMount(int(a.Fd()), path.Base(from)) {
		return moveMount(from, to, from)
	}
	if linux.IsMount(int(b.Fd()), path.Base(to)) {
		return moveMount(from, to, to)
	}
	if err := unix.Renameat(int(a.Fd()), path.Base(from), int(b.Fd()), path.Base(to)); err != nil {
		err := &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
		if isOneOf(err, unix.EEXIST, unix.ENOTEMPTY, unix.EISDIR, unix.ENOTDIR) {
			return cell.Errorf(cell.Exists, "archive.move", "remove it, or choose another name", "something else is there: %w", err)
		}
		return cannotWrite(err)
	}
	return nil
}

// remove removes the file or directory at p with everything in it. It follows no symlink, and
// enters nothing that the cell has mounted below p.
func remove(root *os.File, p string) error {
	if p == "/" {
		return cell.Errorf(cell.Denied, "archive.remove", "", "cannot remove the cell's root")
	}
	dir, err := Open(root, path.Dir(p), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return notInCell(err)
	}
	defer dir.Close()
	if linux.IsMount(int(dir.Fd()), path.Base(p)) {
		return cell.Errorf(cell.Denied, "archive.remove", "remove what is in it", "cannot remove %s: the cell has it mounted", p)
	}
	err = removeAt(int(dir.Fd()), path.Base(p))
	if left, ok := errors.AsType[*os.PathError](err); ok {
		at := linux.Abridged(path.Join(path.Dir(p), left.Path))
		if isOneOf(err, unix.EBUSY) {
			return cell.Errorf(cell.Denied, "archive.remove", "remove what is beside it", "cannot remove %s: the cell has %s mounted", p, at)
		}
		err = &os.PathError{Op: "remove", Path: at, Err: left.Err}
	} else if err != nil {
		err = &os.PathError{Op: "remove", Path: p, Err: err}
	}
	return notInCell(err)
}

func removeAt(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if err != unix.EISDIR && err != unix.EPERM {
		return err
	}
	return linux.RemoveAt(dir, name)
}

// read sends the bytes of a regular file.
func read(root *os.File, p string, limit int64, out io.Writer) error {
	f, err := Open(root, p, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return notInCell(err)
	}
	defer f.Close()
	if err := regular(f, "read", p); err != nil {
		return err
	}
	r := io.Reader(f)
	if limit > 0 {
		r = io.LimitReader(f, limit)
	}
	_, err = io.Copy(out, r)
	return err
}

// write makes a regular file of in. An existing file keeps its mode and its owner.
func write(root *os.File, p string, who owner, in io.Reader) error {
	if p == "/" {
		return cell.Errorf(cell.Invalid, "archive.write", "", "cannot write /: it is a directory")
	}
	if err := mkdirs(root, path.Dir(p), who); err != nil {
		return err
	}
	return put(root, p, who, nil, in)
}

// regular rejects everything but regular files.
func regular(f *os.File, act, p string) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	switch typeOf(&st) {
	case cell.TypeFile:
		return nil
	case cell.TypeDirectory:
		return cell.Errorf(cell.Invalid, "archive."+act, "", "cannot %s %s: it is a directory", act, p)
	}
	return cell.Errorf(cell.Invalid, "archive."+act, "", "cannot %s %s: it is no regular file", act, p)
}
