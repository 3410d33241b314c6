package cache

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound/boundtest"
)

// tree writes files below a directory.
func tree(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// modZip is the archive of a module, and its hash.
func modZip(t testing.TB, name string, files map[string]string) (text, sum string) {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range slices.Sorted(maps.Keys(files)) {
		w, err := z.Create(name + "/" + f)
		if err != nil {
			t.Fatal(err)
		}
		w.Write([]byte(files[f]))
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(t.TempDir(), "m.zip")
	if err := os.WriteFile(at, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	sum, err := dirhash.HashZip(at, dirhash.Hash1)
	if err != nil {
		t.Fatal(err)
	}
	return b.String(), sum
}

func check(t testing.TB, name, dir string, below ...string) checked {
	t.Helper()
	got, err := checkLayer(t.Context(), name, dir, below, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got.Bad)
	return got
}

func TestNamesOfContent(t *testing.T) {
	of512, of256 := sha512.Sum512([]byte("good")), sha256.Sum256([]byte("good"))
	h, o := hex.EncodeToString(of512[:]), hex.EncodeToString(of256[:])
	npm := "content-v2/sha512/" + h[:2] + "/" + h[2:4] + "/" + h[4:]
	pnpm := "v10/files/" + h[:2] + "/" + h[2:]
	out := o[:2] + "/" + o + "-d"
	for _, x := range []struct{ cache, path string }{{"npm", npm}, {"pnpm", pnpm}, {"pnpm", pnpm + "-exec"}, {"go", out}} {
		dir := t.TempDir()
		tree(t, dir, map[string]string{x.path: "good", "index/x": "bad"})
		if got := check(t, x.cache, dir); got.Files != 1 || len(got.Bad) != 0 {
			t.Errorf("%s: %+v", x.path, got)
		}
		tree(t, dir, map[string]string{x.path: "evil"})
		if got := check(t, x.cache, dir); got.Files != 1 || !slices.Equal(got.Bad, []string{x.path}) {
			t.Errorf("%s: %+v", x.path, got)
		}
		if got := check(t, "pip", dir); got.Files != 0 || len(got.Bad) != 0 {
			t.Errorf("another cache is verified: %+v", got)
		}
	}
}

// What go unpacked of a module is what its hash says, wherever that is: go compares the hash alone.
func TestModulesAreWhatTheirHashSays(t *testing.T) {
	files := map[string]string{"go.mod": "module example.com/Big", "a/a.go": "package a", "LICENSE": "x"}
	text, sum := modZip(t, "example.com/Big@v1.0.0-Rc", files)
	const at, unpacked = "cache/download/example.com/!big/@v/v1.0.0-!rc", "example.com/!big@v1.0.0-!rc"
	whole := map[string]string{at + ".zip": text, at + ".ziphash": sum + "\n"}
	for f, s := range files {
		whole[unpacked+"/"+f] = s
	}
	with := func(change func(m map[string]string)) map[string]string {
		m := maps.Clone(whole)
		change(m)
		return m
	}
	other, _ := modZip(t, "example.com/Big@v1.0.0-Rc", map[string]string{"a/a.go": "package evil"})
	for name, x := range map[string]struct {
		files map[string]string
		bad   []string
	}{
		"whole":          {whole, nil},
		"changed":        {with(func(m map[string]string) { m[unpacked+"/a/a.go"] = "package evil" }), []string{unpacked}},
		"more":           {with(func(m map[string]string) { m[unpacked+"/a/b.go"] = "package a" }), []string{unpacked}},
		"less":           {with(func(m map[string]string) { delete(m, unpacked+"/a/a.go") }), []string{unpacked}},
		"no hash":        {with(func(m map[string]string) { delete(m, at+".ziphash") }), []string{at + ".zip", unpacked}},
		"other archive":  {with(func(m map[string]string) { m[at+".zip"] = other }), []string{at + ".zip"}},
		"no archive":     {with(func(m map[string]string) { m[at+".zip"] = "PK" }), []string{at + ".zip"}},
		"archive alone":  {map[string]string{at + ".zip": text, at + ".ziphash": sum}, nil},
		"unpacked alone": {with(func(m map[string]string) { delete(m, at+".zip"); delete(m, at+".ziphash") }), []string{unpacked}},
	} {
		dir := t.TempDir()
		tree(t, dir, x.files)
		if got := check(t, "go", dir); !slices.Equal(got.Bad, x.bad) {
			t.Errorf("%s: %q, want %q", name, got.Bad, x.bad)
		}
	}
	// The hash may be in what lies below.
	below, dir := t.TempDir(), t.TempDir()
	tree(t, below, map[string]string{at + ".zip": text, at + ".ziphash": sum})
	tree(t, dir, with(func(m map[string]string) { delete(m, at+".zip"); delete(m, at+".ziphash") }))
	if got := check(t, "go", dir, filepath.Join(below, "gone"), below); got.Files != 1 || len(got.Bad) != 0 {
		t.Errorf("with the hash below: %+v", got)
	}
	// A hash that says something else than the one below is not kept: what lies there was compared with that one.
	twice := t.TempDir()
	tree(t, twice, map[string]string{at + ".ziphash": "h1:other"})
	if got := check(t, "go", twice, below); !slices.Equal(got.Bad, []string{at + ".ziphash"}) {
		t.Errorf("another hash: %q", got.Bad)
	}
	// A link in it, and what hides a hash, are none of go's.
	if err := os.Symlink("a.go", filepath.Join(dir, unpacked, "a", "l.go")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(at)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(dir, at+".ziphash"), unix.S_IFCHR, 0); err != nil {
		t.Fatal(err)
	}
	if got := check(t, "go", dir, below); !slices.Equal(got.Bad, []string{at + ".ziphash", unpacked}) {
		t.Errorf("with a link, and without the hash: %q", got.Bad)
	}
}

// Nothing of a layer, or below it, is followed out of it.
func TestCheckFollowsNothing(t *testing.T) {
	dir, below, outside := t.TempDir(), t.TempDir(), t.TempDir()
	text, sum := modZip(t, "m.test/x@v1.0.0", map[string]string{"go.mod": "module m.test/x"})
	tree(t, outside, map[string]string{"v1.0.0.ziphash": sum})
	tree(t, dir, map[string]string{"cache/download/m.test/x/@v/v1.0.0.zip": text, "m.test/x@v1.0.0/go.mod": "module m.test/x"})
	if err := os.MkdirAll(below+"/cache/download/m.test/x", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, below+"/cache/download/m.test/x/@v"); err != nil {
		t.Fatal(err)
	}
	if got := check(t, "go", dir, below); len(got.Bad) != 2 {
		t.Errorf("a hash outside was believed: %+v", got)
	}
}

// FuzzModuleZip: an archive costs no more than its bound, whatever it says of itself.
func FuzzModuleZip(f *testing.F) {
	text, _ := modZip(f, "m.test/x@v1.0.0", map[string]string{"go.mod": "module m.test/x", "a.go": strings.Repeat("package a\n", 1000)})
	f.Add([]byte(text))
	f.Add([]byte("PK\x05\x06" + strings.Repeat("\x00", 18)))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		tree(t, dir, map[string]string{"cache/download/m.test/x/@v/v1.0.0.zip": string(b), "cache/download/m.test/x/@v/v1.0.0.ziphash": "h1:x"})
		boundtest.Allocates(t, len(b), func() {
			if got := check(t, "go", dir); len(got.Bad) != 1 {
				t.Errorf("%+v", got)
			}
		})
	})
}

func TestDirectoryOfAnArchiveIsBounded(t *testing.T) {
	text, _ := modZip(t, "m.test/x@v1.0.0", map[string]string{"go.mod": "module m.test/x"})
	if err := boundZip(strings.NewReader(text), int64(len(text))); err != nil {
		t.Error(err)
	}
	b := []byte(text)
	at := bytes.LastIndex(b, []byte("PK\x05\x06"))
	for _, n := range []uint32{17 << 20, 1<<32 - 1} { // the last is that of an archive with 64 bits
		binary.LittleEndian.PutUint32(b[at+12:], n)
		if err := boundZip(bytes.NewReader(b), int64(len(b))); err == nil {
			t.Errorf("a directory of %d bytes is read", n)
		}
	}
	copy(b, text)
	for _, field := range []int{10, 12, 16} { // count, size and place of the directory
		c := bytes.Clone(b)
		binary.LittleEndian.PutUint16(c[at+field:], 1<<16-1)
		if err := boundZip(bytes.NewReader(c), int64(len(c))); err == nil {
			t.Errorf("a directory that is elsewhere is read: field %d", field)
		}
	}
	if err := boundZip(strings.NewReader("PK"), 2); err == nil {
		t.Error("what is no archive is read")
	}
}
