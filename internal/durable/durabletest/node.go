package durabletest

import (
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"syscall"

	"github.com/pando-dev/pando/internal/durable"
)

// A node is a file or a directory, as programs see it and as it is on the
// disk for sure. What lies between is what power loss may or may not leave.
type node struct {
	perm fs.FileMode
	name string // of files: where it is now, for the trace

	data   []byte // files
	synced []byte
	edits  []edit // from synced to data

	names   map[string]*node // directories; nil for files
	sure    map[string]*node
	changes []change // from sure to names
}

// An edit is a write, or when it has no data a change of size.
type edit struct {
	at   int64
	data []byte
	lost bool // a failed sync dropped it; later syncs don't write it
}

// A change of a directory takes a name away, enters one, or both at once.
type change struct {
	remove, enter string
	node          *node
}

func newFolder(perm fs.FileMode) *node {
	return &node{perm: perm, names: map[string]*node{}, sure: map[string]*node{}}
}

func (n *node) folder() bool { return n.names != nil }

func (n *node) info(name string) durable.Info {
	return durable.Info{Name: name, Size: int64(len(n.data)), Perm: n.perm, Dir: n.folder()}
}

func (n *node) enter(name string, c *node) { n.change(change{enter: name, node: c}) }

func (n *node) change(c change) {
	c.apply(n.names)
	n.changes = append(n.changes, c)
}

func (c change) apply(names map[string]*node) {
	if c.remove != "" {
		delete(names, c.remove)
	}
	if c.enter != "" {
		names[c.enter] = c.node
	}
}

func clone(m map[string]*node) map[string]*node { return maps.Clone(m) }

// apply returns b after e; b itself may be changed.
func (e edit) apply(b []byte) []byte {
	if e.data == nil {
		return resize(b, e.at)
	}
	b = resize(b, max(int64(len(b)), e.at+int64(len(e.data))))
	copy(b[e.at:], e.data)
	return b
}

func resize(b []byte, size int64) []byte {
	if int64(len(b)) >= size {
		return b[:size:size]
	}
	return append(b, make([]byte, size-int64(len(b)))...)
}

func (n *node) edit(e edit) {
	n.data = e.apply(n.data)
	n.edits = append(n.edits, e)
}

// sync puts everything on the disk that no failed sync has dropped.
func (n *node) sync() error {
	for _, e := range n.edits {
		if e.lost {
			n.synced = resize(n.synced, max(int64(len(n.synced)), e.at+int64(len(e.data))))
			continue
		}
		n.synced = e.apply(n.synced)
	}
	n.edits = nil
	return nil
}

// drop forgets what a failed sync was to write, as Linux does: the pages
// count as clean afterwards, and the next sync says that all is well.
func (n *node) drop() {
	for i := range n.edits {
		n.edits[i].lost = n.edits[i].data != nil
	}
}

type file struct {
	d    *Disk
	name string
	n    *node
}

func (f *file) Name() string { return f.name }

func (f *file) Write(p []byte) (n int, err error) {
	err = f.d.do(f.call("write"), func() error {
		p := p
		var full error
		if f.d.space >= 0 && int64(len(p)) > f.d.space {
			p, full = p[:f.d.space], pathErr("write", f.name, syscall.ENOSPC)
		}
		if f.d.space >= 0 {
			f.d.space -= int64(len(p))
		}
		n = len(p)
		if n > 0 {
			f.n.edit(edit{at: int64(len(f.n.data)), data: slices.Clone(p)})
		}
		return full
	})
	return n, err
}

func (f *file) Sync() error     { return f.d.do(f.call("sync"), f.n.sync, f.n.drop) }
func (f *file) SyncData() error { return f.d.do(f.call("syncdata"), f.n.sync, f.n.drop) }

func (f *file) call(op string) Call {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return Call{Op: op, Name: f.n.name}
}

func (f *file) Truncate(size int64) error {
	return f.d.do(f.call("truncate"), func() error {
		if f.d.space >= 0 {
			f.d.space += int64(len(f.n.data)) - size
		}
		f.n.edit(edit{at: size})
		return nil
	})
}

func (f *file) Close() error {
	return f.d.do(f.call("close"), func() error { return nil })
}

type reader struct {
	d    *Disk
	name string
	n    *node
}

func (r *reader) ReadAt(p []byte, off int64) (int, error) {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	if off >= int64(len(r.n.data)) {
		return 0, io.EOF
	}
	n := copy(p, r.n.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (r *reader) Info() (durable.Info, error) {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	return r.n.info(path.Base(r.name)), nil
}

func (r *reader) Close() error { return nil }
