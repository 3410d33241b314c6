package fuseproxy

import (
	"golang.org/x/sys/unix"
)

// create implements the requests that create links, device nodes and directories.
func (s *Server) create(r *request, a *answer) unix.Errno {
	var name, target string
	var mode, dev uint32
	var old uint64
	var e unix.Errno
	switch r.op {
	case opMknod:
		mode, dev = r.u32(), r.u32()
		r.u64() // umask, already applied by the kernel
		name, e = r.name()
		switch mode & unix.S_IFMT {
		case unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK:
			dev = 0
		case unix.S_IFCHR, unix.S_IFBLK:
			if !s.opts.Devices {
				return unix.EPERM
			}
		default:
			return unix.EINVAL
		}
	case opMkdir:
		mode, _ = r.u32(), r.u32()
		name, e = r.name()
	case opSymlink:
		name, e = r.name()
		if target = r.text(); e == 0 && (target == "" || len(target) > maxLink) {
			return unix.EINVAL
		}
	case opLink:
		old = r.u64()
		name, e = r.name()
	}
	if r.bad {
		return unix.EINVAL
	}
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
	switch r.op {
	case opLink:
		e = s.link(old, fd, name)
	case opMknod:
		e = s.as(r, func() error {
			return unix.Mknodat(fd, name, mode&(unix.S_IFMT|0o7777), int(unix.Mkdev(dev>>8&0xfff, dev&0xff|dev>>12&0xfff00)))
		})
	case opMkdir:
		e = s.as(r, func() error { return unix.Mkdirat(fd, name, mode&0o7777) })
	case opSymlink:
		e = s.as(r, func() error { return unix.Symlinkat(target, fd, name) })
	}
	if e != 0 {
		return e
	}
	var x unix.Statx_t
	if e := stat(fd, name, &x); e != 0 {
		return e
	}
	if r.op == opMknod || r.op == opMkdir {
		s.fixMode(fd, name, mode, &x)
	}
	_, e = s.enter(dir, name, &x, a)
	return e
}

// fixMode restores mode bits that this process's umask cleared.
func (s *Server) fixMode(dir int, name string, mode uint32, x *unix.Statx_t) {
	want := mode & 0o777 &^ (uint32(x.Mode) & 0o777)
	if want == 0 || x.Mode&unix.S_IFMT == unix.S_IFLNK {
		return
	}
	fd, e := openBeneath(dir, name)
	if e != 0 {
		return
	}
	defer unix.Close(fd)
	var now unix.Statx_t
	if stat(fd, "", &now) == 0 && now.Ino == x.Ino && now.Mode == x.Mode && unix.Chmod(opened(fd), uint32(x.Mode)&0o7777|want) == nil {
		stat(fd, "", x)
	}
}

func (s *Server) link(old uint64, dir int, name string) unix.Errno {
	n, e := s.node(old)
	if e != 0 {
		return e
	}
	if isDir(n.kind) {
		return unix.EPERM
	}
	at, e := s.at(n)
	if e != 0 {
		return e
	}
	defer unix.Close(at)
	// The descriptor's own link is followed, to the file itself, even if that is a symbolic
	// link.
	return errnoOf(unix.Linkat(unix.AT_FDCWD, opened(at), dir, name, unix.AT_SYMLINK_FOLLOW))
}

// createFile implements CREATE: a lookup and an open in one request.
func (s *Server) createFile(r *request, a *answer) unix.Errno {
	flags, mode, _, open := r.u32(), r.u32(), r.u32(), r.u32()
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
	file := -1
	e = s.as(r, func() (err error) {
		how := unix.OpenHow{Flags: uint64(hostFlags(flags)) | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC, Mode: uint64(mode & 0o1777),
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_SYMLINKS}
		file, err = unix.Openat2(fd, name, &how)
		return err
	})
	made := e == 0
	if e == unix.EEXIST && flags&unix.O_EXCL == 0 { // the host created it meanwhile
		var at int
		if at, e = openBeneath(fd, name); e != 0 {
			return e
		}
		file, e = reopen(at, hostFlags(flags))
		unix.Close(at)
	}
	if e != 0 {
		return e
	}
	// Set-user-ID and set-group-ID are set by a separate call, which a seccomp filter can
	// refuse. If it is refused, no file is created.
	if made && mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		if err := unix.Fchmod(file, mode&0o7777); err != nil {
			unix.Unlinkat(fd, name, 0)
			unix.Close(file)
			return errnoOf(err)
		}
	}
	var x unix.Statx_t
	if e := stat(file, "", &x); e != 0 {
		unix.Close(file)
		return e
	}
	switch {
	case made:
		s.fixMode(fd, name, mode, &x)
	case open&1 != 0 && flags&unix.O_TRUNC != 0:
		dropPriv(file)
	}
	n, e := s.enter(dir, name, &x, a)
	if e != 0 {
		unix.Close(file)
		return e
	}
	h, e := s.addHandle(n, flags, false, file)
	if e != 0 {
		unix.Close(file)
		s.mu.Lock()
		s.forget(n.id, 1)
		s.mu.Unlock()
		return e
	}
	a.u64(h.id)
	a.u32(openKeepCache)
	a.u32(0)
	return 0
}

// remove implements UNLINK and RMDIR.
func (s *Server) remove(r *request) unix.Errno {
	name, e := r.name()
	if e != 0 {
		return e
	}
	s.tree.Lock()
	defer s.tree.Unlock()
	dir, fd, e := s.dirAt(r.node)
	if e != 0 {
		return e
	}
	defer unix.Close(fd)
	n, x, e := s.child(dir, fd, name)
	if e != 0 {
		return e
	}
	flags := 0
	if r.op == opRmdir {
		flags = unix.AT_REMOVEDIR
	}
	if err := unix.Unlinkat(fd, name, flags); err != nil {
		return errnoOf(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed(n, dir, name, x)
	return 0
}

// child returns the node of a name that is about to be removed, with its files open, and the
// host's attributes. The caller holds Server.tree exclusively.
func (s *Server) child(dir *node, fd int, name string) (*node, *unix.Statx_t, unix.Errno) {
	var x unix.Statx_t
	if e := stat(fd, name, &x); e != 0 {
		return nil, nil, e
	}
	s.mu.Lock()
	n := dir.inside[name]
	s.mu.Unlock()
	if n != nil {
		s.openAll(n)
	}
	return n, &x, 0
}

// removed records the removal of a name; x are the attributes before. Without other names the
// inode number may be reused. The caller holds Server.mu.
func (s *Server) removed(n, dir *node, name string, x *unix.Statx_t) {
	if isDir(x.Mode) || x.Nlink <= 1 {
		if o := s.keys[keyOf(x)]; o != nil {
			s.unbind(o)
		}
	}
	if n != nil {
		s.unname(n, dir, name)
	}
}

func (s *Server) rename(r *request) unix.Errno {
	to := r.u64()
	flags := uint32(0)
	if r.op == opRename2 {
		flags = r.u32()
		r.u32()
	}
	name, e := r.name()
	if e != 0 {
		return e
	}
	toName, e := r.name()
	if e != 0 {
		return e
	}
	switch flags {
	case 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE:
	case unix.RENAME_WHITEOUT, unix.RENAME_WHITEOUT | unix.RENAME_NOREPLACE:
		if !s.opts.Devices {
			return unix.EINVAL
		}
	default:
		return unix.EINVAL
	}
	s.tree.Lock()
	defer s.tree.Unlock()
	dir, fd, e := s.dirAt(r.node)
	if e != 0 {
		return e
	}
	defer unix.Close(fd)
	toDir, toFd, e := s.dirAt(to)
	if e != 0 {
		return e
	}
	defer unix.Close(toFd)
	n, x, e := s.child(dir, fd, name)
	if e != 0 {
		return e
	}
	over, was, e := s.child(toDir, toFd, toName)
	if e != 0 && e != unix.ENOENT {
		return e
	}
	there := e == 0
	if err := unix.Renameat2(fd, name, toFd, toName, uint(flags)); err != nil {
		return errnoOf(err)
	}
	if there && flags&unix.RENAME_EXCHANGE == 0 && keyOf(x) == keyOf(was) {
		return 0 // two names of one file: both remain
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(toDir.absent, toName)
	// Keeps both directories alive while names move between them.
	dir.pins++
	toDir.pins++
	if n != nil {
		n.pins++
	}
	switch {
	case flags&unix.RENAME_EXCHANGE != 0:
		if over != nil {
			over.pins++
			s.unname(over, toDir, toName)
		}
		if n != nil {
			s.unname(n, dir, name)
			s.name(n, toDir, toName)
		}
		if over != nil {
			s.name(over, dir, name)
			over.pins--
			s.prune(over)
		}
	default:
		if there {
			s.removed(over, toDir, toName, was)
		}
		if n != nil {
			s.unname(n, dir, name)
			s.name(n, toDir, toName)
		}
	}
	if n != nil {
		n.pins--
		s.prune(n)
	}
	dir.pins--
	toDir.pins--
	s.prune(dir)
	s.prune(toDir)
	return 0
}
