package durabletest

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"

	"github.com/pando-dev/pando/internal/durable"
)

// A Disk is a durable.FS in memory. It is safe for concurrent use.
type Disk struct {
	// Before is called ahead of each operation; when it returns an error, the
	// operation fails with it. It must be set before the Disk is used.
	Before func(Call) error
	// After is called behind each operation, with no lock held.
	After func(Call)

	mu    sync.Mutex
	root  *node
	calls []Call
	temps int
	space int64 // bytes left; negative means any number
}

// A Call is one operation on a Disk.
type Call struct {
	N    int    // counts from 1
	Op   string // as in the trace: "write", "sync", "rename", …
	Name string // what on; of a rename, where to
	From string // of a rename
	Note string // permissions of what is made
}

func (c Call) String() string {
	return strings.Join(slices.DeleteFunc([]string{c.Op, c.From, c.Name, c.Note}, func(s string) bool { return s == "" }), " ")
}

// New returns an empty Disk.
func New() *Disk { return &Disk{root: newFolder(0o700), space: -1} }

// Limit lets the files hold n more bytes; writing more fails with ENOSPC
// after what fits.
func (d *Disk) Limit(n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.space = n
}

// Put makes a file that is safely on the disk, with its directories.
func (d *Disk) Put(name string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	dir := d.root
	for _, part := range strings.Split(path.Dir(name), "/") {
		if part == "." {
			continue
		}
		if dir.names[part] == nil {
			dir.names[part] = newFolder(0o700)
			dir.sure[part] = dir.names[part]
		}
		dir = dir.names[part]
	}
	n := &node{perm: 0o600, name: name, data: slices.Clone(data), synced: slices.Clone(data)}
	dir.names[path.Base(name)], dir.sure[path.Base(name)] = n, n
}

// Get returns what a program would read, nil when there is no such file.
func (d *Disk) Get(name string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.find("open", name)
	if err != nil || n.folder() {
		return nil
	}
	return append([]byte{}, n.data...)
}

// Files returns the names of all files, sorted.
func (d *Disk) Files() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	var walk func(prefix string, n *node)
	walk = func(prefix string, n *node) {
		for name, c := range n.names {
			if c.folder() {
				walk(prefix+name+"/", c)
			} else {
				all = append(all, prefix+name)
			}
		}
	}
	walk("", d.root)
	sort.Strings(all)
	return all
}

// Calls returns how many operations there were.
func (d *Disk) Calls() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.calls)
}

// Trace returns the operations since call number from, one on each line.
// Reading is left out, it changes nothing.
func (d *Disk) Trace(from int) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	for _, c := range d.calls[from:] {
		if c.Op != "open" && c.Op != "list" {
			fmt.Fprintln(&b, c)
		}
	}
	return b.String()
}

// do records a call and performs it, or does instead when Before fails it.
func (d *Disk) do(c Call, f func() error, instead ...func()) error {
	d.mu.Lock()
	c.N = len(d.calls) + 1
	d.calls = append(d.calls, c)
	before, after := d.Before, d.After
	d.mu.Unlock()
	var err error
	if before != nil {
		err = before(c)
	}
	d.mu.Lock()
	if err == nil {
		err = f()
	} else {
		for _, f := range instead {
			f()
		}
	}
	d.mu.Unlock()
	if after != nil {
		after(c)
	}
	return err
}

func pathErr(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// find returns the node called name. mu is held.
func (d *Disk) find(op, name string) (*node, error) {
	if !fs.ValidPath(name) {
		return nil, pathErr(op, name, fs.ErrInvalid)
	}
	n := d.root
	if name == "." {
		return n, nil
	}
	for _, part := range strings.Split(name, "/") {
		if !n.folder() {
			return nil, pathErr(op, name, syscall.ENOTDIR)
		}
		if n = n.names[part]; n == nil {
			return nil, pathErr(op, name, syscall.ENOENT)
		}
	}
	return n, nil
}

// parent returns the directory that name is or would be in.
func (d *Disk) parent(op, name string) (*node, error) {
	if !fs.ValidPath(name) || name == "." {
		return nil, pathErr(op, name, fs.ErrInvalid)
	}
	n, err := d.find(op, path.Dir(name))
	if err == nil && !n.folder() {
		err = pathErr(op, name, syscall.ENOTDIR)
	}
	return n, err
}

// CreateTemp implements durable.FS. Names are numbered, so that traces are
// the same in every run.
func (d *Disk) CreateTemp(name string, perm fs.FileMode) (f durable.File, err error) {
	d.mu.Lock()
	d.temps++
	temp := fmt.Sprintf("%s.%08x.partial", name, d.temps)
	d.mu.Unlock()
	err = d.do(Call{Op: "create", Name: temp, Note: fmt.Sprintf("%04o", perm)}, func() error {
		dir, err := d.parent("create", name)
		if err != nil {
			return err
		}
		n := &node{perm: perm, name: temp}
		dir.enter(path.Base(temp), n)
		f = &file{d, temp, n}
		return nil
	})
	return f, err
}

// OpenAppend implements durable.FS.
func (d *Disk) OpenAppend(name string) (f durable.File, err error) {
	err = d.do(Call{Op: "append", Name: name}, func() error {
		n, err := d.find("open", name)
		if err == nil && n.folder() {
			err = pathErr("open", name, syscall.EISDIR)
		}
		f = &file{d, name, n}
		return err
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Open implements durable.FS.
func (d *Disk) Open(name string) (r durable.Reader, err error) {
	err = d.do(Call{Op: "open", Name: name}, func() error {
		n, err := d.find("open", name)
		r = &reader{d, name, n}
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Rename implements durable.FS.
func (d *Disk) Rename(from, to string) error {
	return d.do(Call{Op: "rename", From: from, Name: to}, func() error {
		dir, err := d.parent("rename", from)
		if err != nil {
			return err
		}
		if path.Dir(from) != path.Dir(to) || !fs.ValidPath(to) {
			return pathErr("rename", from, fs.ErrInvalid)
		}
		n := dir.names[path.Base(from)]
		if n == nil {
			return pathErr("rename", from, syscall.ENOENT)
		}
		dir.change(change{remove: path.Base(from), enter: path.Base(to), node: n})
		n.name = to
		return nil
	})
}

// Remove implements durable.FS.
func (d *Disk) Remove(name string) error {
	return d.do(Call{Op: "remove", Name: name}, func() error {
		dir, err := d.parent("remove", name)
		if err != nil {
			return err
		}
		n := dir.names[path.Base(name)]
		if n == nil {
			return pathErr("remove", name, syscall.ENOENT)
		}
		if len(n.names) > 0 {
			return pathErr("remove", name, syscall.ENOTEMPTY)
		}
		dir.change(change{remove: path.Base(name)})
		if d.space >= 0 {
			d.space += int64(len(n.data))
		}
		return nil
	})
}

// Mkdir implements durable.FS.
func (d *Disk) Mkdir(name string, perm fs.FileMode) error {
	return d.do(Call{Op: "mkdir", Name: name, Note: fmt.Sprintf("%04o", perm)}, func() error {
		dir, err := d.parent("mkdir", name)
		if err != nil {
			return err
		}
		if dir.names[path.Base(name)] != nil {
			return pathErr("mkdir", name, syscall.EEXIST)
		}
		dir.enter(path.Base(name), newFolder(perm))
		return nil
	})
}

// SyncDir implements durable.FS.
func (d *Disk) SyncDir(name string) error {
	return d.do(Call{Op: "syncdir", Name: name}, func() error {
		n, err := d.find("sync", name)
		if err == nil && !n.folder() {
			err = pathErr("sync", name, syscall.ENOTDIR)
		}
		if err != nil {
			return err
		}
		n.sure, n.changes = clone(n.names), nil
		return nil
	})
}

// List implements durable.FS.
func (d *Disk) List(name string) (infos []durable.Info, err error) {
	err = d.do(Call{Op: "list", Name: name}, func() error {
		n, err := d.find("list", name)
		if err == nil && !n.folder() {
			err = pathErr("list", name, syscall.ENOTDIR)
		}
		if err != nil {
			return err
		}
		for name, c := range n.names {
			infos = append(infos, c.info(name))
		}
		sort.Slice(infos, func(i, j int) bool { return infos[i].Name < infos[j].Name })
		return nil
	})
	return infos, err
}
