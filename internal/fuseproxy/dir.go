package fuseproxy

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// entry is a name in a directory listing.
type entry struct {
	name string
	ino  uint64
	kind uint8
}

func (s *Server) opendir(r *request, a *answer) unix.Errno {
	n, e := s.node(r.node)
	if e != 0 {
		return e
	}
	if !isDir(n.kind) {
		return unix.ENOTDIR
	}
	h, e := s.addHandle(n, r.u32(), true, -1)
	if e != 0 {
		return e
	}
	a.u64(h.id)
	a.u32(openKeepCache | openCacheDir)
	a.u32(0)
	return 0
}

// readdir implements READDIR and READDIRPLUS. A listing is read completely at its start, so
// that a reader's offset is valid in a copy of the tree, too.
func (s *Server) readdir(r *request, a *answer) unix.Errno {
	fh, off, size := r.u64(), r.u64(), r.u32()
	if r.bad || size > maxData {
		return unix.EINVAL
	}
	h, e := s.use(fh, true)
	if e != 0 {
		return e
	}
	defer s.done(h)
	s.tree.RLock()
	defer s.tree.RUnlock()
	at, e := s.at(h.node) // before h.mu: files without names are found by handles
	switch {
	case e == unix.ESTALE || e == unix.ENOENT:
		return 0 // the directory was removed and is empty
	case e != 0:
		return e
	}
	defer unix.Close(at)
	h.mu.Lock()
	defer h.mu.Unlock()
	if off == 0 || !h.listed {
		if e := s.list(h, at); e != 0 {
			return e
		}
	}
	limit := outSize + int(size)
	i := int(min(off, uint64(len(h.list))))
	for ; i < len(h.list); i++ {
		x := &h.list[i]
		need := 24 + (len(x.name)+7)&^7
		if r.op == opReaddirplus {
			need += 128
		}
		if len(a.b)+need > limit {
			break
		}
		if r.op == opReaddirplus {
			s.plus(h.node, at, x, a)
		}
		a.u64(x.ino)
		a.u64(uint64(i) + 1)
		a.u32(uint32(len(x.name)))
		a.u32(uint32(x.kind))
		a.text(x.name)
		a.zero((8 - len(x.name)%8) % 8)
	}
	h.reached = i
	if i == len(h.list) && off > 0 && i == int(off) {
		s.listed.Add(-int64(len(h.list))) // at the end: no more reads
		h.list, h.listed = nil, false
		h.reached = 0
	}
	return 0
}

// plus adds the attributes of a name, or nothing if they cannot be read.
func (s *Server) plus(dir *node, at int, x *entry, a *answer) {
	var st unix.Statx_t
	if x.name != "." && x.name != ".." && stat(at, x.name, &st) == 0 {
		mark := len(a.b)
		n, e := s.enter(dir, x.name, &st, a)
		if e == 0 {
			x.ino = n.ino
			return
		}
		a.b = a.b[:mark]
	}
	a.zero(128)
}

// list reads a directory.
func (s *Server) list(h *handle, at int) unix.Errno {
	var x unix.Statx_t
	if e := stat(at, "", &x); e != 0 {
		return e
	}
	dev := keyOf(&x).dev
	fd, e := reopen(at, unix.O_RDONLY|unix.O_DIRECTORY)
	if e != 0 {
		return e
	}
	defer unix.Close(fd)
	s.listed.Add(-int64(len(h.list)))
	h.list, h.listed = nil, false
	var all []entry
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return errnoOf(err)
		}
		if n == 0 {
			break
		}
		before := len(all)
		s.mu.Lock()
		for b := buf[:n]; len(b) >= 19; {
			size := int(binary.NativeEndian.Uint16(b[16:]))
			if size < 19 || size > len(b) {
				break
			}
			name := b[19:size]
			if i := bytes.IndexByte(name, 0); i >= 0 {
				name = name[:i]
			}
			y := entry{name: string(name), kind: b[18], ino: s.told(dev, binary.NativeEndian.Uint64(b))}
			if c := h.node.inside[y.name]; c != nil {
				y.ino = c.ino
			}
			all = append(all, y)
			b = b[size:]
		}
		s.mu.Unlock()
		if s.listed.Add(int64(len(all)-before)) > int64(s.opts.MaxListed) {
			s.listed.Add(-int64(len(all)))
			return unix.ENOMEM
		}
	}
	h.list, h.listed = all, true
	return 0
}
