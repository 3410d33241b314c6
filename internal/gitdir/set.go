package gitdir

import (
	"bytes"
	"encoding/binary"
	"sort"

	"github.com/pando-dev/pando/internal/bound"
)

// Limits on a Set. Names are stored as in an index of version 4, as differences to the name
// before. So the memory of a Set is linear in the size of the index, whatever the length of the
// names.
const (
	maxName = 16 << 10 // of one name; the kernel takes 4096 bytes
	maxSet  = 64 << 20 // of all names; two million files of a real repository need 40 MB
)

// A Set is the tracked paths below a folder, relative to it, in order of bytes. A submodule is
// one path, that of its folder. nil means that there is no repository, unlike an empty Set.
type Set struct {
	// names has for each path the number of bytes shared with the path before, the number of
	// further bytes, and these.
	names  []byte
	starts []int // positions in names of complete names: a search begins there
	n      int
	prefix string // not part of the paths: all names begin with it
}

// NewSet returns the set of paths, which are in order of bytes, each once.
func NewSet(paths ...string) *Set {
	w := setWriter{limit: 1 << 62}
	for _, p := range paths {
		w.add([]byte(p), sharedPrefix(w.last, p))
	}
	return w.set()
}

func sharedPrefix(a []byte, b string) (n int) {
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// Has reports whether path is tracked, or is a folder with something tracked
// below it.
func (s *Set) Has(path string) bool {
	if s == nil || path == "" && s.prefix == "" {
		return false
	}
	path = s.prefix + path
	found := false
	s.from(path, func(name []byte) bool {
		found = string(name) == path
		return false
	})
	if found {
		return true
	}
	// "a-b" and "a.b" sort between "a" and "a/b".
	dir := path + "/"
	s.from(dir, func(name []byte) bool {
		found = bytes.HasPrefix(name, []byte(dir))
		return false
	})
	return found
}

// from calls yield with each name from first on, until it returns false. The name is valid for
// that call only.
func (s *Set) from(first string, yield func(name []byte) bool) {
	at := sort.Search(len(s.starts), func(i int) bool {
		_, name, _ := cutName(s.names[s.starts[i]:])
		return string(name) > first
	})
	if at > 0 {
		at--
	}
	if at == len(s.starts) {
		return
	}
	var name []byte
	for b := s.names[s.starts[at]:]; len(b) > 0; {
		var shared int
		var own []byte
		shared, own, b = cutName(b)
		name = append(name[:shared], own...)
		if string(name) >= first && !yield(name) {
			return
		}
	}
}

// below returns the part of s below dir, relative to dir. It is never nil.
func (s *Set) below(dir string) *Set {
	if dir == "" {
		return s
	}
	out := *s
	out.prefix += dir + "/"
	return &out
}

// cutName takes one name off b, which was checked when the Set was made.
func cutName(b []byte) (shared int, own, rest []byte) {
	sh, n := binary.Uvarint(b)
	size, m := binary.Uvarint(b[n:])
	b = b[n+m:]
	return int(sh), b[:size], b[size:]
}

// setWriter makes a Set from sorted names.
type setWriter struct {
	s     Set
	last  []byte
	since int // bytes written since the last complete name
	limit int64
}

// add appends name, which has shared bytes in common with the last one.
func (w *setWriter) add(name []byte, shared int) error {
	// A name is written completely once the differences before it have as many bytes: names is
	// then at most twice as long as the differences.
	full := w.s.n == 0 || w.since >= max(len(name), 512)
	if full {
		shared = 0
		w.s.starts = append(w.s.starts, len(w.s.names))
	}
	before := len(w.s.names)
	if int64(before)+int64(len(name)-shared)+2*binary.MaxVarintLen32 > w.limit {
		return bound.Exceed("git's index", w.limit, "bytes of names")
	}
	w.s.names = binary.AppendUvarint(w.s.names, uint64(shared))
	w.s.names = binary.AppendUvarint(w.s.names, uint64(len(name)-shared))
	w.s.names = append(w.s.names, name[shared:]...)
	if w.since += len(w.s.names) - before; full {
		w.since = 0
	}
	w.s.n++
	w.last = append(w.last[:shared], name[shared:]...)
	return nil
}

func (w *setWriter) set() *Set { return &w.s }

// decodeSet checks and adopts the names of a Set from another process.
func decodeSet(names []byte) (*Set, error) {
	s := &Set{names: names}
	last := 0 // length of the name before
	for b := names; len(b) > 0; s.n++ {
		shared, n := binary.Uvarint(b)
		if n <= 0 || shared > uint64(last) {
			return nil, corruptIndex("bad answer")
		}
		size, m := binary.Uvarint(b[n:])
		if m <= 0 || size > maxName || size > uint64(len(b)-n-m) {
			return nil, corruptIndex("bad answer")
		}
		if shared == 0 {
			s.starts = append(s.starts, len(names)-len(b))
		}
		last = int(shared + size)
		if last > maxName {
			return nil, corruptIndex("bad answer")
		}
		b = b[n+m+int(size):]
	}
	if s.n > 0 && len(s.starts) == 0 {
		return nil, corruptIndex("bad answer")
	}
	return s, nil
}
