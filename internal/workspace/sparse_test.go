package workspace

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// sparse makes a file of that size with some bytes of data at each offset.
func sparse(t *testing.T, name string, size int64, data ...int64) string {
	t.Helper()
	at := filepath.Join(t.TempDir(), name)
	f, err := os.Create(at)
	if err == nil {
		err = f.Truncate(size)
	}
	for _, off := range data {
		if err == nil {
			_, err = f.WriteAt([]byte("data"), off)
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return at
}

func hashed() int64 {
	zeroRuns.mu.Lock()
	defer zeroRuns.mu.Unlock()
	return zeroRuns.full
}

func digestOf(t *testing.T, at string) (int64, cell.Digest) {
	t.Helper()
	f, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, d, err := DigestFile(context.Background(), f)
	if err != nil {
		t.Fatal(err)
	}
	return n, d
}

// The digest of a file with holes is that of its bytes, and a hole that was hashed once is
// not hashed again.
func TestX32HolesAreDigestedOnce(t *testing.T) {
	const big = 3*zeroStep + 12345
	for _, data := range [][]int64{nil, {0}, {big - 4}, {7}, {zeroStep}, {zeroStep - 2}, {5, 2 * zeroStep, big - 9}} {
		at := sparse(t, "f", big, data...)
		f, err := os.Open(at)
		if err != nil {
			t.Fatal(err)
		}
		h := sha256.New()
		io.Copy(h, f)
		f.Close()
		n, d := digestOf(t, at)
		if n != big || d != cell.Digest(h.Sum(nil)) {
			t.Errorf("data at %v: %d bytes, %s", data, n, d)
		}
		before := hashed()
		if _, again := digestOf(t, at); again != d {
			t.Errorf("data at %v: another digest", data)
		}
		if more := hashed() - before; more >= zeroStep {
			t.Errorf("data at %v: %d bytes of zeros were hashed again", data, more)
		}
	}
	r := rand.New(rand.NewSource(1))
	for range 50 { // runs of any length, between data of any length
		for what, new := range map[string]func() hash.Hash{"SHA-256": sha256.New, "SHA-1": sha1.New} {
			h, s := new(), NewSum(new())
			for range 8 {
				b := make([]byte, r.Intn(300))
				r.Read(b)
				n := r.Int63n(3 << 20)
				h.Write(b)
				h.Write(make([]byte, n))
				s.Write(b)
				if err := s.Zeros(context.Background(), n); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(s.Bytes(), h.Sum(nil)) {
				t.Fatalf("a %s is not that of the bytes", what)
			}
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := NewSum(sha256.New()).Zeros(ctx, 1<<40); !errors.Is(err, context.Canceled) {
		t.Errorf("a terabyte of zeros does not end with its context: %v", err)
	}
}

// A copy of a file with holes has no blocks of zeros; one without has what it had.
func TestX32ZerosBesideDataAreHoles(t *testing.T) {
	const big = 8 << 20
	text := make([]byte, 1<<20)
	copy(text[5000:], "one")
	copy(text[len(text)-2:], "two")
	for _, c := range []struct {
		name string
		size int64
		want int64 // kilobytes on disk
	}{{"with holes", big, 8}, {"without", int64(len(text)), 1 << 10}} {
		at := sparse(t, "f", c.size)
		f, err := os.OpenFile(at, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(text, c.size-int64(len(text))); err != nil {
			t.Fatal(err)
		}
		n, d := digestOf(t, at)
		out, err := os.Create(at + ".copy")
		if err != nil {
			t.Fatal(err)
		}
		e := Entry{Type: File, Size: n, Digest: d}
		did, err := CopyFile(context.Background(), out, Verified(f, "f", e), "f", e)
		if err = errors.Join(err, out.Sync(), out.Close(), f.Close()); !did || err != nil {
			t.Fatal(did, err)
		}
		var st unix.Stat_t
		if err := unix.Stat(at+".copy", &st); err != nil {
			t.Fatal(err)
		}
		if m, other := digestOf(t, at+".copy"); m != n || other != d || st.Blocks/2 != c.want {
			t.Errorf("a file %s: its copy has %d bytes, on disk %d kB, digest %s, want %d, %d, %s", c.name, m, st.Blocks/2, other.Short(), n, c.want, d.Short())
		}
	}
}

// A copy of a file of a state has its holes, and is checked.
func TestX32CopiesHaveHoles(t *testing.T) {
	const big = 5 << 20
	at := sparse(t, "f", big, 3, 2<<20)
	n, d := digestOf(t, at)
	copied := func(want cell.Digest) (string, error) {
		in, err := os.Open(at)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		to := filepath.Join(t.TempDir(), "copy")
		out, err := os.Create(to)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		e := Entry{Type: File, Size: n, Digest: want}
		did, err := CopyFile(context.Background(), out, Verified(in, "f", e), "f", e)
		if !did {
			t.Error("a file on disk is not copied")
		}
		return to, err
	}
	to, err := copied(d)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(to, &st); err != nil {
		t.Fatal(err)
	}
	if m, other := digestOf(t, to); m != n || other != d {
		t.Error("the copy is something else")
	}
	if st.Blocks*512 > 1<<20 {
		t.Errorf("the copy takes %d bytes on disk", st.Blocks*512)
	}
	if _, err := copied(cell.Digest{}); cell.KindOf(err) != cell.Corrupt {
		t.Errorf("what the checkpoint did not record: %v", err)
	}
}

// A search reads the data of a file with holes and little of its holes, and finds out all
// the same when the file is another.
func TestX32SearchesGoByTheHoles(t *testing.T) {
	const big = 512 << 20
	at := sparse(t, "f", big, 3, 300<<20, big-4)
	open := func(want cell.Digest) io.Reader {
		f, err := os.Open(at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		r, err := Shortened(context.Background(), Verified(f, "f", Entry{Type: File, Size: big, Digest: want}))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	_, d := digestOf(t, at)
	b, err := io.ReadAll(open(d))
	if err != nil || bytes.Count(b, []byte("data")) != 3 || len(b) > 4<<20 {
		t.Errorf("%d bytes with the data %d times (%v)", len(b), bytes.Count(b, []byte("data")), err)
	}
	if _, err := io.ReadAll(open(cell.Digest{})); cell.KindOf(err) != cell.Corrupt {
		t.Errorf("what the checkpoint did not record: %v", err)
	}
}
