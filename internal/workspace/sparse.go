package workspace

import (
	"context"
	"crypto/sha256"
	"encoding"
	"hash"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// The cost of sparse files is that of their data: holes are found by SEEK_DATA and SEEK_HOLE,
// and neither read nor written. A digest covers all bytes all the same, and SHA-256 and SHA-1
// have no shorter way over zeros. The effect of a run of zeros on the state of a hash is cached,
// so that the same file is hashed in full only once.

// A ZeroWriter accepts runs of zeros without their bytes.
type ZeroWriter interface {
	io.Writer
	// Zeros is Write for n zeros. It ends early with ctx.
	Zeros(ctx context.Context, n int64) error
}

// A Sum is a hash of a content in which zeros can be skipped.
type Sum struct {
	h  hash.Hash
	at int64
}

// NewSum returns a Sum with h, which must be able to save its state, as those of the standard
// library are.
func NewSum(h hash.Hash) *Sum { return &Sum{h: h} }

// Write implements io.Writer.
func (s *Sum) Write(b []byte) (int, error) {
	s.at += int64(len(b))
	return s.h.Write(b)
}

// Bytes is the sum of everything written.
func (s *Sum) Bytes() []byte { return s.h.Sum(nil) }

const (
	zeroStep = 64 << 20 // a run of zeros is cached in parts that end at its multiples
	zeroLow  = 1 << 20  // shorter runs are not cached
	zeroMost = 1 << 14  // entries: 1 TiB of holes in some 4 MB
)

var (
	zeros    [256 << 10]byte
	zeroRuns struct {
		mu   sync.Mutex         // guards the fields below
		next map[zeroRun][]byte // the state after the run
		full int64              // bytes of zeros that were hashed, for tests
	}
)

type zeroRun struct {
	state string // before the run
	n     int64
}

// Zeros implements ZeroWriter.
func (s *Sum) Zeros(ctx context.Context, n int64) error {
	for n > 0 {
		step := min(n, zeroStep-s.at%zeroStep)
		state, known := s.known(step)
		if known {
			s.at += step
			n -= step
			continue
		}
		for left := step; left > 0; {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			b := zeros[:min(left, int64(len(zeros)))]
			s.Write(b)
			left -= int64(len(b))
		}
		n -= step
		s.remember(state, step)
	}
	return nil
}

// known skips n zeros if their effect is cached. It returns the state before them.
func (s *Sum) known(n int64) (state string, ok bool) {
	if n < zeroLow {
		return "", false
	}
	b, err := s.h.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		return "", false
	}
	zeroRuns.mu.Lock()
	next := zeroRuns.next[zeroRun{string(b), n}]
	zeroRuns.mu.Unlock()
	return string(b), next != nil && s.h.(encoding.BinaryUnmarshaler).UnmarshalBinary(next) == nil
}

func (s *Sum) remember(state string, n int64) {
	zeroRuns.mu.Lock()
	defer zeroRuns.mu.Unlock()
	zeroRuns.full += n
	if state == "" {
		return
	}
	next, err := s.h.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		return
	}
	if zeroRuns.next == nil || len(zeroRuns.next) >= zeroMost {
		zeroRuns.next = map[zeroRun][]byte{}
	}
	zeroRuns.next[zeroRun{state, n}] = next
}

// isSparse reports whether a file has holes worth a search.
func isSparse(st *unix.Stat_t) bool { return st.Size >= zeroLow && st.Blocks*512 < st.Size }

// parts reads an open file from its beginning, part by part.
type parts struct {
	fd      int
	path    string
	size    int64
	off     int64
	dataEnd int64 // end of the data that off is in
	sparse  bool
}

func openParts(fd int, path string) (*parts, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return &parts{fd: fd, path: path, size: st.Size, dataEnd: -1, sparse: isSparse(&st)}, nil
}

// next reads the next data into b, or returns a number of zeros. Both numbers are 0 at the end.
func (p *parts) next(b []byte) (n int, zeros int64, err error) {
	if p.sparse && p.off >= p.dataEnd {
		zeros, err := p.skip()
		if zeros > 0 || err != nil {
			return 0, zeros, err
		}
	}
	if p.sparse {
		b = b[:min(int64(len(b)), p.dataEnd-p.off)]
	}
	for {
		n, err = unix.Pread(p.fd, b, p.off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, 0, &os.PathError{Op: "read", Path: p.path, Err: err}
		}
		p.off += int64(n)
		return n, 0, nil
	}
}

// skip moves to the data after off, and finds its end. A file system without holes, or that
// can't find them, has none from here on.
func (p *parts) skip() (zeros int64, err error) {
	at, err := unix.Seek(p.fd, p.off, unix.SEEK_DATA)
	if err == unix.ENXIO { // a hole up to the end, if it is not the end
		end, err := unix.Seek(p.fd, 0, unix.SEEK_END)
		if err != nil {
			return 0, &os.PathError{Op: "seek", Path: p.path, Err: err}
		}
		p.dataEnd = max(end, p.off)
		zeros, p.off = p.dataEnd-p.off, p.dataEnd
		return zeros, nil
	}
	var end int64
	if err == nil {
		end, err = unix.Seek(p.fd, at, unix.SEEK_HOLE)
	}
	if err != nil {
		p.sparse = false
		return 0, nil
	}
	zeros, p.off, p.dataEnd = at-p.off, at, end
	return zeros, nil
}

// readParts reads a file from its beginning: data gets its bytes, in order, and hole the number
// of zeros in between. It returns the size read.
func readParts(fd int, path string, data func(off int64, b []byte) error, hole func(off, n int64) error) (int64, error) {
	p, err := openParts(fd, path)
	if err != nil {
		return 0, err
	}
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	for {
		off := p.off
		n, zeros, err := p.next(*buf)
		switch {
		case err != nil:
			return off, err
		case zeros > 0:
			err = hole(off, zeros)
		case n > 0:
			err = data(off, (*buf)[:n])
		default:
			return off, nil
		}
		if err != nil {
			return p.off, err
		}
		if zeros == 0 && p.off == p.size && p.off < int64(len(*buf)) {
			return p.off, nil // read at once, as nearly all files are
		}
	}
}

// DigestFile returns the size and the SHA-256 of an open file's content.
func DigestFile(ctx context.Context, f *os.File) (int64, cell.Digest, error) {
	sum := NewSum(sha256.New())
	n, err := copyParts(ctx, sum, f, f.Name())
	return n, cell.Digest(sum.Bytes()), err
}

// copyParts writes a file, from its beginning, to w. It returns the size read.
func copyParts(ctx context.Context, w ZeroWriter, f *os.File, path string) (int64, error) {
	return readParts(int(f.Fd()), path, func(_ int64, b []byte) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		_, err := w.Write(b)
		return err
	}, func(_, n int64) error { return w.Zeros(ctx, n) })
}

// Copy writes the content of a reader from Contents to w, without the zeros of its holes, and
// checks it. It does nothing, and reports so, if r is no file on disk.
func Copy(ctx context.Context, w ZeroWriter, r any, path string, e Entry) (did bool, err error) {
	v, ok := r.(*verified)
	if !ok {
		return false, nil
	}
	sum := NewSum(sha256.New())
	n, err := copyParts(ctx, both{sum, w}, v.f, path)
	if err == nil && (n != e.Size || cell.Digest(sum.Bytes()) != v.want) {
		err = v.corrupt()
	}
	return true, err
}

// both is two ZeroWriters.
type both struct{ a, b ZeroWriter }

func (w both) Write(b []byte) (int, error) {
	if n, err := w.a.Write(b); err != nil {
		return n, err
	}
	return w.b.Write(b)
}

func (w both) Zeros(ctx context.Context, n int64) error {
	if err := w.a.Zeros(ctx, n); err != nil {
		return err
	}
	return w.b.Zeros(ctx, n)
}

// CopyFile is Copy to an empty file, which gets the same holes and, in a file with holes,
// further ones for blocks of zeros: overlayfs copies a file in parts of 1 MiB, and so fills the
// smaller holes beside its data.
func CopyFile(ctx context.Context, to *os.File, r any, path string, e Entry) (did bool, err error) {
	w := &holes{f: to}
	if v, ok := r.(*verified); ok {
		var st unix.Stat_t
		w.blocks = unix.Fstat(int(v.f.Fd()), &st) == nil && isSparse(&st)
	}
	if did, err = Copy(ctx, w, r, path, e); did && err == nil {
		err = to.Truncate(w.at) // it may end in a hole
	}
	return did, err
}

// holes writes to a file, in which runs of zeros become holes.
type holes struct {
	f      *os.File
	at     int64
	blocks bool // blocks of zeros become holes, too
}

// holeBlock is the smallest hole of most file systems.
const holeBlock = 4 << 10

func (w *holes) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		end, zero := len(b), false
		if w.blocks {
			end, zero = likeBlocks(b, w.at)
		}
		if !zero {
			if err := writeAll(int(w.f.Fd()), b[:end], w.at); err != nil {
				return n, err
			}
		}
		w.at, n, b = w.at+int64(end), n+end, b[end:]
	}
	return n, nil
}

// likeBlocks returns how much of b, at off, is whole blocks of zeros, or is not.
func likeBlocks(b []byte, off int64) (end int, zero bool) {
	for end < len(b) {
		block := b[end:min(len(b), end+holeBlock-int((off+int64(end))%holeBlock))]
		is := len(block) == holeBlock && allZero(block)
		if end > 0 && is != zero {
			break
		}
		zero, end = is, end+len(block)
	}
	return end, zero
}

func (w *holes) Zeros(_ context.Context, n int64) error {
	w.at += n
	return nil
}

// Shortened returns a reader of a content from Contents in which a hole has at most 1 MiB, for
// searches for texts without zeros. The reader checks the content, as r does.
func Shortened(ctx context.Context, r io.Reader) (io.Reader, error) {
	v, ok := r.(*verified)
	if !ok {
		return r, nil
	}
	p, err := openParts(int(v.f.Fd()), v.path)
	if err != nil || !p.sparse {
		return r, err
	}
	return &shortened{ctx: ctx, v: v, p: p, sum: NewSum(sha256.New())}, nil
}

type shortened struct {
	ctx  context.Context
	v    *verified
	p    *parts
	sum  *Sum
	left int64 // remaining zeros of a hole
}

const shortHole = 1 << 20

func (s *shortened) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if s.left == 0 {
		n, zeros, err := s.p.next(b)
		switch {
		case err != nil:
			return 0, err
		case n > 0:
			return s.sum.Write(b[:n])
		case zeros == 0:
			if cell.Digest(s.sum.Bytes()) != s.v.want {
				return 0, s.v.corrupt()
			}
			return 0, io.EOF
		}
		if err := s.sum.Zeros(s.ctx, zeros); err != nil {
			return 0, err
		}
		s.left = min(zeros, shortHole)
	}
	n := min(int64(len(b)), s.left)
	clear(b[:n])
	s.left -= n
	return int(n), nil
}
