package gofer

import (
	"golang.org/x/sys/unix"
)

// rootNode is the number that the protocol gives the root.
const rootNode = 1

// node is what the kernel knows a file by. All of it is guarded by Server.mu; names
// are taken away only under Server.tree, too.
type node struct {
	id      uint64
	ino     uint64 // as it was told
	kind    uint16 // of the mode
	lookups uint64 // how often the kernel was told of it
	names   []place
	inside  map[string]*node // what is known in this directory
	absent  map[string]bool  // names that the kernel knows not to be here
	key     key
	links   bool   // has other names on the host
	seen    uint64 // a sum of what was told of it last, 0: nothing, or the guest has written since
	handles map[uint64]*handle
	last    *node      // the directory where a file without names was
	pins    int        // files that had their last name here
	lost    unix.Errno // why the last write that the kernel had cached did not succeed
}

// place is a name in a directory.
type place struct {
	dir  *node
	name string
}

// key is what the host knows a file by. The mount is part of it: under another
// mount the same file may be read-only, or hidden.
type key struct{ dev, mnt, ino uint64 }

func keyOf(x *unix.Statx_t) key {
	return key{uint64(x.Dev_major)<<32 | uint64(x.Dev_minor), x.Mnt_id, x.Ino}
}

func isDir(kind uint16) bool { return kind&unix.S_IFMT == unix.S_IFDIR }

// told makes one number of a device and its inode's, unique over devices: the
// upper sixteen bits count devices, and what devices keep in these bits themselves.
// Server.mu is held.
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

// enter returns the node of a name that was just looked at, and counts that the
// kernel is told of it. Server.tree is held.
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

// known finds or makes a node. By name first: an overlay's file may get another
// number when it is written. What the host has changed is another node, of which the
// kernel keeps nothing: it never takes a size or a time from us for one that it knows.
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
		s.unbind(other) // it was moved or deleted behind our back
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

// unname takes a name away from n, which may be forgotten with that.
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

// unbind forgets by which number the host knows n.
func (s *Server) unbind(n *node) {
	if s.keys[n.key] == n {
		delete(s.keys, n.key)
	}
	n.key = key{}
}

// prune drops n if nobody needs it any more, and then what was kept for it.
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

// forget takes back what the kernel was told.
func (s *Server) forget(id, count uint64) {
	if n := s.nodes[id]; n != nil {
		n.lookups -= min(n.lookups, count)
		s.prune(n)
	}
}

// lack notes that the kernel is told that a name is not there, and reports
// whether it may keep that in mind: only what is noted can be taken back.
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
		s.absent = 0 // what was deleted since is not counted
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

// foreign reports whether the host has changed a file behind the guest's back. While the
// guest writes to it nobody can tell. Server.mu is held.
func (n *node) foreign(x *unix.Statx_t) bool {
	return !isDir(n.kind) && n.seen != 0 && n.seen != sum(x) && !n.written()
}

// written reports whether the guest may write to a file. Server.mu is held.
func (n *node) written() bool {
	for _, h := range n.handles {
		if h.flags&unix.O_ACCMODE != unix.O_RDONLY {
			return true
		}
	}
	return false
}

// node returns a node that the kernel names.
func (s *Server) node(id uint64) (*node, unix.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[id]; n != nil {
		return n, 0
	}
	return nil, unix.ESTALE
}

// prime is FNV's.
const prime = 1099511628211

// sum is of what of a file tells that somebody changed it, whatever its number
// is; never 0.
func sum(x *unix.Statx_t) uint64 {
	h := uint64(14695981039346656037)
	parts := []uint64{uint64(x.Mode), uint64(x.Uid), uint64(x.Gid), uint64(x.Mtime.Sec), uint64(x.Mtime.Nsec)}
	if !isDir(x.Mode) {
		parts = append(parts, x.Size) // a directory's differs from copy to copy
	}
	for _, v := range parts {
		h = (h ^ v) * prime
		h ^= h >> 29
	}
	return max(h, 1)
}
