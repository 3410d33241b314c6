package durabletest

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/durable"
)

// Contract checks what every durable.FS promises; fresh returns an empty one.
func Contract(t *testing.T, fresh func(t *testing.T) durable.FS) {
	t.Run("write, rename, read", func(t *testing.T) {
		d := fresh(t)
		f, err := d.CreateTemp("a", 0o640)
		if err != nil {
			t.Fatal(err)
		}
		if !durable.IsPartial(f.Name()) || !strings.HasPrefix(f.Name(), "a.") {
			t.Errorf("temporary file is called %q", f.Name())
		}
		must(t, write(f, "hello "), f.Sync(), write(f, "world"), f.SyncData())
		must(t, d.Rename(f.Name(), "a"), d.SyncDir("."), write(f, "!"), f.Close())
		wantContent(t, d, "a", "hello world!")
		infos, err := d.List(".")
		if err != nil || len(infos) != 1 || infos[0] != (durable.Info{Name: "a", Size: 12, Perm: 0o640}) {
			t.Errorf("List = %+v, %v", infos, err)
		}
	})
	t.Run("append goes to the end, also after a cut", func(t *testing.T) {
		d := fresh(t)
		must(t, durable.WriteFile(d, "a", []byte("12345"), 0o600))
		f, err := d.OpenAppend("a")
		must(t, err, write(f, "678"), f.Truncate(4), write(f, "x"), f.Truncate(7), write(f, "y"), f.Close())
		wantContent(t, d, "a", "1234x\x00\x00y")
	})
	t.Run("rename replaces", func(t *testing.T) {
		d := fresh(t)
		must(t, durable.WriteFile(d, "a", []byte("old"), 0o600), durable.WriteFile(d, "b", []byte("new"), 0o600))
		must(t, d.Rename("b", "a"))
		wantContent(t, d, "a", "new")
		if _, err := d.Open("b"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Open of what was renamed: %v", err)
		}
	})
	t.Run("read at", func(t *testing.T) {
		d := fresh(t)
		must(t, durable.WriteFile(d, "a", []byte("12345"), 0o604))
		r, err := d.Open("a")
		must(t, err)
		defer r.Close()
		b := make([]byte, 4)
		if n, err := r.ReadAt(b, 3); n != 2 || err == nil || string(b[:n]) != "45" {
			t.Errorf("ReadAt past the end = %d, %v", n, err)
		}
		if i, err := r.Info(); err != nil || i != (durable.Info{Name: "a", Size: 5, Perm: 0o604}) {
			t.Errorf("Info = %+v, %v", i, err)
		}
	})
	t.Run("directories", func(t *testing.T) {
		d := fresh(t)
		must(t, d.Mkdir("x", 0o700), d.Mkdir("x/y", 0o700), d.SyncDir("x"), durable.WriteFile(d, "x/y/a", nil, 0o600))
		if err := d.Mkdir("x", 0o700); !errors.Is(err, fs.ErrExist) {
			t.Errorf("Mkdir twice: %v", err)
		}
		if err := d.Mkdir("q/r", 0o700); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Mkdir without parent: %v", err)
		}
		if err := d.Remove("x/y"); err == nil {
			t.Error("a directory was removed with what is in it")
		}
		must(t, d.Remove("x/y/a"), d.Remove("x/y"))
		if infos, err := d.List("x"); err != nil || len(infos) != 0 {
			t.Errorf("List = %v, %v", infos, err)
		}
	})
	t.Run("names that lead elsewhere", func(t *testing.T) {
		d := fresh(t)
		for _, name := range []string{"../a", "/a", "", "a/../../b"} {
			_, err1 := d.CreateTemp(name, 0o600)
			_, err2 := d.OpenAppend(name)
			_, err3 := d.Open(name)
			_, err4 := d.List(name)
			errs := []error{err1, err2, err3, err4, d.Remove(name), d.Mkdir(name, 0o700), d.SyncDir(name), d.Rename(name, "b"), d.Rename("b", name)}
			if i := slices.Index(errs, nil); i >= 0 {
				t.Errorf("%q was accepted by operation %d", name, i)
			}
		}
	})
	t.Run("what is not there", func(t *testing.T) {
		d := fresh(t)
		_, err1 := d.OpenAppend("a")
		_, err2 := d.Open("a")
		_, err3 := d.List("a")
		_, err4 := d.CreateTemp("a/b", 0o600)
		for i, err := range []error{err1, err2, err3, err4, d.Remove("a"), d.SyncDir("a"), d.Rename("a", "b")} {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("operation %d: %v", i, err)
			}
		}
	})
	t.Run("rename stays in its directory", func(t *testing.T) {
		d := fresh(t)
		must(t, d.Mkdir("x", 0o700), durable.WriteFile(d, "a", nil, 0o600))
		if err := d.Rename("a", "x/a"); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("Rename to another directory: %v", err)
		}
	})
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func write(f durable.File, s string) error {
	_, err := f.Write([]byte(s))
	return err
}

func wantContent(t *testing.T, d durable.FS, name, want string) {
	t.Helper()
	b, err := durable.ReadFile(d, name)
	if err != nil || string(b) != want {
		t.Errorf("%s holds %q, %v; want %q", name, b, err, want)
	}
}
