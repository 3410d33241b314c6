package fuseproxy

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// Refresh invalidates everything in the guest's kernel that the host has changed, and returns
// when the kernel has processed that. It compares each known file with the attributes sent
// last, which costs one stat per file. A change that keeps mode, owner, size and time is not
// found. A file that is open in the guest keeps its size until it is closed. A mount in the
// guest on a changed non-directory is removed with the old content. With paths only the nodes
// at these are compared.
func (s *Server) Refresh(ctx context.Context, paths ...string) error {
	s.mu.Lock()
	l := s.line
	all := make([]*node, 0, len(s.nodes))
	for _, n := range s.nodes {
		all = append(all, n)
	}
	if len(paths) > 0 {
		all = all[:0]
		for _, p := range paths {
			if n := s.knownAt(p); n != nil {
				all = append(all, n)
			}
		}
	}
	s.mark++
	mark := s.mark
	heard := make(chan struct{})
	s.reached[mark] = heard
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.reached, mark)
		s.mu.Unlock()
	}()
	if l == nil {
		return cell.Errorf(cell.Conflict, "fuseproxy.Refresh", "", "cannot announce changes: no guest is connected")
	}
	for _, n := range all {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		var out answer
		s.changes(n, &out)
		if len(out.b) > 0 {
			if err := l.send(out.b); err != nil {
				return err
			}
		}
	}
	var end answer
	end.reset()
	end.u64(mark)
	if err := l.send(end.head(0, noticeMark)); err != nil {
		return err
	}
	select {
	case <-heard:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// knownAt returns the node at a path, or nil if it is unknown. The caller holds s.mu.
func (s *Server) knownAt(path string) *node {
	n := s.nodes[rootNode]
	for _, name := range namesOf(path) {
		if n = n.inside[name]; n == nil {
			return nil
		}
	}
	return n
}

// namesOf splits an absolute path into names.
func namesOf(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// noticed handles the courier's message that the kernel has processed the notices up to mark.
func (s *Server) noticed(mark uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.reached[mark]; c != nil {
		delete(s.reached, mark)
		close(c)
	}
}

// changes appends notices for the differences between n and what the kernel was told.
func (s *Server) changes(n *node, out *answer) {
	s.tree.RLock()
	defer s.tree.RUnlock()
	s.mu.Lock()
	if s.nodes[n.id] != n || len(n.names) == 0 && n.id != rootNode {
		s.mu.Unlock()
		return
	}
	names := append([]place(nil), n.names...)
	seen := n.seen
	var absent []string
	for name := range n.absent {
		absent = append(absent, name)
	}
	s.mu.Unlock()

	var x unix.Statx_t
	fd, e := s.at(n)
	if e == 0 {
		defer unix.Close(fd)
		e = stat(fd, "", &x)
	}
	there := e == 0 && x.Mode&unix.S_IFMT == n.kind
	if there && isDir(n.kind) {
		for _, name := range absent {
			var y unix.Statx_t
			if stat(fd, name, &y) != unix.ENOENT {
				s.mu.Lock()
				delete(n.absent, name)
				s.mu.Unlock()
				noteEntry(out, n.id, name)
			}
		}
	}
	if there && seen == sum(&x) {
		return
	}
	var one answer
	one.reset()
	one.u64(n.id)
	one.u64(0)
	one.u64(0)
	out.b = append(out.b, one.head(0, noticeInode)...)
	if there && isDir(n.kind) {
		return // mounts inside it in the guest stay
	}
	for _, p := range names {
		noteEntry(out, p.dir.id, p.name)
	}
}

func noteEntry(out *answer, dir uint64, name string) {
	var one answer
	one.reset()
	one.u64(dir)
	one.u32(uint32(len(name)))
	one.u32(0)
	one.text(name)
	one.zero(1)
	out.b = append(out.b, one.head(0, noticeEntry)...)
}
