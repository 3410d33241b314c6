package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/workspace"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// linked makes a directory with two files of several names, of a text and executable or
// not, one that has only that text, and some that are no longer one file in after.
func linked(t *testing.T, text string, mode os.FileMode, parted bool) (string, workspace.Side) {
	t.Helper()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(at("d"), 0o755))
	must(os.WriteFile(at("a"), []byte(text), 0o644))
	must(os.Link(at("a"), at("b")))
	must(os.Link(at("a"), at("d/c")))
	must(os.WriteFile(at("alone"), []byte(text), 0o644))
	must(os.WriteFile(at("x"), []byte("#!"), 0o644))
	must(os.Chmod(at("x"), mode))
	must(os.Link(at("x"), at("y")))
	must(os.WriteFile(at("left"), []byte(text), 0o644))
	if parted {
		must(os.WriteFile(at("right"), []byte("right"), 0o644))
	} else {
		must(os.Link(at("left"), at("right")))
	}
	tree, err := workspace.Walk(context.Background(), dir, wt.NewObjects())
	must(err)
	return dir, workspace.Side{Tree: tree, Contents: onDisk(dir)}
}

// oneFile tells which of the names are the same file.
func oneFile(t *testing.T, dir string) string {
	t.Helper()
	first := map[uint64]string{}
	out := ""
	for _, name := range []string{"a", "b", "d/c", "alone", "x", "y", "left", "right"} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil {
			t.Fatal(err)
		}
		if first[st.Ino] == "" {
			first[st.Ino] = name
		}
		out += fmt.Sprintf("%s=%s ", name, first[st.Ino])
	}
	return out
}

// Names of one file in the result and in the source stay names of one file, when it is
// written, made executable, and taken back; what the cell parted is parted.
func TestX26LinkedFilesStayLinked(t *testing.T) {
	t.Parallel()
	source, _ := linked(t, "old", 0o644, false)
	_, before := linked(t, "old", 0o644, false)
	_, after := linked(t, "new", 0o755, true)
	request := func(base, after workspace.Side) Request {
		return Request{Source: source, Base: base.Tree, After: after, Backup: filepath.Join(t.TempDir(), "backup")}
	}
	const together, parted = "a=a b=a d/c=a alone=alone x=x y=x left=left right=left ", "a=a b=a d/c=a alone=alone x=x y=x left=left right=right "
	if got := oneFile(t, source); got != together {
		t.Fatal(got)
	}
	was := snapshotOf(t, source)
	for n := 1; ; n++ { // whatever fails, they are as they were
		req := request(before, after)
		steps := 0
		req.hook = func(step, path string) error {
			if steps++; steps == n {
				return errors.New("broken")
			}
			return nil
		}
		if _, err := doOne(context.Background(), req); err == nil || steps < n {
			break
		}
		if _, err := os.Stat(req.Backup); err == nil { // it failed after it was committed, and is finished
			if _, err := Recover(context.Background(), req.Backup); err != nil {
				t.Fatal(err)
			}
			break
		}
		unchanged(t, source, was)
		if got := oneFile(t, source); got != together {
			t.Fatalf("after a failure at step %d: %s", n, got)
		}
	}
	check := func(when, want string, side workspace.Side) {
		t.Helper()
		if got := oneFile(t, source); got != want {
			t.Errorf("%s: %s", when, got)
		}
		if got, want := wt.ContentDigest(t, source), side.Tree.ContentDigest(); got != want {
			t.Errorf("%s: digest %s, want %s", when, got.Short(), want.Short())
		}
	}
	check("applied", parted, after)
	mustApply(t, request(after, before))
	check("taken back", parted, before)
}
