package memory

import (
	"io"
	"sort"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"github.com/pando-dev/pando/internal/cell"
)

// An Image is open to be read in any order: a chunk is fetched, checked and
// decompressed when a part of it is asked for. So a cell can go on before most
// of its memory has been read. It is safe for concurrent use.
type Image struct {
	st    Store
	root  cell.Digest
	dec   *zstd.Decoder
	files map[string]*Reader
	err   atomic.Pointer[error] // the first of any reader
}

// Open reads what an image is made of, and refuses one of which a chunk is
// missing. Whether a chunk is damaged only reading it shows: who runs a cell on
// an open image asks Err when the cell fails.
func Open(st Store, root cell.Digest) (*Image, error) {
	fail := func(err error) (*Image, error) {
		return nil, cell.Errorf(cell.KindOf(err), "memory.Open", cell.HintOf(err), "cannot open memory image %s: %w", root.Short(), err)
	}
	m, err := readRoot(st, root)
	if err != nil {
		return fail(err)
	}
	im := &Image{st: st, root: root, files: map[string]*Reader{}}
	for _, f := range m.files {
		r := &Reader{im: im, name: f.name, size: f.size}
		off := int64(0)
		for _, l := range f.leaves {
			spans, err := readLeaf(st, l)
			if err != nil {
				return fail(stretch{name: f.name}.named("leaf", l.digest, off, err))
			}
			for _, s := range spans {
				if !s.hole() && !st.Has(s.stored) {
					return fail(stretch{name: f.name}.named("chunk", s.stored, off, cell.Errorf(cell.NotFound, "memory.Open", "", "it is not in the store")))
				}
				r.spans, r.ends = append(r.spans, s), append(r.ends, off+s.size)
				off += s.size
			}
		}
		im.files[f.name] = r
	}
	if im.dec, err = newDecoder(); err != nil {
		return fail(err)
	}
	return im, nil
}

// Close ends the image. Nobody may read it then.
func (im *Image) Close() { im.dec.Close() }

// Err is the first error that reading any of the files met, or nil. What reads
// for a cell may be told no more than that it failed.
func (im *Image) Err() error {
	if err := im.err.Load(); err != nil {
		return *err
	}
	return nil
}

// File returns a file of the image.
func (im *Image) File(name string) (*Reader, error) {
	if r := im.files[name]; r != nil {
		return r, nil
	}
	return nil, cell.Errorf(cell.NotFound, "memory.Open", "", "memory image %s has no file %q", im.root.Short(), name)
}

// A Reader reads a file of an image.
type Reader struct {
	im    *Image
	name  string
	size  int64
	spans []span
	ends  []int64 // where each span ends
	parts [16]atomic.Pointer[part]
}

// A part is a chunk of which a part was read: the rest is likely to be next.
type part struct {
	i int // the span
	b []byte
}

// Size is the file's, in bytes.
func (r *Reader) Size() int64 { return r.size }

// ReadAt implements io.ReaderAt. A chunk that is damaged or missing is a Corrupt
// error that names it, the file and the offset.
func (r *Reader) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, cell.Errorf(cell.Invalid, "memory.ReadAt", "", "offset %d", off)
	}
	i := sort.Search(len(r.ends), func(i int) bool { return r.ends[i] > off })
	for ; n < len(p) && i < len(r.spans); i++ {
		sp := &r.spans[i]
		at := r.ends[i] - sp.size
		skip := off + int64(n) - at
		if sp.hole() {
			k := min(int64(len(p)-n), sp.size-skip)
			clear(p[n : n+int(k)])
			n += int(k)
			continue
		}
		if skip == 0 && len(p)-n >= int(sp.size) { // straight to where it goes
			if _, err := unpack(r.im.st, r.im.dec, sp, p[n:n:n+int(sp.size)]); err != nil {
				return n, r.failed(sp, at, err)
			}
			n += int(sp.size)
			continue
		}
		c := r.parts[i%len(r.parts)].Load()
		if c == nil || c.i != i {
			b, err := unpack(r.im.st, r.im.dec, sp, make([]byte, 0, sp.size))
			if err != nil {
				return n, r.failed(sp, at, err)
			}
			c = &part{i, b}
			r.parts[i%len(r.parts)].Store(c)
		}
		n += copy(p[n:], c.b[skip:])
	}
	if n < len(p) {
		err = io.EOF
	}
	return n, err
}

// failed notes what stands in the way of a chunk that begins at an offset.
func (r *Reader) failed(sp *span, at int64, err error) error {
	err = stretch{name: r.name}.named("chunk", sp.stored, at, err)
	err = cell.Errorf(cell.KindOf(err), "memory.ReadAt", cell.HintOf(err), "cannot read memory image %s: %w", r.im.root.Short(), err)
	r.im.err.CompareAndSwap(nil, &err)
	return err
}
