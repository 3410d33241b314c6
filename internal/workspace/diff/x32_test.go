package diff

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// onDisk is the contents of a directory.
type onDisk string

func (d onDisk) Open(path string, e workspace.Entry) (io.ReadCloser, error) {
	f, err := os.Open(filepath.Join(string(d), path))
	if err != nil {
		return nil, err
	}
	return workspace.Verified(f, path, e), nil
}

// sparseSide is a directory with one file f of that size, which has data at each offset.
func sparseSide(t *testing.T, size int64, text string, data ...int64) workspace.Side {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "f"))
	if err == nil {
		err = f.Truncate(size)
	}
	for _, off := range data {
		if err == nil {
			_, err = f.WriteAt([]byte(text), off)
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	tree, err := workspace.Walk(context.Background(), dir, wt.NewObjects())
	if err != nil {
		t.Fatal(err)
	}
	return workspace.Side{Tree: tree, Contents: onDisk(dir)}
}

// A zlib stream of data and zeros is what zlib reads, whatever the order.
func TestX32ZlibStreamsSkipZeros(t *testing.T) {
	ctx := context.Background()
	var packed bytes.Buffer
	z, err := newZlibWriter(&packed, 0)
	block, berr := deflatedZeros()
	if err = errors.Join(err, berr); err == nil {
		err = errors.Join(z.Zeros(ctx, 9*zeroBlock+1), z.Close())
	}
	if n := bytes.Count(packed.Bytes(), block); n != 9 || err != nil {
		t.Errorf("nine blocks of zeros are %d copies of what stands for one (%v)", n, err)
	}
	r := rand.New(rand.NewSource(1))
	for range 30 {
		var packed, plain bytes.Buffer
		z, err := newZlibWriter(&packed, r.Int63n(2*fastSize))
		if err != nil {
			t.Fatal(err)
		}
		for range r.Intn(8) {
			b := make([]byte, r.Intn(100_000))
			if r.Intn(2) == 0 {
				r.Read(b)
			} else {
				copy(b, strings.Repeat("what repeats ", 8000))
			}
			n := r.Int63n(3 * zeroBlock)
			if r.Intn(2) == 0 { // what comes next is just behind a copy
				n -= n % zeroBlock
			}
			plain.Write(b)
			plain.Write(make([]byte, n))
			if _, err := z.Write(b); err != nil {
				t.Fatal(err)
			}
			if err := z.Zeros(ctx, n); err != nil {
				t.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		out, err := zlib.NewReader(&packed)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(out)
		if err != nil || !bytes.Equal(got, plain.Bytes()) {
			t.Fatalf("%d bytes of %d (%v)", len(got), plain.Len(), err)
		}
	}
}

// A patch of files with holes has all of them, both ways, also where a hole has the length
// of whole blocks of zeros, and what comes behind it repeats what is before it.
func TestX32PatchesOfHoles(t *testing.T) {
	const big = textLimit/2 + 12345
	a, b := sparseSide(t, big, "old", 3, 20<<20+4096, big-3), sparseSide(t, big+(5<<20), "new", 0, 20<<20+4096, 33<<20)
	p := patchOf(t, mustCompare(t, a, b, Options{}))
	dir := cloneOf(t, wt.Model{})
	in, err := a.Contents.Open("f", workspace.Entry{Type: workspace.File})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	text, _ := io.ReadAll(in) // the entry promises nothing
	if err := os.WriteFile(filepath.Join(dir, "f"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, way := range []struct {
		args []string
		side workspace.Side
	}{{[]string{"apply"}, b}, {[]string{"apply", "-R"}, a}} {
		if out, err := runGit(t, dir, p, way.args...); err != nil {
			t.Fatalf("git %v: %v\n%s", way.args, err, out)
		}
		text, err := os.ReadFile(filepath.Join(dir, "f"))
		e, lerr := way.side.Tree.Lookup("f")
		if err != nil || lerr != nil || cell.Digest(sha256.Sum256(text)) != e.Digest {
			t.Errorf("git %v: another file (%v, %v)", way.args, err, lerr)
		}
	}
}

// Nothing of a patch is longer than a thousandth of a hole, and nothing larger is made
// than git takes.
func TestX32PatchesAreBounded(t *testing.T) {
	const big = 512 << 20
	a, b := wt.Model{}.Side(t, nil), sparseSide(t, big, "data", big-4)
	n := int64(len(patchOf(t, mustCompare(t, a, b, Options{}))))
	if n > big/500 {
		t.Errorf("the patch of a hole of 512 MiB has %d bytes", n)
	}
	defer func(n int64) { maxGitPatch = n }(maxGitPatch)
	maxGitPatch = n
	if err := mustCompare(t, a, b, Options{}).Patch(context.Background(), io.Discard); cell.KindOf(err) != cell.Unsupported || !strings.Contains(err.Error(), "larger than git apply takes") {
		t.Errorf("beyond the bound: %v", err)
	}
}
