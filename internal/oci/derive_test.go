package oci

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// listed is what is in a directory, as "path mode size mtime content or target".
func listed(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		text := ""
		switch st.Mode().Type() {
		case 0:
			b, rerr := os.ReadFile(p)
			if text = string(b); !os.IsPermission(rerr) {
				err = rerr
			}
		case fs.ModeSymlink:
			text, err = os.Readlink(p)
		}
		out = append(out, fmt.Sprintf("%s %v %d %s", strings.TrimPrefix(p, dir+"/"), st.Mode(), st.ModTime().Unix(), text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func entry(name, text string, mode int64) *tar.Header {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: mode, ModTime: time.Unix(1000, 0)}
	switch {
	case strings.HasSuffix(name, "/"):
		h.Typeflag = tar.TypeDir
	case strings.HasPrefix(text, "-> "):
		h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, text[3:], 0
	case strings.HasPrefix(text, "== "):
		h.Typeflag, h.Linkname, h.Size = tar.TypeLink, text[3:], 0
	}
	return h
}

// layerOf writes names and contents by turns; a content "-> x" is a symlink, "== x" a hard link.
func layerOf(names ...string) func(*tar.Writer) error {
	return func(w *tar.Writer) error {
		for i := 0; i < len(names); i += 2 {
			mode := int64(0o640)
			if strings.HasSuffix(names[i], "/") {
				mode = 0o750
			}
			h := entry(names[i], names[i+1], mode)
			if err := w.WriteHeader(h); err != nil {
				return err
			}
			if h.Typeflag == tar.TypeReg {
				if _, err := w.Write([]byte(names[i+1])); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// An image that is made of another one shares its files, and changes nothing of it.
func TestDeriveKeepsItsBase(t *testing.T) {
	s, err := OpenStore(t.TempDir(), false, "test")
	if err != nil {
		t.Fatal(err)
	}
	base, err := s.Derive(t.Context(), nil, Image{ID: cell.Sum([]byte("1"))}, layerOf("d/", "", "d/kept", "kept", "d/changed", "old", "d/gone", "x", "d/twice", "== d/kept", "l", "-> d", "sub/deep/", "", "sub/deep/f", "f", "closed/", ""))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(base.Root, "closed"), 0o500); err != nil {
		t.Fatal(err)
	}
	was := listed(t, base.Root)
	calls := 0
	derive := func() Image {
		t.Helper()
		img, err := s.Derive(t.Context(), &base, Image{ID: cell.Sum([]byte("2")), Made: &Made{From: base.ID, Step: "RUN x"}, Env: []string{"A=1"}}, func(w *tar.Writer) error {
			calls++
			return layerOf("d/changed", "new", "d/.wh.gone", "", "l/through", "t", "sub/deep/", "", "new", "n", "closed/in", "i")(w)
		})
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	img := derive()
	if again := derive(); calls != 1 || again.ID != img.ID || again.Made.Step != "RUN x" || again.Layers != 2 {
		t.Errorf("made %d times: %+v", calls, again)
	}
	if is := listed(t, base.Root); !slices.Equal(is, was) {
		t.Errorf("the base was\n%q\nand is\n%q", was, is)
	}
	want := map[string]string{"d/kept": "kept", "d/twice": "kept", "d/changed": "new", "d/through": "t", "sub/deep/f": "f", "new": "n", "closed/in": "i"}
	for name, text := range want {
		if b, err := os.ReadFile(filepath.Join(img.Root, name)); string(b) != text || err != nil {
			t.Errorf("%s is %q, %v", name, b, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(img.Root, "d/gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was hidden is there: %v", err)
	}
	mode := func(name string) fs.FileMode {
		st, err := os.Lstat(filepath.Join(img.Root, name))
		if err != nil {
			t.Fatal(err)
		}
		return st.Mode().Perm()
	}
	if mode("d") != 0o750 || mode("closed") != 0o500 {
		t.Errorf("folders have the modes %o and %o", mode("d"), mode("closed"))
	}
	a, _ := os.Stat(filepath.Join(base.Root, "d/kept"))
	b, _ := os.Stat(filepath.Join(img.Root, "d/kept"))
	if !os.SameFile(a, b) {
		t.Error("a file that both have is there twice")
	}
}

// What fails, or lies, leaves nothing.
func TestDeriveFails(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenStore(dir, false, "test")
	if err != nil {
		t.Fatal(err)
	}
	base, err := s.Derive(t.Context(), nil, Image{ID: cell.Sum([]byte("1"))}, layerOf("d/", "", "d/f", "x"))
	if err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for name, c := range map[string]struct {
		ctx   context.Context
		write func(*tar.Writer) error
		want  string
	}{
		"the writer fails":    {t.Context(), func(*tar.Writer) error { return errors.New("no more") }, "no more"},
		"a name leads out":    {t.Context(), layerOf("../x", "x"), "leads out of the image"},
		"through its link":    {t.Context(), layerOf("l", "-> /", "l/x", "x"), "goes through a symlink of the same layer"},
		"a size that lies":    {t.Context(), func(w *tar.Writer) error { return w.WriteHeader(entry("f", "123", 0o600)) }, "missed writing 3 bytes"},
		"it is given up":      {stopped, layerOf("x", "x"), "context canceled"},
		"a link to elsewhere": {t.Context(), layerOf("x", "== ../../../etc/passwd"), "leads out of the image"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := s.Derive(c.ctx, &base, Image{ID: cell.Sum([]byte(name))}, c.write); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if left, _ := os.ReadDir(dir); len(left) != 1 {
				t.Errorf("there is %v", left)
			}
		})
	}
}

// The upper directory of an overlay is a layer: what was added, changed and hidden.
func TestWriteUpper(t *testing.T) {
	s, err := OpenStore(t.TempDir(), false, "test")
	if err != nil {
		t.Fatal(err)
	}
	base, err := s.Derive(t.Context(), nil, Image{ID: cell.Sum([]byte("1"))}, layerOf("usr/", "", "usr/a", "a", "usr/gone", "x", "usr/all/", "", "usr/all/x", "x", "entry", "old", "removed", "x", "same", "s", "mine", "x", "lib", "-> usr/lib", "moved", "-> usr"))
	if err != nil {
		t.Fatal(err)
	}
	upper, top := t.TempDir(), t.TempDir()
	write := func(dir, name, text string) {
		t.Helper()
		p := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write(upper, "a", "new")
	write(upper, "new/b", "b")
	write(upper, "all/y", "y")
	write(upper, "skipped/z", "z")
	write(upper, "unreadable", "u")
	for _, err := range []error{
		os.Link(filepath.Join(upper, "a"), filepath.Join(upper, "twice")), os.Symlink("/etc/passwd", filepath.Join(upper, "link")), os.Chmod(filepath.Join(upper, "unreadable"), 0),
		unix.Mknod(filepath.Join(upper, "gone"), unix.S_IFCHR, 0), unix.Mkfifo(filepath.Join(upper, "pipe"), 0o600), unix.Setxattr(filepath.Join(upper, "all"), "user.overlay.opaque", []byte("y"), 0),
		unix.Setxattr(filepath.Join(upper, "a"), "user.note", []byte("a\x00b"), 0), unix.Setxattr(filepath.Join(upper, "a"), "user.with=sign", []byte("x"), 0),
	} {
		if errors.Is(err, unix.ENOTSUP) {
			t.Skip("needs extended attributes")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := CopyTop(base.Root, top, func(name string) bool { return name == "mine" }); err != nil {
		t.Fatal(err)
	}
	if got := listed(t, top); len(got) != 5 {
		t.Errorf("a cell begins with %q", got)
	}
	write(top, "entry", "new")
	write(top, "data/f", "f")
	write(top, "usr/mountpoint", "") // skipped
	for _, err := range []error{os.Remove(filepath.Join(top, "removed")), os.Remove(filepath.Join(top, "moved")), os.Symlink("data", filepath.Join(top, "moved")), os.Chmod(upper, 0o1777|fs.ModeSticky)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	skip := func(name string) bool { return name == "usr/skipped" || name == "mine" }
	img, err := s.Derive(t.Context(), &base, Image{ID: cell.Sum([]byte("2"))}, func(w *tar.Writer) error {
		return errors.Join(WriteUpper(t.Context(), w, "usr", upper, skip), WriteTop(t.Context(), w, base.Root, top, skip))
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, line := range listed(t, img.Root) {
		f := strings.SplitN(line, " ", 4)
		got = append(got, f[0]+" "+f[1]+" "+f[3])
	}
	want := []string{"data drwxr-xr-x ", "data/f -rw------- f", "entry -rw-r----- new", "lib Lrwxrwxrwx usr/lib", "mine -rw-r----- x", "moved Lrwxrwxrwx data", "same -rw-r----- s", "usr dtrwxrwxrwx ", "usr/a -rw------- new", "usr/all drwxr-xr-x ", "usr/all/y -rw------- y",
		"usr/link Lrwxrwxrwx /etc/passwd", "usr/new drwxr-xr-x ", "usr/new/b -rw------- b", "usr/twice -rw------- new", "usr/unreadable -r-------- u"}
	if os.Geteuid() != 0 { // it can't be read here either
		got = slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "usr/unreadable") })
		want = want[:len(want)-1]
	}
	if !slices.Equal(got, want) {
		t.Errorf("there is\n%q\nwant\n%q", got, want)
	}
	var value [8]byte
	if n, err := unix.Getxattr(filepath.Join(img.Root, "usr/a"), "user.note", value[:]); err != nil || string(value[:n]) != "a\x00b" {
		t.Errorf("its attribute is %q, %v", value[:max(n, 0)], err)
	}
	if err := os.Chmod(upper, 0); err != nil { // by a RUN; the daemon reads it all the same
		t.Fatal(err)
	}
	img, err = s.Derive(t.Context(), &base, Image{ID: cell.Sum([]byte("3"))}, func(w *tar.Writer) error { return WriteUpper(t.Context(), w, "usr", upper, skip) })
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(img.Root, "usr")); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("a folder that nothing may read: %v, %v", st.Mode(), err)
	}
	write(upper, ".wh.x", "")
	err = WriteUpper(t.Context(), tar.NewWriter(new(strings.Builder)), "usr", upper, skip)
	if cell.KindOf(err) != cell.Unsupported {
		t.Errorf("a file that would hide another: %v", err)
	}
}
