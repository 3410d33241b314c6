package durabletest

import (
	"math/rand/v2"
	"slices"
)

// sector is what a disk writes completely or not at all.
const sector = 512

// Crash returns the disk as power loss at this moment leaves it at worst:
// only what was synced is there. The Disk itself is not changed.
func (d *Disk) Crash() *Disk { return d.crash(nil) }

// CrashSome returns the disk as power loss at this moment may leave it: of
// what was not synced, a part chosen by seed survives. Any of the changes of
// a directory may have reached the disk, in any combination, and any of the
// sectors of a write; what did not reads as zeros.
func (d *Disk) CrashSome(seed uint64) *Disk {
	return d.crash(rand.New(rand.NewPCG(seed, 0)))
}

// Kill returns the disk as it is when the process ends but the power stays:
// everything is there, and what was not synced is still not synced.
func (d *Disk) Kill() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := New()
	c.temps = d.temps
	c.root = d.root.copy(map[*node]*node{})
	return c
}

func (d *Disk) crash(r *rand.Rand) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := New()
	c.temps = d.temps
	c.root = d.root.crash(r, map[*node]*node{})
	return c
}

func (n *node) crash(r *rand.Rand, seen map[*node]*node) *node {
	if c := seen[n]; c != nil {
		return c
	}
	c := &node{perm: n.perm, name: n.name}
	seen[n] = c
	if !n.folder() {
		c.synced = slices.Clone(n.synced)
		for _, e := range n.edits {
			if r != nil && !e.lost {
				c.synced = e.some(r, c.synced)
			}
		}
		c.data = slices.Clone(c.synced)
		return c
	}
	names := clone(n.sure)
	for _, ch := range n.changes {
		if r != nil && r.IntN(2) == 0 {
			ch.apply(names)
		}
	}
	c.names, c.sure = map[string]*node{}, map[string]*node{}
	for _, name := range sorted(names) {
		c.names[name] = names[name].crash(r, seen)
		c.sure[name] = c.names[name]
	}
	return c
}

// some returns b after a part of e; b itself may be changed.
func (e edit) some(r *rand.Rand, b []byte) []byte {
	switch how := r.IntN(4); {
	case how == 0:
		return b
	case how == 1 || e.data == nil:
		return e.apply(b)
	case how == 2: // the beginning
		part := e
		part.data = e.data[:r.IntN(len(e.data)+1)]
		if len(part.data) == 0 {
			return b
		}
		return part.apply(b)
	}
	// The file has its new size and some of the sectors.
	b = resize(b, max(int64(len(b)), e.at+int64(len(e.data))))
	for at := e.at; at < e.at+int64(len(e.data)); {
		end := min((at/sector+1)*sector, e.at+int64(len(e.data)))
		if r.IntN(2) == 0 {
			copy(b[at:end], e.data[at-e.at:])
		}
		at = end
	}
	return b
}

func (n *node) copy(seen map[*node]*node) *node {
	if n == nil {
		return nil
	}
	if c := seen[n]; c != nil {
		return c
	}
	c := &node{perm: n.perm, name: n.name, data: slices.Clone(n.data), synced: slices.Clone(n.synced), edits: slices.Clone(n.edits)}
	seen[n] = c
	if n.folder() {
		c.names, c.sure = map[string]*node{}, map[string]*node{}
		for name, x := range n.names {
			c.names[name] = x.copy(seen)
		}
		for name, x := range n.sure {
			c.sure[name] = x.copy(seen)
		}
		for _, ch := range n.changes {
			ch.node = ch.node.copy(seen)
			c.changes = append(c.changes, ch)
		}
	}
	return c
}

func sorted(m map[string]*node) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
