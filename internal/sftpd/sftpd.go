// Package sftpd serves the files of a cell over the SSH File Transfer Protocol (version 3,
// draft-ietf-secsh-filexfer-02, with OpenSSH's posix-rename and hardlink).
//
// It promises that every path is resolved inside the cell's root, as package archive resolves it, that only regular files
// are opened, that nothing the cell has mounted is moved or removed, and that what it makes belongs to the cell's user and has
// no set-user-id bits. It leaves the protocol to github.com/pkg/sftp, and to its caller which clients may speak it.
package sftpd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/archive"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// Request is one session.
type Request struct {
	Root     *os.File // of the cell
	Start    string   // absolute, in the cell: where relative paths begin
	UID, GID int      // of what is made
	// Changed is called after files have changed, at most once in a while, and at the end; nil: nothing wants to know.
	Changed func()
}

// tellEvery is how far Changed calls are apart, at least.
const tellEvery = 50 * time.Millisecond

// Serve answers requests until the connection ends, which it closes.
func Serve(conn io.ReadWriteCloser, req Request) error {
	extend()
	s := &server{Request: req, over: make(chan struct{})}
	var telling sync.WaitGroup
	if req.Changed != nil {
		telling.Go(s.tell)
	}
	r := sftp.NewRequestServer(conn, sftp.Handlers{FileGet: s, FilePut: s, FileCmd: s, FileList: s}, sftp.WithStartDirectory(req.Start))
	err := r.Serve()
	r.Close() // closes the files that the client left open
	close(s.over)
	telling.Wait()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // the client closed it
		err = nil
	}
	return err
}

// extend has clients told of the extensions that are served, and of no others.
var extend = sync.OnceFunc(func() {
	if err := sftp.SetSFTPExtensions("posix-rename@openssh.com", "hardlink@openssh.com"); err != nil {
		panic(err)
	}
})

type server struct {
	Request
	changed atomic.Bool
	over    chan struct{}

	files, lists atomic.Int32 // that are open
}

func (s *server) tell() {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if s.changed.Swap(false) {
				s.Changed()
			}
		case <-s.over:
			if s.changed.Swap(false) {
				s.Changed()
			}
			return
		}
	}
}

// mark notes that a file has changed, unless that failed.
func (s *server) mark(err error) error {
	if err == nil {
		s.changed.Store(true)
	}
	return status(err)
}

// status is an error as the protocol has it: its words for what it has words for, and else the text.
func status(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist), cell.KindOf(err) == cell.NotFound, errors.Is(err, unix.ENOTDIR):
		return sftp.ErrSSHFxNoSuchFile
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS), cell.KindOf(err) == cell.Denied:
		return sftp.ErrSSHFxPermissionDenied
	}
	return err
}

// folder opens the directory that a path is in.
func (s *server) folder(p string) (dir *os.File, name string, err error) {
	if p == "/" {
		return nil, "", unix.EPERM
	}
	dir, err = archive.Open(s.Root, path.Dir(p), unix.O_PATH|unix.O_DIRECTORY, 0)
	return dir, path.Base(p), err
}

// Limits of a session, which is served in the keeper of other cells, too.
const (
	mostFiles = 256 // open at once
	mostLists = 16  // directories that are being listed
)

var errTooMany = errors.New("too many files are open at once")

// guarded makes an error of a fault in the answer to one request: in the keeper it would end all cells of a family.
func guarded(err *error) {
	if fault := recover(); fault != nil {
		*err = fmt.Errorf("cannot answer: %v", fault)
	}
}

// Fileread opens a file to read it.
func (s *server) Fileread(r *sftp.Request) (_ io.ReaderAt, err error) {
	defer guarded(&err)
	return s.open(r)
}

// Filewrite opens a file to write it, and makes it if that is asked.
func (s *server) Filewrite(r *sftp.Request) (_ io.WriterAt, err error) {
	defer guarded(&err)
	return s.open(r)
}

// OpenFile opens a file to read and write it.
func (s *server) OpenFile(r *sftp.Request) (_ sftp.WriterAtReaderAt, err error) {
	defer guarded(&err)
	return s.open(r)
}

// file is an open file.
type file struct {
	*os.File
	s      *server
	writes bool
	closed atomic.Bool

	// Where appending was asked: how large the file was, and where the next write of a client that counts from there belongs.
	// Others, as OpenSSH, count from its beginning.
	mu         sync.Mutex
	appends    bool
	base, next int64
}

func (f *file) WriteAt(b []byte, at int64) (int, error) {
	f.s.changed.Store(true)
	if f.appends {
		f.mu.Lock()
		defer f.mu.Unlock()
		if at < f.base || f.next > 0 {
			if at != f.next { // requests are answered several at once
				return 0, errors.New("what is appended comes in order")
			}
			f.next += int64(len(b))
			at += f.base
		}
	}
	return f.File.WriteAt(b, at)
}

func (f *file) Close() error {
	if f.closed.Swap(true) {
		return nil
	}
	f.s.files.Add(-1)
	if f.writes {
		f.s.changed.Store(true)
	}
	return f.File.Close()
}

func (s *server) open(r *sftp.Request) (_ *file, err error) {
	if s.files.Add(1) > mostFiles {
		s.files.Add(-1)
		return nil, errTooMany
	}
	defer func() {
		if err != nil {
			s.files.Add(-1)
			err = status(err)
		}
	}()
	asked := r.Pflags()
	flags := unix.O_RDONLY
	switch {
	case asked.Read && asked.Write:
		flags = unix.O_RDWR
	case asked.Write, asked.Append:
		flags = unix.O_WRONLY
	}
	f, err := s.opened(r, flags, asked)
	if err != nil {
		return nil, err
	}
	writes := flags != unix.O_RDONLY
	if asked.Trunc && writes {
		err = f.Truncate(0)
	}
	st, serr := f.Stat()
	if err = errors.Join(err, serr); err != nil {
		f.Close()
		return nil, err
	}
	return &file{File: f, s: s, writes: writes, appends: asked.Append, base: st.Size()}, nil
}

// regular opens a regular file, and nothing else: to open a pipe or a device does something.
func (s *server) regular(p string, flags int) (*os.File, error) {
	at, err := archive.Open(s.Root, p, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	if st, err := at.Stat(); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, errors.New("it is no regular file")
	}
	fd, err := unix.Open(itself(at), flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: p, Err: err}
	}
	return os.NewFile(uintptr(fd), p), nil
}

// itself is a path of what is open, whatever its name leads to by now.
func itself(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// modeOf is the mode that a request gives a file that it makes. The library has the attributes of such a request without the
// flags that say which they are; OpenSSH sends the mode, alone (4 bytes) or before two times (12).
func modeOf(attrs []byte) (mode uint32, said bool) {
	if len(attrs) == 4 || len(attrs) == 12 {
		if mode = binary.BigEndian.Uint32(attrs); mode&^(unix.S_IFREG|0o7777) == 0 && mode != 0 {
			return mode & 0o777, true
		}
	}
	return 0o644, false
}

// opened opens the file of a request. One that it makes belongs to the cell's user.
func (s *server) opened(r *sftp.Request, flags int, asked sftp.FileOpenFlags) (*os.File, error) {
	if !asked.Creat {
		return s.regular(r.Filepath, flags)
	}
	mode, said := modeOf(r.Attrs)
	f, err := archive.Open(s.Root, r.Filepath, flags|unix.O_CREAT|unix.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) && !asked.Excl {
		return s.regular(r.Filepath, flags)
	}
	if err != nil {
		return nil, err
	}
	err = f.Chown(s.UID, s.GID)
	if err == nil && said { // without the umask
		err = f.Chmod(os.FileMode(mode))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	s.changed.Store(true)
	return f, nil
}

// Filecmd changes names and attributes.
func (s *server) Filecmd(r *sftp.Request) (err error) {
	defer guarded(&err)
	p := r.Filepath
	switch r.Method {
	case "Setstat":
		return s.mark(s.set(r))
	case "Rename": // which replaces nothing
		if f, err := archive.Open(s.Root, r.Target, unix.O_PATH|unix.O_NOFOLLOW, 0); err == nil {
			f.Close()
			return unix.EEXIST
		}
		return s.PosixRename(r)
	case "Link":
		return s.mark(s.link(p, r.Target))
	case "Symlink": // Filepath is its text
		return s.mark(s.in(r.Target, func(dir int, name string) error {
			if err := unix.Symlinkat(p, dir, name); err != nil {
				return err
			}
			return unix.Fchownat(dir, name, s.UID, s.GID, unix.AT_SYMLINK_NOFOLLOW)
		}))
	case "Mkdir":
		return s.mark(s.in(p, func(dir int, name string) error {
			if err := unix.Mkdirat(dir, name, 0o755); err != nil {
				return err
			}
			fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) // by its name it may be another by now
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Fchownat(fd, "", s.UID, s.GID, unix.AT_EMPTY_PATH)
		}))
	case "Remove", "Rmdir":
		flags := 0
		if r.Method == "Rmdir" {
			flags = unix.AT_REMOVEDIR
		}
		return s.mark(s.in(p, func(dir int, name string) error {
			if linux.IsMount(dir, name) {
				return unix.EPERM
			}
			return unix.Unlinkat(dir, name, flags)
		}))
	}
	return sftp.ErrSSHFxOpUnsupported
}

// in does something with a name in its directory.
func (s *server) in(p string, do func(dir int, name string) error) error {
	dir, name, err := s.folder(p)
	if err != nil {
		return err
	}
	defer dir.Close()
	return do(int(dir.Fd()), name)
}

// PosixRename renames a file, and replaces another.
func (s *server) PosixRename(r *sftp.Request) (err error) {
	defer guarded(&err)
	return s.mark(archive.Rename(s.Root, r.Filepath, r.Target))
}

// link gives a regular file one more name.
func (s *server) link(of, at string) error {
	return s.in(of, func(from int, was string) error {
		var st unix.Stat_t
		if err := unix.Fstatat(from, was, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return unix.EPERM
		}
		return s.in(at, func(dir int, name string) error { return unix.Linkat(from, was, dir, name, 0) })
	})
}

// set changes the attributes of a file or folder, of those that a user may change. Owners stay: all is the cell's user's.
func (s *server) set(r *sftp.Request) error {
	asked, to := r.AttrFlags(), r.Attributes()
	if to == nil {
		return sftp.ErrSSHFxBadMessage
	}
	f, err := archive.Open(s.Root, r.Filepath, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return err
	case !st.Mode().IsRegular() && !st.IsDir(), asked.Size && st.IsDir():
		return unix.EPERM
	case asked.Size && to.Size > math.MaxInt64:
		return unix.EFBIG
	}
	if asked.Size {
		err = unix.Truncate(itself(f), int64(to.Size))
	}
	if err == nil && asked.Permissions {
		err = unix.Fchmodat(unix.AT_FDCWD, itself(f), to.Mode&0o777, 0)
	}
	if err == nil && asked.Acmodtime {
		err = unix.UtimesNanoAt(unix.AT_FDCWD, itself(f), []unix.Timespec{{Sec: int64(to.Atime)}, {Sec: int64(to.Mtime)}}, 0)
	}
	return err
}

// Filelist lists a directory, or describes the file that a path leads to.
func (s *server) Filelist(r *sftp.Request) (_ sftp.ListerAt, err error) {
	defer guarded(&err)
	switch r.Method {
	case "List":
		l, err := s.list(r.Filepath)
		if err != nil {
			return nil, status(err)
		}
		return l, nil
	case "Stat":
		l, err := s.about(r.Filepath, 0)
		return l, status(err)
	}
	return nil, sftp.ErrSSHFxOpUnsupported
}

// Lstat describes a file, or a symlink itself.
func (s *server) Lstat(r *sftp.Request) (_ sftp.ListerAt, err error) {
	defer guarded(&err)
	l, err := s.about(r.Filepath, unix.O_NOFOLLOW)
	return l, status(err)
}

// Readlink returns the text of a symlink.
func (s *server) Readlink(p string) (_ string, err error) {
	defer guarded(&err)
	f, err := archive.Open(s.Root, p, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", status(err)
	}
	defer f.Close()
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(f.Fd()), "", buf)
	if err != nil {
		return "", status(err)
	}
	return string(buf[:n]), nil
}

func (s *server) about(p string, flags int) (entries, error) {
	f, err := archive.Open(s.Root, p, unix.O_PATH|flags, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat() // of a descriptor: no path is resolved again
	if err != nil {
		return nil, err
	}
	return entries{named{st, path.Base(p)}}, nil
}

// named is what a file is, under the name that it has in the cell.
type named struct {
	os.FileInfo
	name string
}

func (n named) Name() string { return n.name }

// mostListed bounds the entries of a directory that is listed.
const mostListed = 100_000

func (s *server) list(p string) (_ *listing, err error) {
	if s.lists.Add(1) > mostLists {
		s.lists.Add(-1)
		return nil, errTooMany
	}
	l := &listing{s: s}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if l.dir, err = archive.Open(s.Root, p, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
		return nil, err
	}
	if l.names, err = l.dir.Readdirnames(mostListed + 1); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(l.names) > mostListed {
		return nil, errors.New("the directory has too many entries")
	}
	slices.Sort(l.names)
	return l, nil
}

// listing is a directory that a client reads piece by piece.
type listing struct {
	s     *server
	dir   *os.File
	names []string
	over  atomic.Bool

	mu   sync.Mutex
	read int // how many names were looked at
}

// ListAt describes the next files. The library asks for one piece after the other.
func (l *listing) ListAt(to []os.FileInfo, _ int64) (n int, err error) {
	defer guarded(&err)
	l.mu.Lock()
	defer l.mu.Unlock()
	for ; n < len(to) && l.read < len(l.names); l.read++ {
		name := l.names[l.read]
		fd, err := unix.Openat(int(l.dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // it has gone meanwhile
		}
		f := os.NewFile(uintptr(fd), name)
		st, err := f.Stat()
		f.Close()
		if err == nil {
			to[n] = named{st, name}
			n++
		}
	}
	if l.read == len(l.names) {
		return n, io.EOF
	}
	return n, nil
}

func (l *listing) Close() error {
	if l.over.Swap(true) {
		return nil
	}
	l.s.lists.Add(-1)
	if l.dir == nil {
		return nil
	}
	return l.dir.Close()
}

// entries is the answer to a question for one file.
type entries []os.FileInfo

func (e entries) ListAt(to []os.FileInfo, at int64) (int, error) {
	if at >= int64(len(e)) {
		return 0, io.EOF
	}
	n := copy(to, e[at:])
	if n < len(to) {
		return n, io.EOF
	}
	return n, nil
}
