package gofer

import (
	"sync"

	"golang.org/x/sys/unix"
)

// handle is an open file or directory.
type handle struct {
	id    uint64
	node  *node
	flags uint32 // of the guest's open
	dir   bool

	// Of Server.mu.
	uses int
	gone bool // released

	mu      sync.Mutex
	fd      int     // -1: not open yet
	list    []entry // of a directory that is being read
	listed  bool
	reached int // up to where the listing was read
}

// hostFlags are the flags that a file is opened with for a guest: with writes
// cached, its kernel also reads from what is open for writing, and it
// appends itself.
func hostFlags(flags uint32) int {
	if flags&unix.O_ACCMODE == unix.O_RDONLY {
		return unix.O_RDONLY
	}
	return unix.O_RDWR | int(flags&unix.O_TRUNC)
}

// addHandle makes a handle for n, on fd if that is not -1.
func (s *Server) addHandle(n *node, flags uint32, dir bool, fd int) (*handle, unix.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.handles) >= s.opts.MaxHandles {
		return nil, unix.ENFILE
	}
	if s.nodes[n.id] != n {
		return nil, unix.ESTALE
	}
	s.nextHandle++
	h := &handle{id: s.nextHandle, node: n, flags: flags &^ (unix.O_TRUNC | unix.O_CREAT | unix.O_EXCL), dir: dir, fd: fd}
	s.keep(h)
	return h, 0
}

func (s *Server) keep(h *handle) {
	s.handles[h.id] = h
	if h.node.handles == nil {
		h.node.handles = map[uint64]*handle{}
	}
	h.node.handles[h.id] = h
}

// use returns a handle of the kernel's, with its file open if it is no
// directory's; done gives it back.
func (s *Server) use(id uint64, dir bool) (*handle, unix.Errno) {
	s.mu.Lock()
	h := s.handles[id]
	if h == nil || h.dir != dir {
		s.mu.Unlock()
		return nil, unix.EBADF
	}
	h.uses++
	s.mu.Unlock()
	if !dir {
		h.mu.Lock()
		open := h.fd >= 0
		h.mu.Unlock()
		if !open {
			s.tree.RLock()
			e := s.openNow(h)
			s.tree.RUnlock()
			if e != 0 {
				s.done(h)
				return nil, e
			}
		}
	}
	return h, 0
}

func (s *Server) done(h *handle) {
	s.mu.Lock()
	h.uses--
	last := h.gone && h.uses == 0
	s.mu.Unlock()
	if last {
		s.shut(h)
	}
}

func (s *Server) shut(h *handle) {
	h.mu.Lock()
	if h.fd >= 0 {
		unix.Close(h.fd)
		h.fd = -1
	}
	n := len(h.list)
	h.list = nil
	h.mu.Unlock()
	s.listed.Add(-int64(n))
}

// release is the kernel's last word of a handle.
func (s *Server) release(id uint64, dir bool) unix.Errno {
	s.mu.Lock()
	h := s.handles[id]
	if h == nil || h.dir != dir {
		s.mu.Unlock()
		return unix.EBADF
	}
	delete(s.handles, id)
	if h.node.written() {
		h.node.seen = 0
	}
	delete(h.node.handles, id)
	h.gone = true
	last := h.uses == 0
	s.prune(h.node)
	s.mu.Unlock()
	if last {
		s.shut(h)
	}
	return 0
}

// openNow opens a handle that came with a state. Server.tree is held.
func (s *Server) openNow(h *handle) unix.Errno {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fd >= 0 || h.dir {
		return 0
	}
	names, e := s.path(h.node)
	if e != 0 {
		return e
	}
	at, e := s.walk(names)
	if e != 0 {
		return e
	}
	defer unix.Close(at)
	h.fd, e = reopen(at, hostFlags(h.flags))
	if e != 0 {
		h.fd = -1
	}
	return e
}

// openAll opens what is known as open of n and isn't yet, before n loses a name.
func (s *Server) openAll(n *node) {
	s.mu.Lock()
	var all []*handle
	for _, h := range n.handles {
		all = append(all, h)
	}
	s.mu.Unlock()
	for _, h := range all {
		s.openNow(h) // who fails here fails again, and is told
	}
}

// byHandle opens the place of a file without names.
func (s *Server) byHandle(n *node) (int, unix.Errno) {
	s.mu.Lock()
	var all []*handle
	for _, h := range n.handles {
		h.uses++
		all = append(all, h)
	}
	s.mu.Unlock()
	out, e := -1, unix.ESTALE
	for _, h := range all {
		h.mu.Lock()
		if h.fd >= 0 && out < 0 {
			fd, err := unix.Open(opened(h.fd), unix.O_PATH|unix.O_CLOEXEC, 0)
			out, e = fd, errnoOf(err)
		}
		h.mu.Unlock()
		s.done(h)
	}
	return out, e
}

// written reports whether somebody has n open for writing.
func (s *Server) written(n *node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return n.written()
}
