package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
)

// packed compresses what write writes.
func packed(t *testing.T, how string, write func(w io.Writer)) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&b)
	if how == "zstd" {
		z, err := zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1))
		must(t, err)
		w = z
	}
	write(w)
	must(t, w.Close())
	return b.Bytes()
}

// unpacks unpacks a layer and returns why not.
func unpacks(t *testing.T, lim Limits, layer []byte) (err error) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	must(t, os.Mkdir(root, 0o700))
	u, err := newUnpacker(root, lim, false)
	must(t, err)
	defer u.close()
	u.text = bound.NewBudget("the image's names", 1<<20, "bytes")
	_, err = u.layer(t.Context(), bytes.NewReader(layer), descriptor{MediaType: typeAnyLayer, Size: int64(len(layer))})
	return err
}

// A small layer that expands takes neither the disk nor the memory.
func TestX02LayersThatExpand(t *testing.T) {
	for _, how := range []string{"gzip", "zstd"} {
		for what, c := range map[string]struct {
			word  string
			write func(w io.Writer)
		}{
			"a file": {"bytes", func(w io.Writer) {
				out := tar.NewWriter(w)
				must(t, out.WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: 96 << 20, Mode: 0o644}))
				io.CopyN(out, zero{}, 96<<20)
			}},
			"after the end": {"more than is allowed", func(w io.Writer) {
				must(t, tar.NewWriter(w).Close())
				io.CopyN(w, zero{}, 96<<20)
			}},
			"names": {"1048576 bytes", func(w io.Writer) {
				out := tar.NewWriter(w)
				long := strings.Repeat(strings.Repeat("d", 200)+"/", 18)
				for i := range 1000 { // 3.6 MB of names
					must(t, out.WriteHeader(&tar.Header{Name: long + "f" + itoa(i), Typeflag: tar.TypeReg, Mode: 0o644}))
				}
				must(t, out.Close())
			}},
		} {
			layer := packed(t, how, c.write)
			if len(layer) > 1<<20 {
				t.Fatalf("%s by %s: %d bytes are not small", what, how, len(layer))
			}
			boundtest.AllocatesBeside(t, len(layer), 32<<20, func() { // zstd's window of 8 MiB, twice, and the names that are kept
				if err := unpacks(t, Limits{Bytes: 4 << 20, Files: 10_000}, layer); cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), c.word) {
					t.Errorf("%s by %s: %v", what, how, err)
				}
			})
		}
	}
}

type zero struct{}

func (zero) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// A header that claims a window, a file or a header of any size allocates none of it.
func TestX02LayersThatClaim(t *testing.T) {
	huge := tarOf(t, item{name: "f"})
	copy(huge[124:136], "77777777777\x00") // 8 GiB
	for name, layer := range map[string][]byte{
		"a window of 128 MiB": {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x88, 0x01, 0, 0},
		"a window of 3.75 TB": {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xff, 0x01, 0, 0},
		"content of 2^63":     {0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 0, 0},
		"a file of 8 GiB":     huge,
		"a name of 8 GiB":     bytes.Replace(huge, []byte("ustar"), []byte("ustar"), 1)[:512],
	} {
		if name == "a name of 8 GiB" {
			layer[156] = 'L'
		}
		boundtest.AllocatesBeside(t, len(layer), plainWindow+1<<20, func() {
			if err := unpacks(t, Limits{Bytes: 1 << 20, Files: 10}, layer); err == nil {
				t.Errorf("%s is taken", name)
			}
		})
	}
}

// What describes an image has a bounded number of values: "{}," would be a struct of
// hundreds of bytes.
func TestX02ManifestsThatExpand(t *testing.T) {
	many := func(head, each, end string) []byte {
		return []byte(head + strings.Repeat(each+",", 1<<20) + each + end)
	}
	for name, read := range map[string]func() error{
		"layers":        func() error { _, err := readManifest(many(`{"layers":[`, "{}", "]}"), ""); return err },
		"an index":      func() error { _, err := readManifest(many(`{"manifests":[`, "{}", "]}"), ""); return err },
		"a config":      func() error { _, err := readConfig(many(`{"history":[`, "{}", "]}"), 1); return err },
		"docker's list": func() error { _, err := (&files{}).inDocker(many(`[`, "{}", "]"), ""); return err },
	} {
		boundtest.AllocatesBeside(t, 0, 16<<20, func() { // the text itself, twice
			if err := read(); bound.Exceeded(err) == nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}
