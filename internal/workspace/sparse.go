package workspace

import (
	"context"
	"crypto/sha256"
	"encoding"
	"hash"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// Files of which a part is a hole cost what they hold: holes are found by SEEK_DATA and
// SEEK_HOLE, and neither read nor written. A digest is over all bytes all the same, and
// SHA-256 has no shorter way over zeros. What a run of zeros makes of a state of it is
// remembered, so that the same file is hashed in full once, and not each time.

// A contentSum is the SHA-256 of a content, of which zeros can be skipped.
type contentSum struct {
	h  hash.Hash
	at int64
}

func newContentSum() *contentSum { return &contentSum{h: sha256.New()} }

// Write implements io.Writer.
func (s *contentSum) Write(b []byte) (int, error) {
	s.at += int64(len(b))
	return s.h.Write(b)
}

// Digest is that of all that was written.
func (s *contentSum) Digest() (d cell.Digest) {
	s.h.Sum(d[:0])
	return d
}

const (
	zeroStep = 64 << 20 // a run of zeros is remembered in parts that end at its multiples
	zeroLow  = 1 << 20  // and not remembered if it is shorter
	zeroMost = 1 << 14  // how many are remembered: 1 TiB of holes in some 4 MB
)

var (
	zeros    [256 << 10]byte
	zeroRuns struct {
		mu   sync.Mutex         // guards what follows
		next map[zeroRun][]byte // the state behind the run
		full int64              // bytes of zeros that were hashed, for tests
	}
)

type zeroRun struct {
	state string // before the run
	n     int64
}

// Zeros is Write for n zeros. It ends early with ctx.
func (s *contentSum) Zeros(ctx context.Context, n int64) error {
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

// known goes over n zeros if what they do is remembered. It returns the state before them.
func (s *contentSum) known(n int64) (state string, ok bool) {
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

func (s *contentSum) remember(state string, n int64) {
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

// isSparse reports whether a file has holes that are worth looking for.
func isSparse(st *unix.Stat_t) bool { return st.Size >= zeroLow && st.Blocks*512 < st.Size }

// readParts reads a file from its beginning: data gets its bytes, in order, and hole how
// many zeros lie between. It returns the size of what it read.
func readParts(fd int, path string, data func(off int64, b []byte) error, hole func(off, n int64) error) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	sparse := isSparse(&st)
	var off int64
	dataEnd := int64(-1) // of the part that off is in
	for {
		if sparse && off >= dataEnd {
			at, err := unix.Seek(fd, off, unix.SEEK_DATA)
			if err == unix.ENXIO { // a hole up to the end, if it is not the end
				if at, err = unix.Seek(fd, 0, unix.SEEK_END); err == nil && at > off {
					return at, hole(off, at-off)
				}
				return off, err
			}
			if err == nil && at > off {
				if err := hole(off, at-off); err != nil {
					return off, err
				}
				off = at
			}
			if err == nil {
				dataEnd, err = unix.Seek(fd, off, unix.SEEK_HOLE)
			}
			if err != nil {
				sparse = false // this file system can't say
			}
		}
		b := *buf
		if sparse {
			b = b[:min(int64(len(b)), dataEnd-off)]
		}
		n, err := unix.Pread(fd, b, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return off, &os.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return off, nil
		}
		if err := data(off, b[:n]); err != nil {
			return off, err
		}
		off += int64(n)
		if off == st.Size && off < int64(len(*buf)) {
			return off, nil // read whole at once, as nearly all files are
		}
	}
}

// DigestFile returns the size and the SHA-256 of an open file's content.
func DigestFile(ctx context.Context, f *os.File) (int64, cell.Digest, error) {
	sum := newContentSum()
	n, err := readParts(int(f.Fd()), f.Name(), func(_ int64, b []byte) error {
		sum.Write(b)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return nil
	}, func(_, n int64) error { return sum.Zeros(ctx, n) })
	return n, sum.Digest(), err
}

// CopyFile copies what a Contents opened to an empty file, with its holes, and checks it.
// It does nothing, and says so, if r is no file on disk.
func CopyFile(ctx context.Context, to *os.File, r any, path string, e Entry) (did bool, err error) {
	v, ok := r.(*verified)
	if !ok {
		return false, nil
	}
	sum := newContentSum()
	n, err := readParts(int(v.f.Fd()), path, func(off int64, b []byte) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		sum.Write(b)
		return writeAll(int(to.Fd()), b, off)
	}, func(_, n int64) error { return sum.Zeros(ctx, n) })
	if err == nil {
		err = to.Truncate(n) // it may end in a hole
	}
	if err != nil {
		return true, err
	}
	if n != e.Size || sum.Digest() != v.want {
		return true, cell.Errorf(cell.Corrupt, "workspace.Contents", "", "%s is not what the checkpoint recorded", path)
	}
	return true, nil
}
