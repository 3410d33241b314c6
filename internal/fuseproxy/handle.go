package fuseproxy

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

	// Guarded by Server.mu.
	uses int
	gone bool // released

	mu      sync.Mutex
	fd      int     // -1: not open yet
	list    []entry // of a directory listing
	listed  bool
	reached int // offset up to which the listing was read
}

// hostFlags returns the flags with which a file is opened for a guest. With cached writes the
// guest's kernel also reads from files opened for writing, and does appends itself.
func hostFlags(flags uint32) int {
	if flags&unix.O_ACCMODE == unix.O_RDONLY {
		return unix.O_RDONLY
	}
	return unix.O_RDWR | int(flags&unix.O_TRUNC)
}

// addHandle creates a handle for n, with fd unless that is -1.
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

// use returns a handle by ID, with its file open unless it is a directory's. done releases it.
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

// release handles the kernel's release of a handle.
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

// openNow opens a handle restored from a state. The caller holds Server.tree.
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

// openAll opens the restored handles of n before n loses a name.
func (s *Server) openAll(n *node) {
	s.mu.Lock()
	var all []*handle
	for _, h := range n.handles {
		all = append(all, h)
	}
	s.mu.Unlock()
	for _, h := range all {
		s.openNow(h) // an error occurs again at the next use, and is reported there
	}
}

// byHandle opens the location of a file without names, through a handle.
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

// written reports whether n has a handle for writing.
func (s *Server) written(n *node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return n.written()
}
