package fuseproxy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// HiddenPrefix is the name prefix of files that a guest has open and deleted. They exist from
// Save to the next request.
const HiddenPrefix = ".pando-open-"

// stateMagic starts a state, and contains its version.
const stateMagic = "pando-fuseproxy 1\n"

// state reads and writes states: numbers as varints, strings after their lengths.
type state struct {
	b   []byte
	bad bool
}

func (t *state) put(v ...uint64) {
	for _, x := range v {
		t.b = binary.AppendUvarint(t.b, x)
	}
}

func (t *state) putText(s string) { t.put(uint64(len(s))); t.b = append(t.b, s...) }

func (t *state) get() uint64 {
	v, n := binary.Uvarint(t.b)
	if n <= 0 {
		t.bad, t.b = true, nil
		return 0
	}
	t.b = t.b[n:]
	return v
}

func (t *state) getText() string {
	n := t.get()
	if n > uint64(len(t.b)) {
		t.bad, t.b = true, nil
		return ""
	}
	s := string(t.b[:n])
	t.b = t.b[n:]
	return s
}

// Save returns what the guest's kernel knows. Load restores it over a copy of the files. The
// guest must be paused (Courier.Hold), and the files must be copied before it resumes: open and
// deleted files have hidden names until the next request, Close, or the end of a failed Save.
func (s *Server) Save() (_ []byte, err error) {
	s.takeAway()
	s.tree.Lock()
	defer s.tree.Unlock()
	names, err := s.hide()
	if err != nil {
		s.takeAwayLocked()
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &state{b: []byte(stateMagic)}
	t.put(s.nextNode, s.nextHandle, s.nextDevice)

	// Directories before their contents; nodes without a path to root last.
	order := []*node{s.nodes[rootNode]}
	seen := map[*node]bool{order[0]: true}
	for i := 0; i < len(order); i++ {
		for _, n := range order[i].inside {
			if !seen[n] && s.nodes[n.id] == n {
				seen[n] = true
				order = append(order, n)
			}
		}
	}
	for _, n := range s.nodes {
		if !seen[n] {
			order = append(order, n)
		}
	}
	t.put(uint64(len(order)))
	for _, n := range order {
		t.put(n.id, n.ino, uint64(n.kind), n.lookups, n.seen, flag(n.links))
	}
	// Names, in the same order, so that Load finds each directory first.
	var places []struct {
		n *node
		place
	}
	var absent []place
	for _, n := range order {
		for _, p := range n.names {
			if seen[p.dir] {
				places = append(places, struct {
					n *node
					place
				}{n, p})
			}
		}
		for name := range n.absent {
			absent = append(absent, place{n, name})
		}
	}
	t.put(uint64(len(places)))
	for _, p := range places {
		t.put(p.n.id, p.dir.id)
		t.putText(p.name)
	}
	t.put(uint64(len(absent)))
	for _, p := range absent {
		t.put(p.dir.id)
		t.putText(p.name)
	}
	t.put(uint64(len(names)))
	for n, p := range names {
		t.put(n.id, p.dir.id)
		t.putText(p.name)
	}
	t.put(uint64(len(s.handles)))
	for _, h := range s.handles {
		t.put(h.id, h.node.id, uint64(h.flags), flag(h.dir), flag(h.listed))
		if h.listed {
			t.put(uint64(len(h.list)))
			for _, x := range h.list {
				t.put(x.ino, uint64(x.kind))
				t.putText(x.name)
			}
		}
	}
	return t.b, nil
}

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// hide gives names to open files without names. The caller holds Server.tree exclusively.
func (s *Server) hide() (map[*node]place, error) {
	s.mu.Lock()
	var all []*node
	for _, n := range s.nodes {
		if n.kind == unix.S_IFREG && len(n.names) == 0 && len(n.handles) > 0 {
			all = append(all, n)
		}
	}
	s.mu.Unlock()
	out := map[*node]place{}
	left := s.opts.MaxKept
	for _, n := range all {
		p := place{name: fmt.Sprintf("%s%d", HiddenPrefix, n.id)}
		s.mu.Lock()
		p.dir = n.last
		for p.dir != nil && p.dir.id != rootNode && len(p.dir.names) == 0 {
			p.dir = p.dir.last
		}
		if p.dir == nil {
			p.dir = s.nodes[rootNode]
		}
		s.mu.Unlock()
		if err := s.hideAt(n, p, &left); err != nil {
			return nil, cell.Errorf(cell.Unsupported, "fuseproxy.Save", "end the programs that have deleted files open", "cannot keep a file that is open and deleted: %w", err)
		}
		out[n] = p
	}
	return out, nil
}

// hideAt creates the name p for n: a link if it has other names on the host, otherwise a copy.
func (s *Server) hideAt(n *node, p place, left *int64) error {
	from, e := s.byHandle(n)
	if e != 0 {
		return e
	}
	defer unix.Close(from)
	dir, e := s.at(p.dir)
	if e != 0 {
		return e
	}
	defer unix.Close(dir)
	var x unix.Statx_t
	if e := stat(from, "", &x); e != 0 {
		return e
	}
	s.mu.Lock()
	s.hidden = append(s.hidden, p)
	s.kept.Store(true)
	s.mu.Unlock()
	if x.Nlink > 0 {
		return unix.Linkat(unix.AT_FDCWD, opened(from), dir, p.name, unix.AT_SYMLINK_FOLLOW)
	}
	if *left -= int64(x.Blocks) * 512; *left < 0 {
		return fmt.Errorf("there are more than %d bytes of them", s.opts.MaxKept)
	}
	in, err := unix.Open(opened(from), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	out, err := unix.Openat(dir, p.name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	if err := copyData(in, out, int64(x.Size)); err != nil {
		return err
	}
	copyXattrs(in, out)
	if err := unix.Fchown(out, int(x.Uid), int(x.Gid)); err != nil {
		return err
	}
	if err := unix.Fchmod(out, uint32(x.Mode)&0o7777); err != nil {
		return err
	}
	return unix.UtimesNanoAt(out, "", []unix.Timespec{{Sec: x.Atime.Sec, Nsec: int64(x.Atime.Nsec)}, {Sec: x.Mtime.Sec, Nsec: int64(x.Mtime.Nsec)}}, unix.AT_EMPTY_PATH)
}

// copyData copies a file with its holes.
func copyData(in, out int, size int64) error {
	if err := unix.Ftruncate(out, size); err != nil {
		return err
	}
	for at := int64(0); at < size; {
		data, err := unix.Seek(in, at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return nil
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(in, data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for at = data; at < end; {
			i, o := at, at
			n, err := unix.CopyFileRange(in, &i, out, &o, int(min(end-at, 1<<30)), 0)
			if err != nil {
				return err
			}
			if n == 0 {
				return unix.EIO
			}
			at += int64(n)
		}
	}
	return nil
}

func copyXattrs(in, out int) {
	names := make([]byte, maxXattr)
	n, err := unix.Flistxattr(in, names)
	if err != nil {
		return
	}
	for name := range bytes.SplitSeq(names[:n], []byte{0}) {
		if len(name) == 0 || !shared(string(name)) {
			continue
		}
		value := make([]byte, maxXattr)
		if n, err := unix.Fgetxattr(in, string(name), value); err == nil {
			unix.Fsetxattr(out, string(name), value[:n], 0)
		}
	}
}

// takeAway removes the hidden names of the last Save.
func (s *Server) takeAway() {
	s.tree.Lock()
	defer s.tree.Unlock()
	s.takeAwayLocked()
}

func (s *Server) takeAwayLocked() {
	s.mu.Lock()
	all := s.hidden
	s.hidden = nil
	s.kept.Store(false)
	s.mu.Unlock()
	for _, p := range all {
		if fd, e := s.at(p.dir); e == 0 {
			unix.Unlinkat(fd, p.name, 0)
			unix.Close(fd)
		}
	}
}

// Load returns a server that continues a state, over files with the same paths as at Save. It
// opens files lazily, except those that were open and deleted: it opens these and removes their
// hidden names.
func Load(root *os.File, saved []byte, opts Options) (*Server, error) {
	s, err := New(root, opts)
	if err != nil {
		return nil, err
	}
	t := &state{b: saved}
	if !bytes.HasPrefix(saved, []byte(stateMagic)) {
		return nil, damaged("it begins otherwise")
	}
	t.b = t.b[len(stateMagic):]
	if err := s.load(t); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func damaged(format string, args ...any) error {
	return cell.Errorf(cell.Corrupt, "fuseproxy.Load", "", "cannot restore files: the state is damaged: %s", fmt.Sprintf(format, args...))
}

func (s *Server) load(t *state) error {
	s.nextNode, s.nextHandle = t.get(), t.get()
	// This tree has other devices: their numbers must not be confused.
	clear(s.devices)
	s.nextDevice = t.get()
	var many []*node
	for range t.get() {
		id, ino, kind, lookups, seen, links := t.get(), t.get(), t.get(), t.get(), t.get(), t.get()
		if t.bad || id == 0 || id > s.nextNode || kind&^unix.S_IFMT != 0 {
			return damaged("a node")
		}
		if id == rootNode {
			n := s.nodes[rootNode]
			n.ino, n.lookups, n.seen = ino, lookups, seen
			continue
		}
		if s.nodes[id] != nil || len(s.nodes) >= s.opts.MaxNodes {
			return damaged("node %d", id)
		}
		n := &node{id: id, ino: ino, kind: uint16(kind), lookups: lookups, seen: seen, links: links == 1}
		s.nodes[id] = n
		if n.links {
			many = append(many, n)
		}
	}
	for range t.get() {
		n, dir, name := s.nodes[t.get()], s.nodes[t.get()], t.getText()
		if t.bad || n == nil || dir == nil || n.id == rootNode || n == dir || !isDir(dir.kind) || checkName(name) != 0 || dir.inside[name] != nil ||
			isDir(n.kind) && (len(n.names) > 0 || dir.id != rootNode && len(dir.names) == 0) {
			return damaged("a name")
		}
		s.name(n, dir, name)
	}
	for range t.get() {
		dir, name := s.nodes[t.get()], t.getText()
		if t.bad || dir == nil || !isDir(dir.kind) || checkName(name) != 0 {
			return damaged("a name")
		}
		if dir.absent == nil {
			dir.absent = map[string]bool{}
		}
		dir.absent[name] = true
		s.absent++
	}
	hidden := map[*node]place{}
	for range t.get() {
		n, dir, name := s.nodes[t.get()], s.nodes[t.get()], t.getText()
		if t.bad || n == nil || dir == nil || len(n.names) > 0 || checkName(name) != 0 {
			return damaged("a hidden name")
		}
		hidden[n] = place{dir, name}
	}
	if err := s.loadHandles(t); err != nil {
		return err
	}
	if t.bad || len(t.b) > 0 {
		return damaged("it ends otherwise")
	}
	for n, p := range hidden {
		if err := s.bring(n, p); err != nil {
			return cell.Errorf(cell.Corrupt, "fuseproxy.Load", "", "cannot restore a file that is open and deleted: %w", err)
		}
	}
	s.bindAll(many)
	return nil
}

func (s *Server) loadHandles(t *state) error {
	for range t.get() {
		id, n, flags, dir, listed := t.get(), s.nodes[t.get()], t.get(), t.get(), t.get()
		if t.bad || n == nil || id == 0 || id > s.nextHandle || s.handles[id] != nil || len(s.handles) >= s.opts.MaxHandles || flags > 1<<32-1 ||
			(dir == 1) != isDir(n.kind) {
			return damaged("a handle")
		}
		h := &handle{id: id, node: n, flags: uint32(flags), dir: dir == 1, listed: listed == 1, fd: -1}
		if h.listed {
			for range t.get() {
				x := entry{ino: t.get(), kind: uint8(t.get()), name: t.getText()}
				if t.bad || x.name == "" || len(x.name) > maxName {
					return damaged("a listing")
				}
				h.list = append(h.list, x)
			}
			s.listed.Add(int64(len(h.list)))
		}
		s.keep(h)
	}
	return nil
}

// bring opens a file with a hidden name for all its handles, and removes the name.
func (s *Server) bring(n *node, p place) error {
	dir, e := s.at(p.dir)
	if e != 0 {
		return e
	}
	defer unix.Close(dir)
	at, e := openBeneath(dir, p.name)
	if e != 0 {
		return e
	}
	defer unix.Close(at)
	for _, h := range n.handles {
		if h.fd, e = reopen(at, hostFlags(h.flags)&^unix.O_TRUNC); e != 0 {
			h.fd = -1
			return e
		}
	}
	n.last = p.dir
	p.dir.pins++
	return errnoOrNil(errnoOf(unix.Unlinkat(dir, p.name, 0)))
}

func errnoOrNil(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// bindAll looks up the keys of files with several names, so that another of their names leads
// to the same node.
func (s *Server) bindAll(all []*node) {
	slices.SortFunc(all, func(a, b *node) int { return int(int64(a.id) - int64(b.id)) })
	for _, n := range all {
		fd, e := s.at(n)
		if e != 0 {
			continue
		}
		var x unix.Statx_t
		if stat(fd, "", &x) == 0 && x.Mode&unix.S_IFMT == n.kind {
			if k := keyOf(&x); s.keys[k] == nil {
				n.key, s.keys[k] = k, n
			}
		}
		unix.Close(fd)
	}
}
