package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
)

func openRoot(t *testing.T, dir string) *os.File {
	t.Helper()
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func pack(t *testing.T, list ...tar.Header) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range list {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			io.WriteString(w, h.Name)
		}
	}
	w.Close()
	return &b
}

// What is taken is what is sent again.
func TestThereAndBack(t *testing.T) {
	dir := t.TempDir()
	root := openRoot(t, dir)
	at := time.Date(2001, 2, 3, 4, 5, 6, 789_000_000, time.UTC)
	in := pack(t, tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o511, ModTime: at, Format: tar.FormatPAX}, tar.Header{Name: "d/f", Typeflag: tar.TypeReg, Mode: 0o440, ModTime: at, Format: tar.FormatPAX},
		tar.Header{Name: "d/l", Typeflag: tar.TypeSymlink, Linkname: "f", ModTime: at, Format: tar.FormatPAX}, tar.Header{Name: "d/e/", Typeflag: tar.TypeDir})
	if err := Take(root, "/to", os.Getuid(), os.Getgid(), in); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Send(root, "/to/d", &b); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, _ := io.ReadAll(r)
		got[h.Name] = string(h.Typeflag) + " " + string(content) + h.Linkname
		if h.Typeflag != tar.TypeSymlink {
			got[h.Name] += fmt.Sprintf(" %o", h.Mode)
		}
		if said := h.Name != "d/e/"; h.ModTime.Equal(at) != said || h.ModTime.Unix() == 0 { // without a time it is the present
			t.Errorf("%s is of %s", h.Name, h.ModTime)
		}
	}
	want := map[string]string{"d/": "5  511", "d/e/": "5  755", "d/f": "0 d/f 440", "d/l": "2 f"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// Nothing leads out of the root: no symlink that is there, none that comes with
// the archive, no name.
func TestNothingLeadsOut(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	root := openRoot(t, dir)
	if err := os.Symlink(outside, filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	Take(root, "/out", os.Getuid(), os.Getgid(), pack(t, tar.Header{Name: "a", Typeflag: tar.TypeReg, Mode: 0o644}))
	Take(root, "/", os.Getuid(), os.Getgid(), pack(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: outside},
		tar.Header{Name: "l/b", Typeflag: tar.TypeReg, Mode: 0o644}, tar.Header{Name: "../c", Typeflag: tar.TypeReg, Mode: 0o644}))
	list, err := os.ReadDir(outside)
	if len(list) > 0 || err != nil {
		t.Errorf("outside are %v, %v", list, err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(dir), "c")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a name leads out: %v", err)
	}
	os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600)
	if err := Send(root, "/out/secret", io.Discard); cell.KindOf(err) != cell.NotFound {
		t.Errorf("a file outside: %v", err)
	}
	if err := Take(root, "/", 0, 0, pack(t, tar.Header{Name: "dev", Typeflag: tar.TypeChar})); cell.KindOf(err) != cell.Unsupported {
		t.Errorf("a device: %v", err)
	}
}

// X02: a limit on the archive would be none on the files that it holds.
func TestX02ArchiveWithHoles(t *testing.T) {
	t.Parallel()
	root, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	err = Take(root, "/", os.Getuid(), os.Getgid(), bytes.NewReader(boundtest.SparseArchive(t, "a", 16<<20)))
	if cell.KindOf(err) != cell.Invalid {
		t.Errorf("taken: %v", err)
	}
}
