package fuseproxy

import (
	"golang.org/x/sys/unix"
)

func (s *Server) open(r *request, a *answer) unix.Errno {
	flags, open := r.u32(), r.u32()
	if r.bad {
		return unix.EINVAL
	}
	n, at, e := s.place(r.node)
	if e != 0 {
		return e
	}
	defer unix.Close(at)
	if n.kind != unix.S_IFREG {
		return unix.EACCES
	}
	fd, e := reopen(at, hostFlags(flags))
	if e != 0 {
		return e
	}
	if open&1 != 0 && flags&unix.O_TRUNC != 0 {
		dropPriv(fd)
	}
	h, e := s.addHandle(n, flags, false, fd)
	if e != 0 {
		unix.Close(fd)
		return e
	}
	s.opens(n, flags)
	a.u64(h.id)
	a.u32(openKeepCache)
	a.u32(0)
	return 0
}

func (s *Server) read(r *request, a *answer) unix.Errno {
	fh, off, size := r.u64(), r.u64(), r.u32()
	if r.bad || size > maxData || off > 1<<63-1 {
		return unix.EINVAL
	}
	h, e := s.use(fh, false)
	if e != 0 {
		return e
	}
	defer s.done(h)
	b := a.room(int(size))
	got := 0
	for got < len(b) {
		n, err := unix.Pread(h.fd, b[got:], int64(off)+int64(got))
		if err == unix.EINTR {
			continue
		}
		if err != nil && got == 0 {
			return errnoOf(err)
		}
		if n <= 0 {
			break
		}
		got += n
	}
	a.cut(len(b), got)
	return 0
}

// Flags of WRITE.
const (
	writeCached    = 1 << 0 // from the kernel's cache: the writer does not wait
	writeDropsPriv = 1 << 2
)

func (s *Server) write(r *request, a *answer) unix.Errno {
	fh, off, size, flags := r.u64(), r.u64(), r.u32(), r.u32()
	r.u64() // lock owner
	r.u64() // flags of the open, padding
	b := r.take(int(size))
	if r.bad || size > maxData || off > 1<<63-1 {
		return unix.EINVAL
	}
	h, e := s.use(fh, false)
	if e != 0 {
		return e
	}
	defer s.done(h)
	if h.flags&unix.O_ACCMODE == unix.O_RDONLY {
		return unix.EBADF
	}
	put, e := writeAll(h.fd, b, int64(off))
	if flags&writeCached != 0 {
		s.lose(h.node, e) // the kernel considers the missing part written
		if e != 0 {
			return e
		}
	}
	if e != 0 && put == 0 {
		return e
	}
	if flags&writeDropsPriv != 0 {
		dropPriv(h.fd)
	}
	a.u32(uint32(put))
	a.u32(0)
	return 0
}

// writeAll writes as much of b at off as there is room for. A file system may refuse a large
// write completely although a part would fit; so smaller ones are tried.
func writeAll(fd int, b []byte, off int64) (put int, e unix.Errno) {
	most := len(b)
	for put < len(b) {
		n, err := unix.Pwrite(fd, b[put:min(put+most, len(b))], off+int64(put))
		if err == unix.EINTR {
			continue
		}
		if most = min(most, len(b)-put); most > smallest && (err == unix.ENOSPC || err == unix.EDQUOT) {
			most = max(most/2, smallest)
			continue
		}
		if err != nil {
			return put, errnoOf(err)
		}
		if n <= 0 {
			break
		}
		put += n
	}
	return put, 0
}

// smallest is the size of the smallest attempted write, in bytes.
const smallest = 4096

// lose records the error of a cached write. The guest's kernel reports it at fsync or close
// only; lost reports it to programs that only write.
func (s *Server) lose(n *node, e unix.Errno) {
	s.mu.Lock()
	n.lost = e
	s.mu.Unlock()
}

// lost returns the error of cached writes to n, once, to a request by a handle for writing. A
// kernel makes such a request before the next cached write, if it was told of the file more
// than keepFor ago.
func (s *Server) lost(n *node, fh uint64) (e unix.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.handles[fh]; n.lost != 0 && h != nil && h.node == n && h.flags&unix.O_ACCMODE != unix.O_RDONLY {
		e, n.lost = n.lost, 0
	}
	return e
}

// sync implements FSYNC, FSYNCDIR and SYNCFS.
func (s *Server) sync(r *request) unix.Errno {
	fh, flags := r.u64(), uint32(0)
	if r.op == opFsync {
		flags = r.u32()
	}
	if r.bad {
		return unix.EINVAL
	}
	if r.op == opFsync {
		h, e := s.use(fh, false)
		if e != 0 {
			return e
		}
		defer s.done(h)
		if flags&1 != 0 {
			return errnoOf(unix.Fdatasync(h.fd))
		}
		return errnoOf(unix.Fsync(h.fd))
	}
	_, at, e := s.place(r.node)
	if e != 0 {
		return e
	}
	defer unix.Close(at)
	fd, e := reopen(at, unix.O_RDONLY|unix.O_DIRECTORY)
	if e != 0 {
		return e
	}
	defer unix.Close(fd)
	if r.op == opSyncfs {
		return errnoOf(unix.Syncfs(fd))
	}
	return errnoOf(unix.Fsync(fd))
}

func (s *Server) fallocate(r *request) unix.Errno {
	fh, off, size, mode := r.u64(), r.u64(), r.u64(), r.u32()
	if r.bad || off > 1<<63-1 || size > 1<<63-1 {
		return unix.EINVAL
	}
	h, e := s.use(fh, false)
	if e != 0 {
		return e
	}
	defer s.done(h)
	if h.flags&unix.O_ACCMODE == unix.O_RDONLY {
		return unix.EBADF
	}
	return errnoOf(unix.Fallocate(h.fd, mode, int64(off), int64(size)))
}

// lseek finds data and holes. The guest's cache may contain data that its kernel does not
// consider here. So while the file is open for writing it has no answer, and programs read
// everything.
func (s *Server) lseek(r *request, a *answer) unix.Errno {
	fh, off, whence := r.u64(), r.u64(), r.u32()
	if r.bad || off > 1<<63-1 || whence != unix.SEEK_DATA && whence != unix.SEEK_HOLE {
		return unix.EINVAL
	}
	h, e := s.use(fh, false)
	if e != 0 {
		return e
	}
	defer s.done(h)
	if s.written(h.node) {
		return unix.EINVAL
	}
	at, err := unix.Seek(h.fd, int64(off), int(whence))
	if err != nil {
		return errnoOf(err)
	}
	a.u64(uint64(at))
	return 0
}

func (s *Server) copyRange(r *request, a *answer) unix.Errno {
	from, off := r.u64(), r.u64()
	r.u64() // destination node
	to, toOff, size, flags := r.u64(), r.u64(), r.u64(), r.u64()
	if r.bad || off > 1<<62 || toOff > 1<<62 || flags != 0 {
		return unix.EINVAL
	}
	h, e := s.use(from, false)
	if e != 0 {
		return e
	}
	defer s.done(h)
	t, e := s.use(to, false)
	if e != 0 {
		return e
	}
	defer s.done(t)
	if t.flags&unix.O_ACCMODE == unix.O_RDONLY {
		return unix.EBADF
	}
	i, o := int64(off), int64(toOff)
	n, err := unix.CopyFileRange(h.fd, &i, t.fd, &o, int(min(size, 1<<30)), 0)
	if err != nil {
		return errnoOf(err)
	}
	a.u32(uint32(n))
	a.u32(0)
	return 0
}
