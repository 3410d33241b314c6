package memory

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	minLeaf  = 16  // spans after which a digest may end a leaf
	maxLeaf  = 256 // spans of a leaf
	leafMask = 64 - 1
)

// A File is one file of an image. An *os.File is read without its holes.
type File struct {
	Name string // without folders
	Size int64  // bytes
	From io.ReaderAt
}

// Stats says what an image is made of, and what of it was new.
type Stats struct {
	Bytes     int64         // of all files
	Zeros     int64         // of them in holes
	Chunks    int           // of the image
	NewChunks int           // of them written; the others were there
	NewBytes  int64         // in new chunks, before compression
	Written   int64         // bytes of objects that were put: chunks, leaves and root
	Unread    []cell.Digest // bases that could not be read: chunks they have were written again
}

// SaveDir saves the regular files of a directory, and those in memory that its links
// lead to. See Save.
func SaveDir(ctx context.Context, st Store, dir string, bases ...cell.Digest) (root cell.Digest, stats Stats, err error) {
	fail := func(err error) (cell.Digest, Stats, error) {
		return cell.Digest{}, Stats{}, cell.Errorf(cell.KindOf(err), "memory.Save", cell.HintOf(err), "cannot save the memory image: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fail(err)
	}
	var files []File
	for _, e := range entries {
		f, err := openFile(dir, e)
		if err != nil {
			return fail(err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return fail(err)
		}
		files = append(files, File{Name: e.Name(), Size: info.Size(), From: f})
	}
	return Save(ctx, st, files, bases...)
}

// openFile opens a regular file of a directory, or one in memory that its link leads to.
func openFile(dir string, e fs.DirEntry) (*os.File, error) {
	isLink := e.Type() == fs.ModeSymlink
	if isLink || e.Type().IsRegular() {
		f, err := os.OpenFile(filepath.Join(dir, e.Name()), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != nil {
			return nil, err
		}
		if _, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0); !isLink || err == nil { // only such have seals
			return f, nil
		}
		f.Close()
	}
	return nil, cell.Errorf(cell.Invalid, "memory.Save", "", "%s is no regular file", e.Name())
}

// Save puts an image of files into st and returns its root. The files must not
// change meanwhile. Equal files give equal roots, whatever the bases.
//
// Chunks of the bases that are in st are neither compressed nor put again. A
// base that can't be read saves nothing, and is named in the stats: the image
// is whole without it. When Save fails no root names what was put, and the
// store's next collection drops it.
func Save(ctx context.Context, st Store, files []File, bases ...cell.Digest) (root cell.Digest, stats Stats, err error) {
	s, err := newSaver(ctx, st, bases)
	if err == nil {
		root, err = s.save(files)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = cell.Errorf(cell.Interrupted, "memory.Save", "", "%w", context.Cause(ctx))
		}
		return cell.Digest{}, Stats{}, cell.Errorf(cell.KindOf(err), "memory.Save", cell.HintOf(err), "cannot save the memory image: %w", err)
	}
	return root, s.stats, nil
}

type saver struct {
	ctx  context.Context
	st   Store
	enc  *zstd.Encoder
	bufs sync.Pool // of *[maxChunk]byte

	mu    sync.Mutex // guards what follows, while workers run
	known map[cell.Digest]known
	stats Stats
}

// known is a chunk that is stored.
type known struct {
	stored cell.Digest
	base   bool // in a base, and not put by this Save
}

// A job is a chunk that still has to report its digests to its span.
type job struct {
	span  *span
	bytes []byte
}

func newSaver(ctx context.Context, st Store, bases []cell.Digest) (*saver, error) {
	s := &saver{ctx: ctx, st: st, known: map[cell.Digest]known{}}
	for _, b := range bases {
		if err := s.learn(b); err != nil {
			s.stats.Unread = append(s.stats.Unread, b)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	// The fastest level: the next takes twice as long for one part in a
	// thousand less. Sums are left out: objects have digests.
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)), zstd.WithWindowSize(maxChunk), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, err
	}
	s.enc = enc
	s.bufs.New = func() any { return new([maxChunk]byte) }
	return s, nil
}

// learn notes the chunks of an image that are in the store.
func (s *saver) learn(root cell.Digest) error {
	m, err := readRoot(s.st, root)
	if err != nil {
		return err
	}
	for _, f := range m.files {
		for _, l := range f.leaves {
			spans, err := readLeaf(s.st, l)
			if err != nil {
				return err
			}
			for i := range spans {
				if sp := &spans[i]; !sp.hole() {
					s.known[sp.plain] = known{sp.stored, true}
				}
			}
		}
	}
	return nil
}

func (s *saver) save(files []File) (root cell.Digest, err error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	for i, f := range files {
		if !isName(f.Name) || i > 0 && files[i-1].Name == f.Name || f.Size < 0 || f.Size > maxSize {
			return root, cell.Errorf(cell.Invalid, "memory.Save", "", "%q of %d bytes can't be a file of it", f.Name, f.Size)
		}
	}
	all, err := s.cut(files)
	if err != nil {
		return root, err
	}
	m := &manifest{}
	for i, f := range files {
		out := file{name: f.Name, size: f.Size}
		for _, spans := range split(all[i]) {
			b := encodeLeaf(spans)
			l := leafRef{digest: cell.Sum(b)}
			for _, sp := range spans {
				l.size += sp.size
			}
			if err := s.put(l.digest, b); err != nil {
				return root, err
			}
			out.leaves = append(out.leaves, l)
		}
		m.files = append(m.files, out)
	}
	if err := s.still(all); err != nil {
		return root, err
	}
	b := m.encode()
	root = cell.Sum(b)
	return root, s.put(root, b)
}

// cut reads the files one after the other, in one goroutine; what it cuts is
// digested, compressed and put by others.
func (s *saver) cut(files []File) (all [][]*span, err error) {
	g, ctx := errgroup.WithContext(s.ctx)
	jobs := make(chan job, 2*runtime.GOMAXPROCS(0))
	for range runtime.GOMAXPROCS(0) {
		g.Go(func() error {
			var packed []byte
			for j := range jobs {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				var err error
				if packed, err = s.chunk(j, packed[:0]); err != nil {
					return err
				}
				s.bufs.Put((*[maxChunk]byte)(j.bytes[:maxChunk]))
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(jobs)
		for _, f := range files {
			var spans []*span
			c := &cutter{
				fresh: func() []byte { return s.bufs.Get().(*[maxChunk]byte)[:0] },
				skip:  func(n int64) { spans = append(spans, &span{size: n}) },
				emit: func(b []byte) error {
					sp := &span{size: int64(len(b))}
					spans = append(spans, sp)
					select {
					case jobs <- job{sp, b}:
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				},
			}
			if err := c.file(f.From, f.Size); err != nil {
				return cell.Errorf(cell.KindOf(err), "memory.Save", "", "%s: %w", f.Name, err)
			}
			all = append(all, spans)
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, f := range files {
		s.stats.Bytes += f.Size
		for _, sp := range all[i] {
			if sp.hole() {
				s.stats.Zeros += sp.size
			} else {
				s.stats.Chunks++
			}
		}
	}
	return all, nil
}

// chunk fills in a span's digests, and puts the chunk if it is not there. It
// compresses into packed, which it returns.
func (s *saver) chunk(j job, packed []byte) ([]byte, error) {
	j.span.plain = cell.Sum(j.bytes)
	s.mu.Lock()
	k, ok := s.known[j.span.plain]
	s.mu.Unlock()
	if ok && (!k.base || s.st.Has(k.stored)) {
		j.span.stored = k.stored
		return packed, nil
	}
	packed = s.enc.EncodeAll(j.bytes, packed)
	d := cell.Sum(packed)
	j.span.stored = d
	s.mu.Lock()
	k, ok = s.known[j.span.plain]
	s.known[j.span.plain] = known{stored: d}
	if !ok || k.base { // else another worker was as quick with an equal chunk
		s.stats.NewChunks++
		s.stats.NewBytes += int64(len(j.bytes))
		s.stats.Written += int64(len(packed))
	}
	s.mu.Unlock()
	return packed, s.st.Put(d, packed)
}

// still makes sure that chunks of bases are there when everything but the root
// is: a collection may have run meanwhile.
func (s *saver) still(all [][]*span) error {
	for _, spans := range all {
		for _, sp := range spans {
			if !sp.hole() && s.known[sp.plain].base && !s.st.Has(sp.stored) {
				return cell.Errorf(cell.Conflict, "memory.Save", "try again", "chunk %s, which it shares with another image, was dropped meanwhile", sp.stored.Short())
			}
		}
	}
	return nil
}

// put puts a leaf or the root.
func (s *saver) put(d cell.Digest, b []byte) error {
	if !s.st.Has(d) {
		s.stats.Written += int64(len(b))
	}
	return s.st.Put(d, b)
}

// split makes leaves of the spans of a file. A leaf ends where the digest of a
// chunk says so, and with it begin the next leaf's spans anew.
func split(spans []*span) (leaves [][]*span) {
	begin := 0
	for i, sp := range spans {
		n := i + 1 - begin
		if n >= maxLeaf || n >= minLeaf && !sp.hole() && sp.plain[0]&leafMask == 0 || i == len(spans)-1 {
			leaves = append(leaves, spans[begin:i+1])
			begin = i + 1
		}
	}
	return leaves
}
