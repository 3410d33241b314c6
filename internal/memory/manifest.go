package memory

import (
	"encoding/binary"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	page     = 4096      // bytes; borders lie on multiples of it
	maxChunk = 32 * page // bytes of a chunk before compression
	maxSize  = 1 << 56   // bytes of a file

	rootHeader = "pando memory 1\n"
	leafHeader = "pando chunks 1\n"
)

// A Store is what this package needs of a store of objects: store.Store is one.
// All of it is called by several goroutines at once.
type Store interface {
	Put(d cell.Digest, b []byte) error
	Get(d cell.Digest) ([]byte, error)
	Has(d cell.Digest) bool
}

// A manifest is what the root object says.
type manifest struct {
	files []file // sorted by name
}

type file struct {
	name   string
	size   int64
	leaves []leafRef
}

// A leafRef names a stretch of a file. Where it begins follows from those
// before it.
type leafRef struct {
	digest cell.Digest
	size   int64 // bytes of the file
}

// A span is a chunk, or a hole where stored is zero.
type span struct {
	size   int64
	stored cell.Digest // of the object: the chunk, compressed
	plain  cell.Digest // of the chunk's bytes
}

func (s *span) hole() bool { return s.stored.IsZero() }

// encode gives the bytes of a root: the header; the number of files; of each
// its name, its size, the number of its leaves, and each leaf's size and
// digest. Numbers are unsigned varints, the name follows its length.
func (m *manifest) encode() []byte {
	b := []byte(rootHeader)
	b = binary.AppendUvarint(b, uint64(len(m.files)))
	for _, f := range m.files {
		b = binary.AppendUvarint(b, uint64(len(f.name)))
		b = append(b, f.name...)
		b = binary.AppendUvarint(b, uint64(f.size))
		b = binary.AppendUvarint(b, uint64(len(f.leaves)))
		for _, l := range f.leaves {
			b = binary.AppendUvarint(b, uint64(l.size))
			b = append(b, l.digest[:]...)
		}
	}
	return b
}

// encodeLeaf gives the bytes of a leaf: the header, then of each span twice its
// size, plus one for a hole; and of a chunk both digests.
func encodeLeaf(spans []*span) []byte {
	b := make([]byte, 0, len(leafHeader)+len(spans)*(4+2*len(cell.Digest{})))
	b = append(b, leafHeader...)
	for _, s := range spans {
		if s.hole() {
			b = binary.AppendUvarint(b, uint64(s.size)<<1|1)
			continue
		}
		b = binary.AppendUvarint(b, uint64(s.size)<<1)
		b = append(b, s.stored[:]...)
		b = append(b, s.plain[:]...)
	}
	return b
}

// decodeRoot reads what encode wrote, and nothing else: what it accepts it
// would write again in the same bytes.
func decodeRoot(b []byte) (*manifest, error) {
	r, ok := newReader(b, rootHeader)
	if !ok {
		return nil, malformed("root")
	}
	m := &manifest{}
	for n := r.count(3); n > 0 && !r.bad; n-- {
		f := file{name: string(r.take(r.count(1))), size: r.size()}
		if !isName(f.name) || (len(m.files) > 0 && m.files[len(m.files)-1].name >= f.name) {
			r.bad = true
		}
		rest := f.size
		for k := r.count(1 + len(cell.Digest{})); k > 0 && !r.bad; k-- {
			l := leafRef{size: r.size(), digest: r.digest()}
			if rest -= l.size; l.size == 0 || rest < 0 || l.digest.IsZero() {
				r.bad = true
			}
			f.leaves = append(f.leaves, l)
		}
		if rest != 0 {
			r.bad = true
		}
		m.files = append(m.files, f)
	}
	if r.bad || len(r.b) != 0 {
		return nil, malformed("root")
	}
	return m, nil
}

// decodeLeaf reads what encodeLeaf wrote of size bytes of a file.
func decodeLeaf(b []byte, size int64) ([]span, error) {
	r, ok := newReader(b, leafHeader)
	if !ok {
		return nil, malformed("leaf")
	}
	var spans []span
	for len(r.b) > 0 && !r.bad {
		v := r.size()
		s := span{size: v >> 1}
		if v&1 == 0 {
			s.stored, s.plain = r.digest(), r.digest()
			if s.stored.IsZero() || s.size > maxChunk {
				r.bad = true
			}
		}
		if size -= s.size; s.size == 0 || size < 0 {
			r.bad = true
		}
		spans = append(spans, s)
	}
	if r.bad || size != 0 {
		return nil, malformed("leaf")
	}
	return spans, nil
}

func malformed(what string) error {
	return cell.Errorf(cell.Corrupt, "memory.Load", "", "a %s of a memory image is malformed", what)
}

// isName reports whether a file of an image can have that name.
func isName(s string) bool {
	return s != "" && len(s) <= 255 && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00")
}

// reader decodes; after the first error it returns zero values.
type reader struct {
	b   []byte
	bad bool
}

func newReader(b []byte, header string) (*reader, bool) {
	rest, ok := strings.CutPrefix(string(b[:min(len(b), len(header))]), header)
	return &reader{b: b[min(len(b), len(header)):]}, ok && rest == ""
}

// size reads a number of bytes. A varint that is longer than it need be is
// refused, like one beyond what a file can have.
func (r *reader) size() int64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || (n > 1 && r.b[n-1] == 0) || v > maxSize<<1 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return int64(v)
}

// count reads a number of things of at least least bytes each.
func (r *reader) count(least int) int {
	n := r.size()
	if n > int64(len(r.b)/least) {
		r.bad, r.b = true, nil
		return 0
	}
	return int(n)
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) digest() (d cell.Digest) {
	copy(d[:], r.take(len(d)))
	return d
}
