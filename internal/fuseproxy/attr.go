package fuseproxy

import (
	"golang.org/x/sys/unix"
)

// Attributes that SETATTR changes (FATTR_…).
const (
	setMode = 1 << iota
	setUID
	setGID
	setSize
	setAtime
	setMtime
	setHandle
	setAtimeNow
	setMtimeNow
	_ // lock owner
	_ // ctime: the host's kernel maintains it
	killPriv
)

func (s *Server) lookup(r *request, a *answer) unix.Errno {
	name, e := r.name()
	if e != 0 {
		return e
	}
	s.tree.RLock()
	defer s.tree.RUnlock()
	dir, fd, e := s.dirAt(r.node)
	if e != 0 {
		return e
	}
	defer unix.Close(fd)
	var x unix.Statx_t
	switch e := stat(fd, name, &x); {
	case e == unix.ENOENT && s.lack(dir, name):
		s.gone(dir, name)
		a.entry(nil, nil)
		return 0
	case e != 0:
		return e
	}
	_, e = s.enter(dir, name, &x, a)
	return e
}

// gone removes a name that was deleted on the host.
func (s *Server) gone(dir *node, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := dir.inside[name]; n != nil {
		s.unbind(n)
		s.unname(n, dir, name)
	}
}

// statNode answers with a node's attributes. Changes on the host are detected at the next
// lookup of its name, unless the guest has just changed it.
func (s *Server) statNode(n *node, fd int, itself bool, a *answer) unix.Errno {
	var x unix.Statx_t
	if e := stat(fd, "", &x); e != 0 {
		return e
	}
	s.mu.Lock()
	if itself || !n.foreign(&x) {
		n.seen = sum(&x)
	}
	s.mu.Unlock()
	a.u64(keepFor)
	a.u64(0)
	a.attr(n.ino, &x)
	return 0
}

// place opens the path of the request's node.
func (s *Server) place(id uint64) (*node, int, unix.Errno) {
	n, e := s.node(id)
	if e != 0 {
		return nil, -1, e
	}
	s.tree.RLock()
	defer s.tree.RUnlock()
	fd, e := s.at(n)
	return n, fd, e
}

// byFile is the flag of GETATTR for a request with a handle.
const byFile = 1

func (s *Server) getattr(r *request, a *answer) unix.Errno {
	flags, _, fh := r.u32(), r.u32(), r.u64()
	n, fd, e := s.place(r.node)
	if e != 0 {
		return e
	}
	defer unix.Close(fd)
	if flags&byFile != 0 {
		if e := s.lost(n, fh); e != 0 {
			return e
		}
	}
	return s.statNode(n, fd, false, a)
}

func (s *Server) setattr(r *request, a *answer) unix.Errno {
	valid := r.u32()
	r.u32()
	fh, size := r.u64(), r.u64()
	r.u64() // lock owner
	atime, mtime := int64(r.u64()), int64(r.u64())
	r.u64() // ctime
	atimeNs, mtimeNs := r.u32(), r.u32()
	r.u32()
	mode := r.u32()
	r.u32()
	uid, gid := r.u32(), r.u32()
	if r.bad {
		return unix.EINVAL
	}
	n, fd, e := s.place(r.node)
	if e != 0 {
		return e
	}
	defer unix.Close(fd)
	if valid&(setUID|setGID) != 0 {
		owner, group := -1, -1
		if valid&setUID != 0 {
			owner = int(uid)
		}
		if valid&setGID != 0 {
			group = int(gid)
		}
		if err := unix.Fchownat(fd, "", owner, group, unix.AT_EMPTY_PATH); err != nil {
			return errnoOf(err)
		}
	}
	if valid&setMode != 0 {
		if n.kind == unix.S_IFLNK {
			return unix.EOPNOTSUPP
		}
		if err := unix.Chmod(opened(fd), mode&0o7777); err != nil {
			return errnoOf(err)
		}
	}
	if valid&setSize != 0 {
		if size > 1<<63-1 {
			return unix.EFBIG
		}
		if e := s.truncate(n, fd, fh, valid, int64(size)); e != 0 {
			return e
		}
	}
	if valid&killPriv != 0 {
		dropPriv(fd)
	}
	if valid&(setAtime|setMtime) != 0 {
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}
		for i, x := range []struct {
			set, now uint32
			sec      int64
			ns       uint32
		}{{setAtime, setAtimeNow, atime, atimeNs}, {setMtime, setMtimeNow, mtime, mtimeNs}} {
			switch {
			case valid&x.set == 0:
			case valid&x.now != 0:
				ts[i].Nsec = unix.UTIME_NOW
			case x.ns >= 1e9:
				return unix.EINVAL
			default:
				ts[i] = unix.Timespec{Sec: x.sec, Nsec: int64(x.ns)}
			}
		}
		if err := unix.UtimesNanoAt(fd, "", ts, unix.AT_EMPTY_PATH); err != nil {
			return errnoOf(err)
		}
	}
	return s.statNode(n, fd, true, a)
}

// truncate truncates through the request's handle, or else by path.
func (s *Server) truncate(n *node, fd int, fh uint64, valid uint32, size int64) unix.Errno {
	if n.kind != unix.S_IFREG {
		return unix.EINVAL
	}
	if valid&setHandle != 0 {
		if h, e := s.use(fh, false); e == 0 {
			defer s.done(h)
			if h.node == n && h.flags&unix.O_ACCMODE != unix.O_RDONLY {
				return errnoOf(unix.Ftruncate(h.fd, size))
			}
		}
	}
	return errnoOf(unix.Truncate(opened(fd), size))
}

// dropPriv clears set-user-ID and set-group-ID, like the kernel after a write without the right
// to keep them. The host's kernel clears file capabilities after any write.
func dropPriv(fd int) {
	var x unix.Statx_t
	if stat(fd, "", &x) != 0 || x.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	mode := uint32(x.Mode) & 0o7777
	keep := mode &^ unix.S_ISUID
	if mode&0o010 != 0 {
		keep &^= unix.S_ISGID
	}
	if keep != mode {
		unix.Chmod(opened(fd), keep)
	}
}

func (s *Server) readlink(r *request, a *answer) unix.Errno {
	n, fd, e := s.place(r.node)
	if e != 0 {
		return e
	}
	defer unix.Close(fd)
	if n.kind != unix.S_IFLNK {
		return unix.EINVAL
	}
	b := a.room(maxLink + 1)
	k, err := unix.Readlinkat(fd, "", b)
	if err != nil {
		return errnoOf(err)
	}
	a.cut(maxLink+1, k)
	return 0
}

func (s *Server) statfs(r *request, a *answer) unix.Errno {
	_, fd, e := s.place(r.node)
	if e != 0 {
		return e
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return errnoOf(err)
	}
	a.u64(st.Blocks)
	a.u64(st.Bfree)
	a.u64(st.Bavail)
	a.u64(st.Files)
	a.u64(st.Ffree)
	a.u32(uint32(st.Bsize))
	a.u32(uint32(st.Namelen))
	a.u32(uint32(st.Frsize))
	a.zero(28)
	return 0
}
