package upload

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/secret"
)

const key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZWQyNTUxOQAAACBq0mGd3a5u\n-----END OPENSSH PRIVATE KEY-----\n"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, dir, name, text string) {
	t.Helper()
	at := filepath.Join(dir, name)
	must(t, os.MkdirAll(filepath.Dir(at), 0o755))
	must(t, os.WriteFile(at, []byte(text), 0o644))
}

// what lists what is in a directory.
func what(t testing.TB, dir string) (list []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, at); rel != "." {
			list = append(list, filepath.ToSlash(rel))
		}
		return err
	}))
	return list
}

// What an import leaves out stays, under all its names, and everything else comes to be
// as it was.
func TestX21SecretsStay(t *testing.T) {
	t.Parallel()
	src, dst := t.TempDir(), t.TempDir()
	link := func(from, to string) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(src, to)), 0o755))
		must(t, os.Link(filepath.Join(src, from), filepath.Join(src, to)))
	}
	put(t, src, "a/file", "text")
	put(t, src, "run.sh", "#!")
	must(t, os.Chmod(filepath.Join(src, "run.sh"), 0o755))
	must(t, os.Symlink("/etc/passwd", filepath.Join(src, "out")))
	must(t, os.MkdirAll(filepath.Join(src, "empty"), 0o755))
	link("a/file", "b/twin")
	put(t, src, ".env", "PASSWORD=hunter2hunter2") // by its name
	link(".env", "a/notes")
	put(t, src, "settings.ini", key) // by its content
	link("settings.ini", "z/picture")
	put(t, src, "large", strings.Repeat("line\n", maxScrub/4)+key) // and of one that is not read at once
	put(t, src, ".ssh/config", "Host a")                           // in a folder
	link(".ssh/config", "z/config")
	put(t, src, ".npmrc", "//registry/:_authToken=abcdefgh\nsave-exact=true\n") // without a field
	put(t, src, "let/.env", "PASSWORD=letmeinletmein")
	old := time.Unix(1e9, 123456000)
	for _, name := range []string{"a/file", "empty"} {
		must(t, os.Chtimes(filepath.Join(src, name), old, old))
	}
	with, err := secret.NewWith([]string{"let/.env"})
	must(t, err)
	var b bytes.Buffer
	out, err := Pack(context.Background(), Request{Dir: src, With: with}, &b)
	must(t, err)
	for _, s := range []string{"hunter2", "OPENSSH", "Host a", "abcdefgh"} {
		if bytes.Contains(b.Bytes(), []byte(s)) {
			t.Errorf("%q was sent", s)
		}
	}
	var left []string
	for _, l := range out.LeftOut {
		left = append(left, l.Path)
	}
	if want := []string{".env", ".npmrc", ".ssh", "a/notes", "large", "settings.ini", "z/config", "z/picture"}; !slices.Equal(left, want) {
		t.Errorf("left out are %v, want %v", left, want)
	}
	files, n, err := Unpack(context.Background(), dst, &b)
	must(t, err)
	if files != out.Files || n != out.Bytes || files != 5 {
		t.Errorf("%d files of %d bytes are there, %d of %d were sent", files, n, out.Files, out.Bytes)
	}
	if got, want := what(t, dst), []string{".npmrc", "a", "a/file", "b", "b/twin", "empty", "let", "let/.env", "out", "run.sh", "z"}; !slices.Equal(got, want) {
		t.Errorf("there is %v, want %v", got, want)
	}
	stat := func(name string) fs.FileInfo {
		t.Helper()
		st, err := os.Lstat(filepath.Join(dst, name))
		must(t, err)
		return st
	}
	if !os.SameFile(stat("a/file"), stat("b/twin")) {
		t.Error("two names of one file are two files")
	}
	if !stat("a/file").ModTime().Equal(old) || !stat("empty").ModTime().Equal(old) || stat("run.sh").Mode().Perm() != 0o755 {
		t.Errorf("times %v, %v, mode %v", stat("a/file").ModTime(), stat("empty").ModTime(), stat("run.sh").Mode())
	}
	if to, err := os.Readlink(filepath.Join(dst, "out")); to != "/etc/passwd" {
		t.Errorf("the symlink leads to %q, %v", to, err)
	}
	if rc, err := os.ReadFile(filepath.Join(dst, ".npmrc")); !strings.Contains(string(rc), "save-exact=true") {
		t.Errorf("the scrubbed file is %q, %v", rc, err)
	}
}

// A token that comes into a file between the look at it and the sending is not sent whole.
func TestX21SecretThatComesInMeanwhile(t *testing.T) {
	t.Parallel()
	p := &packer{ctx: context.Background(), t: tar.NewWriter(io.Discard)}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: int64(len(key))}
	if err := p.send(h, strings.NewReader(key), secret.NewScanner(1)); cell.KindOf(err) != cell.Conflict {
		t.Errorf("sent: %v", err)
	}
}

// An archive makes nothing but what its names say, in the directory.
func TestX21ArchivesOfStrangers(t *testing.T) {
	t.Parallel()
	type item struct {
		kind       byte
		name, link string
	}
	file := func(name string) item { return item{tar.TypeReg, name, ""} }
	for what, items := range map[string][]item{
		"above":                    {file("../x")},
		"absolute":                 {file("/x")},
		"unclean":                  {file("a/../../x")},
		"through a symlink":        {{tar.TypeSymlink, "a", ".."}, file("a/x")},
		"through an absolute one":  {{tar.TypeSymlink, "a", "/tmp"}, file("a/x")},
		"over a symlink":           {{tar.TypeSymlink, "a", "../x"}, file("a")},
		"a folder over a symlink":  {{tar.TypeSymlink, "a", ".."}, {tar.TypeDir, "a/", ""}},
		"below a file":             {file("a"), file("a/x")},
		"twice":                    {file("a"), file("a")},
		"too deep":                 {file(strings.Repeat("a/", 2048) + "x")},
		"a device":                 {{tar.TypeChar, "a", ""}},
		"a pipe":                   {{tar.TypeFifo, "a", ""}},
		"a link to what is above":  {{tar.TypeLink, "a", "../x"}},
		"a link to nothing":        {{tar.TypeLink, "a", "b"}},
		"a link to a symlink":      {{tar.TypeSymlink, "b", "../x"}, {tar.TypeLink, "a", "b"}},
		"a link through a symlink": {{tar.TypeSymlink, "b", ".."}, {tar.TypeLink, "a", "b/x"}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			put(t, top, "x", "outside")
			dir := filepath.Join(top, "in")
			must(t, os.Mkdir(dir, 0o700))
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, i := range items {
				must(t, w.WriteHeader(&tar.Header{Typeflag: i.kind, Name: i.name, Linkname: i.link, Mode: 0o644}))
			}
			must(t, w.Close())
			if _, _, err := Unpack(context.Background(), dir, &b); cell.KindOf(err) != cell.Invalid {
				t.Errorf("unpacked: %v", err)
			}
			if got, err := os.ReadFile(filepath.Join(top, "x")); string(got) != "outside" {
				t.Errorf("what is outside is %q, %v", got, err)
			}
		})
	}
}

// A file with holes may be of any size, whatever the archive's is.
func TestX21ArchiveWithHoles(t *testing.T) {
	t.Parallel()
	holes := boundtest.SparseArchive(t, "a", 16<<20)
	if _, _, err := Unpack(context.Background(), t.TempDir(), bytes.NewReader(holes)); cell.KindOf(err) != cell.Invalid {
		t.Errorf("unpacked: %v", err)
	}
}

func TestCheckSource(t *testing.T) {
	t.Parallel()
	home := filepath.Join(t.TempDir(), "me")
	for dir, ok := range map[string]bool{
		home: false, filepath.Dir(home): false, "/": false, filepath.Join(home, "proj"): true, home + "2": true, filepath.Join(filepath.Dir(home), "other"): true,
	} {
		if err := CheckSource(dir, home); (err == nil) != ok {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestUnpackSaysWhatBrokeOff(t *testing.T) {
	t.Parallel()
	why := errors.New("the body is too long")
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 4, Mode: 0o644}))
	if _, _, err := Unpack(context.Background(), t.TempDir(), io.MultiReader(&b, iotestErr{why})); !errors.Is(err, why) {
		t.Errorf("it says %v", err)
	}
}

type iotestErr struct{ err error }

func (e iotestErr) Read([]byte) (int, error) { return 0, e.err }

// Whatever the archive is, nothing is made outside the directory.
func FuzzUnpack(f *testing.F) {
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeReg, Name: "a/b", Size: 0}, {Typeflag: tar.TypeDir, Name: "a/"},
		{Typeflag: tar.TypeSymlink, Name: "a", Linkname: ".."}, {Typeflag: tar.TypeLink, Name: "a/b", Linkname: "../x"},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		must(f, w.WriteHeader(&h))
		must(f, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a/x"}))
		must(f, w.Close())
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		top := t.TempDir()
		put(t, top, "x", "outside")
		dir := filepath.Join(top, "in")
		must(t, os.Mkdir(dir, 0o700))
		Unpack(context.Background(), dir, bytes.NewReader(archive))
		list, err := os.ReadDir(top)
		must(t, err)
		if got, err := os.ReadFile(filepath.Join(top, "x")); len(list) != 2 || string(got) != "outside" {
			t.Errorf("outside there is %v, and x is %q, %v", list, got, err)
		}
	})
}
