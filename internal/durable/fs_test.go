package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/durable/durabletest"
)

func TestDiskKeepsContract(t *testing.T) {
	durabletest.Contract(t, func(t *testing.T) durable.FS { return durable.Disk(t.TempDir()) })
}

func TestIsPartial(t *testing.T) {
	for _, name := range []string{"a.0123abcd.partial", "x/y.z.00000000.partial"} {
		if !durable.IsPartial(name) {
			t.Errorf("%s is not seen as partial", name)
		}
	}
	for _, name := range []string{"a", "a.partial", ".0123abcd.partial", "a.0123abcx.partial", "a.0123abcd", "a-0123abcd.partial"} {
		if durable.IsPartial(name) {
			t.Errorf("%s is seen as partial", name)
		}
	}
}

func TestWriteFileTrace(t *testing.T) {
	d := durabletest.New()
	must(t, durable.WriteFile(d, "a", []byte("1"), 0o600), durable.MakeDirs(d, "x/y", 0o700), durable.WriteFile(d, "x/y/b", []byte("2"), 0o644))
	durabletest.CheckTrace(t, "writefile", d.Trace(0))
}

// Whenever the power goes, the file is the old or the new one, and it is the
// new one once WriteFile has returned.
func TestWriteFileSurvivesPowerLoss(t *testing.T) {
	before, after := strings.Repeat("old", 1000), strings.Repeat("new", 2000)
	d := durabletest.New()
	d.Put("dir/a", []byte(before))
	check := func(c *durabletest.Disk, want ...string) {
		t.Helper()
		if got := string(c.Get("dir/a")); !slices.Contains(want, got) {
			t.Fatalf("after %d calls the file has %d bytes of neither version", d.Calls(), len(got))
		}
		must(t, durable.RemovePartial(c, "dir"))
		if files := c.Files(); len(files) != 1 {
			t.Errorf("files %v", files)
		}
	}
	d.After = func(durabletest.Call) {
		check(d.Crash(), before, after)
		for seed := range uint64(50) {
			check(d.CrashSome(seed), before, after)
		}
	}
	must(t, durable.WriteFile(d, "dir/a", []byte(after), 0o600))
	check(d.Crash(), after)
}

func TestF23WriteFileOnFullDisk(t *testing.T) {
	d := durabletest.New()
	d.Put("a", []byte("old"))
	d.Limit(100)
	err := durable.WriteFile(d, "a", make([]byte, 200), 0o600)
	if cell.KindOf(err) != cell.Unavailable || cell.HintOf(err) == "" || err.Error() != "cannot write a: no space left on device" {
		t.Errorf("%s: %v (hint %q)", cell.KindOf(err), err, cell.HintOf(err))
	}
	if f := d.Files(); len(f) != 1 || string(d.Get("a")) != "old" {
		t.Errorf("left %v", f)
	}
}

// Whatever call fails, the error is reported, and the file is whole.
func TestWriteFileReportsEveryFailure(t *testing.T) {
	for n := 1; ; n++ {
		d := durabletest.New()
		d.Put("a", []byte("old"))
		failed := ""
		d.Before = func(c durabletest.Call) error {
			if c.N == n && c.Op != "close" {
				failed = c.Op
				return syscall.EIO
			}
			return nil
		}
		err := durable.WriteFile(d, "a", []byte("new"), 0o600)
		if d.Calls() < n {
			break
		}
		if failed == "" {
			continue
		}
		if !errors.Is(err, syscall.EIO) || cell.KindOf(err) != cell.Unavailable {
			t.Errorf("failed %s: error %v", failed, err)
		}
		if got := string(d.Get("a")); got != "old" && !(failed == "syncdir" && got == "new") {
			t.Errorf("failed %s: file is %q", failed, got)
		}
		if f := d.Files(); len(f) != 1 {
			t.Errorf("failed %s: left %v", failed, f)
		}
	}
}

func TestMakeDirsSurvivesPowerLoss(t *testing.T) {
	d := durabletest.New()
	must(t, d.Mkdir("x", 0o700)) // by a process that ended before its sync
	must(t, durable.MakeDirs(d, "x/y/z", 0o700))
	if _, err := d.Crash().List("x/y/z"); err != nil {
		t.Error(err)
	}
}

func TestReadFileOfNothing(t *testing.T) {
	_, err := durable.ReadFile(durable.Disk(t.TempDir()), "a")
	if cell.KindOf(err) != cell.NotFound || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if err.Error() != "cannot read a: no such file or directory" {
		t.Errorf("text %q", err)
	}
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestX34NothingButFiles: what took the place of a file is refused by name. Opening
// a FIFO does not block, and a symlink is not followed.
func TestX34NothingButFiles(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("1"), 0o600), syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
		os.Symlink("file", filepath.Join(dir, "symlink")), os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	d := durable.Disk(dir)
	if _, err := durable.ReadFile(d, "file"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"fifo", "symlink", "folder"} {
		if _, err := durable.ReadFile(d, name); err == nil || !strings.Contains(err.Error(), name+": it is no regular file") {
			t.Errorf("%s is read: %v", name, err)
		}
		if _, err := d.OpenAppend(name); err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("%s is written to: %v", name, err)
		}
	}
}
