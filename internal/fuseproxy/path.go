package fuseproxy

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of a path below root. A guest may make paths of any depth.
const (
	maxDepth = 4096
	maxPath  = 64 << 10
	maxStep  = 4000 // limit of the kernel per call
)

// errnoOf returns the errno of err.
func errnoOf(err error) unix.Errno {
	if err == nil {
		return 0
	}
	var e unix.Errno
	if errors.As(err, &e) && e != 0 {
		return e
	}
	return unix.EIO
}

// path returns the names from root to n, or an error if there are none.
func (s *Server) path(n *node) ([]string, unix.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	size := 0
	for n.id != rootNode {
		if len(n.names) == 0 {
			return nil, unix.ESTALE
		}
		p := n.names[0]
		size += len(p.name) + 1
		if len(names) >= maxDepth || size > maxPath {
			return nil, unix.ENAMETOOLONG
		}
		names = append(names, p.name)
		n = p.dir
	}
	for i, j := 0, len(names)-1; i < j; i, j = i+1, j-1 {
		names[i], names[j] = names[j], names[i]
	}
	return names, 0
}

// at opens n as a location only (O_PATH); the caller closes it. A file without names is opened
// through a handle. The caller holds Server.tree.
func (s *Server) at(n *node) (int, unix.Errno) {
	names, e := s.path(n)
	if e == unix.ESTALE {
		return s.byHandle(n)
	}
	if e != 0 {
		return -1, e
	}
	return s.walk(names)
}

func (s *Server) walk(names []string) (int, unix.Errno) {
	if len(names) == 0 {
		return openBeneath(int(s.root.Fd()), ".")
	}
	dir := int(s.root.Fd())
	for len(names) > 0 {
		n, size := 0, 0
		for n < len(names) && size+len(names[n])+1 < maxStep {
			size += len(names[n]) + 1
			n++
		}
		fd, e := openBeneath(dir, strings.Join(names[:n], "/"))
		if dir != int(s.root.Fd()) {
			unix.Close(dir)
		}
		if e != 0 {
			return -1, e
		}
		dir, names = fd, names[n:]
	}
	return dir, 0
}

func openBeneath(dir int, path string) (int, unix.Errno) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_SYMLINKS}
	for range 100 {
		fd, err := unix.Openat2(dir, path, &how)
		switch err {
		case nil:
			return fd, 0
		case unix.EAGAIN, unix.EINTR: // concurrent rename
			continue
		case unix.ELOOP, unix.EXDEV, unix.ENOTDIR: // a link instead of a known directory
			return -1, unix.ESTALE
		}
		return -1, errnoOf(err)
	}
	return -1, unix.ESTALE
}

// dirAt opens the directory of a request.
func (s *Server) dirAt(id uint64) (*node, int, unix.Errno) {
	n, e := s.node(id)
	if e != 0 {
		return nil, -1, e
	}
	if !isDir(n.kind) {
		return nil, -1, unix.ENOTDIR
	}
	fd, e := s.at(n)
	return n, fd, e
}

const statMask = unix.STATX_BASIC_STATS | unix.STATX_MNT_ID

// stat returns the attributes of name in dir, or of dir itself, without following links.
func stat(dir int, name string, x *unix.Statx_t) unix.Errno {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	return errnoOf(unix.Statx(dir, name, flags, statMask, x))
}

// opened returns the path of the exact file behind an O_PATH descriptor.
func opened(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// reopen opens the file at an O_PATH descriptor. It opens only regular files and directories.
func reopen(fd, flags int) (int, unix.Errno) {
	var x unix.Statx_t
	if e := stat(fd, "", &x); e != 0 {
		return -1, e
	}
	switch x.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if flags&unix.O_DIRECTORY != 0 {
			return -1, unix.ENOTDIR
		}
	case unix.S_IFDIR:
		if flags&unix.O_ACCMODE != unix.O_RDONLY || flags&unix.O_TRUNC != 0 {
			return -1, unix.EISDIR
		}
	default:
		return -1, unix.EACCES
	}
	out, err := unix.Open(opened(fd), flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	return out, errnoOf(err)
}

// as runs f, which creates a file, with the requesting user's IDs. Capabilities are kept: the
// guest's kernel has checked the permissions.
func (s *Server) as(r *request, f func() error) unix.Errno {
	if int(r.uid) == s.uid && int(r.gid) == s.gid {
		return errnoOf(f())
	}
	runtime.LockOSThread()
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		runtime.UnlockOSThread()
		return errnoOf(err)
	}
	e := func() unix.Errno {
		// Neither call reports failure, which happens for unmapped IDs. Setting an invalid ID
		// returns the current one.
		if unix.Setfsgid(int(r.gid)); r.gid == ^uint32(0) || fsID(unix.SetfsgidRetGid) != int(r.gid) {
			return unix.EOVERFLOW
		}
		if unix.Setfsuid(int(r.uid)); r.uid == ^uint32(0) || fsID(unix.SetfsuidRetUid) != int(r.uid) {
			return unix.EOVERFLOW
		}
		if err := unix.Capset(&head, &caps[0]); err != nil {
			return errnoOf(err)
		}
		return errnoOf(f())
	}()
	unix.Setfsuid(s.uid)
	unix.Setfsgid(s.gid)
	err := unix.Capset(&head, &caps[0])
	if err == nil && fsID(unix.SetfsuidRetUid) == s.uid && fsID(unix.SetfsgidRetGid) == s.gid {
		runtime.UnlockOSThread() // otherwise the thread ends with this worker
	}
	return e
}

func fsID(ask func(int) (int, error)) int {
	id, _ := ask(-1)
	return id
}

// proc reports whether this process can reopen files by descriptor.
func proc() bool {
	var st unix.Statfs_t
	if err := unix.Statfs("/proc/self/fd", &st); err != nil {
		return false
	}
	_, err := os.Lstat("/proc/self/fd")
	return err == nil && st.Type == unix.PROC_SUPER_MAGIC
}
