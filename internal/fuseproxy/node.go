package fuseproxy

import (
	"golang.org/x/sys/unix"
)

// rootNode is the root's node ID in the protocol.
const rootNode = 1

// node is a file that the kernel knows. Server.mu guards it; removing names also requires
// Server.tree.
type node struct {
	id      uint64
	ino     uint64 // as sent to the guest
	kind    uint16 // file type bits of the mode
	lookups uint64 // reference count of the kernel's lookups
	names   []place
	inside  map[string]*node // known nodes in this directory
	absent  map[string]bool  // names that the kernel knows to be absent
	key     key
	links   bool   // it has other names on the host
	seen    uint64 // checksum of the attributes sent last; 0: none, or the guest has written since
	handles map[uint64]*handle
	last    *node      // directory of the last name of a file without names
	pins    int        // files that had their last name here
	lost    unix.Errno // error of the last cached write that failed
}

// place is a name in a directory.
type place struct {
	dir  *node
	name string
}

// key identifies a file on the host. The mount is part of it: under another mount the same file
// may be read-only, or hidden.
type key struct{ dev, mnt, ino uint64 }

func keyOf(x *unix.Statx_t) key {
	return key{uint64(x.Dev_major)<<32 | uint64(x.Dev_minor), x.Mnt_id, x.Ino}
}

func isDir(kind uint16) bool { return kind&unix.S_IFMT == unix.S_IFDIR }

// told combines a device and an inode number into one that is unique across devices. The upper
// sixteen bits count devices and the values that devices use in these bits. The caller holds
// Server.mu.
func (s *Server) told(dev, ino uint64) uint64 {
	k := [2]uint64{dev, ino >> 48}
	i, ok := s.devices[k]
	if !ok {
		s.nextDevice++
		i = min(s.nextDevice, 1<<16-1)
		if len(s.devices) < 1<<16 {
			s.devices[k] = i
		}
	}
	return i<<48 | ino&(1<<48-1)
}

// enter returns the node of a name that was just looked up, and counts the kernel's reference.
// The caller holds Server.tree.
func (s *Server) enter(dir *node, name string, x *unix.Statx_t, a *answer) (*node, unix.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, e := s.known(dir, name, x)
	if e != 0 {
		return nil, e
	}
	delete(dir.absent, name)
	n.lookups++
	n.links = !isDir(n.kind) && x.Nlink > 1
	n.seen = sum(x)
	a.entry(n, x)
	return n, 0
}

// known finds or creates a node. It searches by name first, because an overlay's file may get
// another number when it is written. A file that the host has changed becomes another node
// without cached data: the kernel takes no size or time from the server for a known node.
func (s *Server) known(dir *node, name string, x *unix.Statx_t) (*node, unix.Errno) {
	k, kind := keyOf(x), x.Mode&unix.S_IFMT
	n := dir.inside[name]
	if n != nil && (n.kind != kind || n.key != k && len(n.names) > 1 || n.foreign(x)) {
		s.unname(n, dir, name)
		n = nil
	}
	other := s.keys[k]
	if other != nil && other != n {
		if n == nil && !isDir(kind) && other.kind == kind && x.Nlink > 1 && !other.foreign(x) {
			s.name(other, dir, name)
			return other, 0
		}
		s.unbind(other) // moved or deleted on the host
	}
	if n == nil {
		if len(s.nodes) >= s.opts.MaxNodes {
			return nil, unix.ENOMEM
		}
		s.nextNode++
		n = &node{id: s.nextNode, ino: s.told(k.dev, k.ino), kind: kind}
		s.nodes[n.id] = n
		s.name(n, dir, name)
	}
	if n.key != k {
		s.unbind(n)
		n.key = k
		s.keys[k] = n
	}
	return n, 0
}

func (s *Server) name(n, dir *node, name string) {
	if old := dir.inside[name]; old == n {
		return
	} else if old != nil {
		s.unname(old, dir, name)
	}
	if dir.inside == nil {
		dir.inside = map[string]*node{}
	}
	dir.inside[name] = n
	n.names = append(n.names, place{dir, name})
	s.unpin(n)
}

// unname removes a name from n, and drops n if it is unused.
func (s *Server) unname(n, dir *node, name string) {
	if dir.inside[name] != n {
		return
	}
	delete(dir.inside, name)
	for i, p := range n.names {
		if p.dir == dir && p.name == name {
			n.names = append(n.names[:i], n.names[i+1:]...)
			break
		}
	}
	if len(n.names) == 0 && n.last == nil && dir != n {
		n.last = dir
		dir.pins++
	}
	s.prune(n)
	s.prune(dir)
}

func (s *Server) unpin(n *node) {
	if d := n.last; d != nil {
		n.last = nil
		d.pins--
		s.prune(d)
	}
}

// unbind removes n's key.
func (s *Server) unbind(n *node) {
	if s.keys[n.key] == n {
		delete(s.keys, n.key)
	}
	n.key = key{}
}

// prune drops n if it is unused, and then its unused parents.
func (s *Server) prune(n *node) {
	for n != nil && n.id != rootNode && n.lookups == 0 && len(n.inside) == 0 && len(n.handles) == 0 && n.pins == 0 && s.nodes[n.id] == n {
		delete(s.nodes, n.id)
		s.unbind(n)
		s.drop(n)
		above := n.last
		n.last = nil
		if above != nil {
			above.pins--
		}
		for i, p := range n.names {
			if p.dir.inside[p.name] == n {
				delete(p.dir.inside, p.name)
			}
			if i > 0 {
				s.prune(p.dir) // one more per hard link
			} else {
				above = p.dir
			}
		}
		n.names = nil
		n = above
	}
}

// forget subtracts kernel references.
func (s *Server) forget(id, count uint64) {
	if n := s.nodes[id]; n != nil {
		n.lookups -= min(n.lookups, count)
		s.prune(n)
	}
}

// lack records that a name is absent, and reports whether the kernel may cache that: only
// recorded names can be invalidated.
func (s *Server) lack(dir *node, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[dir.id] != dir {
		return false
	}
	if dir.absent[name] {
		return true
	}
	if s.absent >= s.opts.MaxAbsent {
		s.absent = 0 // recount: deletions since then were not subtracted
		for _, n := range s.nodes {
			s.absent += len(n.absent)
		}
		if s.absent >= s.opts.MaxAbsent {
			return false
		}
	}
	if dir.absent == nil {
		dir.absent = map[string]bool{}
	}
	dir.absent[name] = true
	s.absent++
	return true
}

func (s *Server) drop(n *node) {
	s.absent -= min(s.absent, len(n.absent))
	n.absent = nil
}

// foreign reports whether the host has changed a file. While the guest writes to it, this
// cannot be determined. The caller holds Server.mu.
func (n *node) foreign(x *unix.Statx_t) bool {
	return !isDir(n.kind) && n.seen != 0 && n.seen != sum(x) && !n.written()
}

// written reports whether the guest may write to a file. The caller holds Server.mu.
func (n *node) written() bool {
	for _, h := range n.handles {
		if h.flags&unix.O_ACCMODE != unix.O_RDONLY {
			return true
		}
	}
	return false
}

// node returns a node by its ID.
func (s *Server) node(id uint64) (*node, unix.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[id]; n != nil {
		return n, 0
	}
	return nil, unix.ESTALE
}

// prime is the prime of FNV.
const prime = 1099511628211

// sum is a checksum of the attributes that show a change of a file, without its number; never
// 0.
func sum(x *unix.Statx_t) uint64 {
	h := uint64(14695981039346656037)
	parts := []uint64{uint64(x.Mode), uint64(x.Uid), uint64(x.Gid), uint64(x.Mtime.Sec), uint64(x.Mtime.Nsec)}
	if !isDir(x.Mode) {
		parts = append(parts, x.Size) // a directory's size differs between copies
	}
	for _, v := range parts {
		h = (h ^ v) * prime
		h ^= h >> 29
	}
	return max(h, 1)
}
