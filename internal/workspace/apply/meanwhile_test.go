package apply

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// Interruption brings everything back.
func TestF23ApplyInterrupted(t *testing.T) {
	base, after := everything()
	dir := sourceOf(t, base)
	before := snapshotOf(t, dir)
	req := applyRequest(t, dir, base, after)
	ctx, cancel := context.WithCancelCause(context.Background())
	req.hook = func(step, path string) error {
		if step == "put" {
			cancel(errors.New("somebody pressed Ctrl-C"))
		}
		return nil
	}
	_, err := doOne(ctx, req)
	if cell.KindOf(err) != cell.Interrupted || err.Error() != "cannot apply: somebody pressed Ctrl-C" {
		t.Errorf("err = %v", err)
	}
	leftNothing(t, req)
	unchanged(t, dir, before)
}

// Writes during an apply are never lost: the apply finds them and is undone.
func TestApplyFindsFilesSwappedMeanwhile(t *testing.T) {
	base := wt.Model{"f": wt.Plain("one"), "g": wt.Plain("gone"), "m": wt.Plain("mode"), "d/x": wt.Plain("x")}
	after := wt.Model{"f": wt.Plain("two"), "m": wt.Script("mode"), "n": wt.Plain("new"), "d": wt.Plain("file")}
	mine := func(p string) func(dir string) {
		return func(dir string) {
			st, _ := os.Lstat(filepath.Join(dir, p))
			os.WriteFile(filepath.Join(dir, p), []byte("mine"), 0o644)
			if st != nil { // the clock may be coarse, or set back
				os.Chtimes(filepath.Join(dir, p), st.ModTime(), st.ModTime())
			}
		}
	}
	for name, c := range map[string]struct {
		step, path string // when
		swap       func(dir string)
		want       wt.Model // of the source afterwards
	}{
		"modified, early":  {"recheck", "f", mine("f"), base.With("f", wt.Plain("mine"))},
		"modified, late":   {"put", "f", mine("f"), base.With("f", wt.Plain("mine"))},
		"deleted":          {"put", "f", func(dir string) { os.Remove(filepath.Join(dir, "f")) }, nil},
		"to be removed":    {"take", "g", mine("g"), base.With("g", wt.Plain("mine"))},
		"to be executable": {"chmod", "m", mine("m"), base.With("m", wt.Plain("mine"))},
		"appeared":         {"put", "n", mine("n"), base.With("n", wt.Plain("mine"))},
		"folder not empty": {"rmdir", "d", mine("d/new"), base.With("d/new", wt.Plain("mine"))},
		"symlink in place": {"put", "f", func(dir string) {
			os.Remove(filepath.Join(dir, "f"))
			os.Symlink("/etc/passwd", filepath.Join(dir, "f"))
		}, base.With("f", wt.Link("/etc/passwd"))},
		"folder in place":   {"put", "n", func(dir string) { os.Mkdir(filepath.Join(dir, "n"), 0o755) }, base.With("n", wt.Thing{Folder: true})},
		"removed beforhand": {"recheck", "g", func(dir string) { os.Remove(filepath.Join(dir, "g")) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := sourceOf(t, base)
			req := applyRequest(t, dir, base, after)
			done := false
			req.hook = func(step, path string) error {
				if step == c.step && path == c.path && !done {
					done = true
					c.swap(dir)
				}
				return nil
			}
			_, err := doOne(context.Background(), req)
			if cell.KindOf(err) != cell.Conflict || !done {
				t.Fatalf("err = %v", err)
			}
			if !strings.Contains(err.Error(), " while the changes were being applied") {
				t.Errorf("err = %v", err)
			}
			leftNothing(t, req)
			if c.want != nil && wt.ContentDigest(t, dir) != c.want.Side(t, nil).Tree.ContentDigest() {
				t.Errorf("%v", snapshotOf(t, dir))
			}
		})
	}
}

// Two at once: one works, the other gets a conflict; nor does a recovery
// touch what is at work.
func TestApplyExcludesApply(t *testing.T) {
	base, after := everything()
	dir := sourceOf(t, base)
	req := applyRequest(t, dir, base, after)
	other := applyRequest(t, dir, base, after)
	tried := false
	req.hook = func(step, path string) error {
		if step == "put" && !tried {
			tried = true
			if _, err := doOne(context.Background(), other); cell.KindOf(err) != cell.Conflict || !strings.Contains(err.Error(), "another pando") {
				t.Errorf("second: %v", err)
			}
			if _, err := Recover(context.Background(), req.Backup); cell.KindOf(err) != cell.Conflict {
				t.Errorf("recovery: %v", err)
			}
		}
		return nil
	}
	if _, err := doOne(context.Background(), req); err != nil || !tried {
		t.Fatal(err)
	}
	leftNothing(t, req)
}

// After a crash a person may have gone on working: that is kept, and named,
// and the original is not thrown away.
func TestRecoverKeepsWhatChangedSince(t *testing.T) {
	base := wt.Model{"f": wt.Plain("old"), "g": wt.Plain("g"), "m": wt.Plain("m"), "d/x": wt.Plain("x")}
	after := wt.Model{"f": wt.Plain("new"), "n": wt.Plain("new"), "m": wt.Script("m")}
	write := func(p, s string) func(dir string) error {
		return func(dir string) error {
			os.MkdirAll(filepath.Dir(filepath.Join(dir, p)), 0o755)
			return os.WriteFile(filepath.Join(dir, p), []byte(s), 0o644)
		}
	}
	for name, c := range map[string]struct {
		change func(dir string) error
		left   string // "" if all can be undone
		kept   string // what the staging folder still has
		path   string
		want   wt.Thing
	}{
		"new content":   {write("f", "mine"), "f was changed since", "old", "f", wt.Plain("mine")},
		"added content": {write("n", "mine"), "n was changed since", "", "n", wt.Plain("mine")},
		"another file": {func(dir string) error {
			write("tmp", "mine")(dir)
			return os.Rename(filepath.Join(dir, "tmp"), filepath.Join(dir, "f"))
		}, "f was replaced since", "old", "f", wt.Plain("mine")},
		"made anew":     {write("g", "mine"), "g was made anew since", "g", "g", wt.Plain("mine")},
		"folder anew":   {write("d/x", "mine"), "d/x was made anew since", "x", "d/x", wt.Plain("mine")},
		"removed":       {func(dir string) error { return os.Remove(filepath.Join(dir, "f")) }, "", "", "f", wt.Plain("old")},
		"another mode":  {func(dir string) error { return os.Chmod(filepath.Join(dir, "m"), 0o700) }, "", "", "m", wt.Thing{Text: "m", Mode: 0o700}},
		"something new": {write("mine", "mine"), "", "", "mine", wt.Plain("mine")},
	} {
		t.Run(name, func(t *testing.T) {
			dir := sourceOf(t, base)
			req := applyRequest(t, dir, base, after)
			n := 0
			req.hook = func(step, path string) error {
				if step == "journal" {
					if n++; n == 3 {
						panic(killed{})
					}
				}
				return nil
			}
			if !survives(func() { doOne(context.Background(), req) }) {
				t.Fatal("not killed")
			}
			if err := c.change(dir); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				_, err := Recover(context.Background(), req.Backup)
				if c.left == "" && err != nil {
					t.Fatal(err)
				}
				if c.left != "" && (cell.KindOf(err) != cell.Conflict || !strings.Contains(err.Error(), c.left)) {
					t.Fatalf("err = %v", err)
				}
			}
			got, kept := wt.Read(t, dir), ""
			for p, f := range got {
				if strings.HasPrefix(p, stagePrefix) && f.Text != "" && f.Text != "new" {
					kept = f.Text
				}
			}
			if kept != c.kept {
				t.Errorf("the staging folder has %q", kept)
			}
			if got[c.path].Text != c.want.Text || (c.want.Mode != 0 && got[c.path].Mode != c.want.Mode) {
				t.Errorf("%s is %+v", c.path, got[c.path])
			}
			for _, p := range []string{"f", "g", "m", "d/x"} {
				if p != c.path && got[p].Text != base[p].Text {
					t.Errorf("%s is %+v", p, got[p])
				}
			}
			if c.left == "" {
				return
			}
			other := applyRequest(t, sourceOf(t, base), base, after)
			other.Backup = req.Backup
			if _, err := doOne(context.Background(), other); cell.KindOf(err) != cell.Conflict || !strings.Contains(err.Error(), "interrupted") {
				t.Errorf("apply over an open journal: %v", err)
			}
			// Another folder in the source's place is not touched.
			if err := os.Rename(dir, dir+"x"); err != nil {
				t.Fatal(err)
			}
			os.Mkdir(dir, 0o755)
			if _, err := Recover(context.Background(), req.Backup); cell.KindOf(err) != cell.Conflict || !strings.Contains(err.Error(), "another folder") {
				t.Errorf("err = %v", err)
			}
		})
	}
}

// A lock ends with its owner, though a child that was just forked still has
// the descriptor.
func TestApplyLockEnds(t *testing.T) {
	dir := t.TempDir()
	b, err := openBeneath(dir)
	if err != nil || b.lock() != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(b.fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b.close()
	c, err := openBeneath(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if err := c.lock(); err != nil {
		t.Error(err)
	}
}

// NFS and others can neither exchange two files nor promise that a name is
// free: it takes more steps, and still nothing is lost at any of them.
func TestApplyWithoutRenameFlags(t *testing.T) {
	defer func() { renameat2 = unix.Renameat2 }()
	renameat2 = func(fromDir int, from string, toDir int, to string, flags uint) error {
		if flags != 0 {
			return unix.EINVAL
		}
		return unix.Renameat2(fromDir, from, toDir, to, 0)
	}
	base, after := everything()
	for at := 0; ; at += 2 {
		dir := sourceOf(t, base)
		req := applyRequest(t, dir, base, after)
		before := snapshotOf(t, dir)
		n := 0
		req.hook = func(step, path string) error {
			if n++; n-1 == at && step != "clean" {
				return unix.EIO
			}
			return nil
		}
		_, err := doOne(context.Background(), req)
		if err == nil {
			if got := wt.ContentDigest(t, dir); got != req.After.Tree.ContentDigest() || at < 40 {
				t.Errorf("after %d steps: %v", at, wt.Read(t, dir))
			}
			return
		}
		unchanged(t, dir, before)
		n = 0
		req.hook = killAt(&n, at)
		if survives(func() { doOne(context.Background(), req) }) {
			if _, err := Recover(context.Background(), req.Backup); err != nil {
				t.Fatal(err)
			}
			os.Remove(req.Backup)
		}
		leftNothing(t, req)
		unchanged(t, dir, before)
		if t.Failed() {
			t.Fatalf("step %d", at)
		}
	}
}
