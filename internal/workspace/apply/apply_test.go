package apply

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace/diff"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// sourceOf makes a directory that holds m.
func sourceOf(t testing.TB, m wt.Model) string {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "src")
	if err != nil {
		t.Fatal(err)
	}
	m.Write(t, dir)
	return dir
}

// applyRequest asks to bring what changed from base to after into dir.
func applyRequest(t testing.TB, dir string, base, after wt.Model) Request {
	t.Helper()
	return Request{Source: dir, Base: base.Side(t, nil).Tree, After: after.Side(t, nil), Backup: filepath.Join(t.TempDir(), "backup")}
}

// doOne is Do for one directory.
func doOne(ctx context.Context, req Request) (Result, error) {
	return Do(ctx, []Part{{Request: req}})
}

func mustApply(t testing.TB, req Request) Result {
	t.Helper()
	res, err := doOne(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	leftNothing(t, req)
	return res
}

// leftNothing checks that an apply left nothing behind.
func leftNothing(t testing.TB, req Request) {
	t.Helper()
	filepath.WalkDir(req.Source, func(p string, d os.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(p), stagePrefix) {
			t.Errorf("left behind: %s", p)
		}
		return nil
	})
	if _, err := os.Stat(req.Backup); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the journal's folder is still there: %v", err)
	}
}

// snapshotOf is everything a user could see of a directory.
func snapshotOf(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for p, f := range wt.Read(t, dir).With(".", wt.Thing{Folder: true}) {
		st, err := os.Lstat(filepath.Join(dir, p))
		if err != nil {
			t.Fatal(err)
		}
		sys := st.Sys().(*syscall.Stat_t)
		out[p] = fmt.Sprintf("%v %d:%d %v %q %q", st.Mode(), sys.Uid, sys.Gid, st.ModTime().UnixNano(), f.Text, f.Link)
	}
	return out
}

// unchanged fails if dir is not what it was.
func unchanged(t testing.TB, dir string, before map[string]string) {
	t.Helper()
	if diff := cmp.Diff(before, snapshotOf(t, dir)); diff != "" {
		t.Errorf("the source changed:\n%s", diff)
	}
}

// Whatever changed: the source becomes what git would see of the result.
func TestApplyBringsAnyChange(t *testing.T) {
	t.Parallel()
	for seed := range 150 {
		r := rand.New(rand.NewSource(int64(seed)))
		base := wt.Random(r)
		after := wt.Mutate(r, base)
		dir := sourceOf(t, base)
		req := applyRequest(t, dir, base, after)
		req.Include = []string{"."}
		before := snapshotOf(t, dir)
		req.DryRun = true
		dry := mustApply(t, req)
		unchanged(t, dir, before)
		req.DryRun = false
		res := mustApply(t, req)
		if diff := cmp.Diff(dry, res, cmp.AllowUnexported(diff.FileChange{})); diff != "" {
			t.Errorf("the dry run said something else:\n%s", diff)
		}
		if got, want := wt.ContentDigest(t, dir), req.After.Tree.ContentDigest(); got != want || len(res.Held) > 0 {
			t.Errorf("digest %s, want %s, held %v", got.Short(), want.Short(), res.Held)
		}
		again := mustApply(t, req)
		if len(again.Applied) != 0 || len(again.Already) != len(res.Applied)+len(res.Already) {
			t.Errorf("the second time: %+v", again)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// everything has each kind of change.
func everything() (base, after wt.Model) {
	base = wt.Model{"keep": wt.Plain("k"), "mod": wt.Plain("old\n"), "mod2": wt.Script("old\n"), "gone/deep/x": wt.Plain("x"), "gone/y": wt.Plain("y"), "mode": wt.Plain("m"),
		"file2dir": wt.Plain("f"), "dir2file/a": wt.Plain("a"), "dir2file/b/c": wt.Plain("c"), "dir2file/e": {Folder: true}, "link": wt.Link("keep"), "file2link": wt.Plain("l"),
		"link2file": wt.Link("keep"), "dir2link/z": wt.Plain("z"), "stay/1": wt.Plain("1"), "stay/2": wt.Plain("2"), "ren": wt.Plain("renamed")}
	after = wt.Model{"keep": wt.Plain("k"), "mod": wt.Plain("new\n"), "mod2": wt.Plain("new\n"), "mode": wt.Script("m"), "file2dir/in/side": wt.Plain("s"), "dir2file": wt.Plain("d"),
		"link": wt.Link("mod"), "file2link": wt.Link("keep"), "link2file": wt.Script("l"), "dir2link": wt.Link("stay"), "stay/1": wt.Plain("1"),
		"new/er/file": wt.Plain("n"), "new/link": wt.Link("er"), "moved/ren": wt.Plain("renamed"), "empty": wt.Plain("")}
	return base, after
}

// What is touched must be what the base recorded. All of it is named, nothing
// is written, and what is not touched may have changed freely.
func TestApplyConflicts(t *testing.T) {
	base := wt.Model{"f": wt.Plain("1"), "d/x": wt.Plain("x"), "l": wt.Link("f"), "free": wt.Plain("1"), "m": wt.Plain("m"), "tofile/a": wt.Plain("a")}
	after := wt.Model{"f": wt.Plain("2"), "d/x": wt.Plain("y"), "l": wt.Link("d"), "free": wt.Plain("1"), "m": wt.Script("m"), "new/n": wt.Plain("n"), "tofile": wt.Plain("t")}
	cases := map[string]struct {
		source wt.Model
		want   []string
	}{
		"content":         {base.With("f", wt.Plain("9")), []string{"f has other content now"}},
		"longer":          {base.With("f", wt.Plain("99")), []string{"f has other content now"}},
		"executable":      {base.With("f", wt.Script("1")), []string{"f has another executable bit now"}},
		"type":            {base.With("f", wt.Link("1")), []string{"f is a symlink now"}},
		"fifo":            {base.With("f", wt.Thing{Fifo: true}), []string{"f is a fifo now"}},
		"target":          {base.With("l", wt.Link("x")), []string{"l points elsewhere now"}},
		"there":           {base.With("new/n", wt.Plain("other")), []string{"new/n is there already, as a file"}},
		"folder there":    {base.With("new/n/x", wt.Plain("other")), []string{"new/n is there already, as a folder"}},
		"parent is file":  {base.With("new", wt.Plain("other")), []string{"new/n lies below new, which is no folder now"}},
		"parent is link":  {base.With("new", wt.Link("d")), []string{"new/n lies below new, which is no folder now"}},
		"in the way":      {base.With("tofile/mine", wt.Plain("1")).With("tofile/s/too", wt.Plain("1")), []string{"tofile/mine is in the folder that tofile replaces, and the cell did not remove it", "tofile/s/too is in the folder that tofile replaces, and the cell did not remove it"}},
		"a repository":    {base.With("tofile/.git", wt.Plain("gitdir: x")), []string{"tofile/.git is in the folder that tofile replaces, and is git's own: remove that folder by hand first"}},
		"several, sorted": {base.With("m", wt.Plain("9")).With("f", wt.Plain("9")).With("l", wt.Plain("")), []string{"f has other content now", "l is a file now", "m has other content now"}},
		"free":            {base.With("free", wt.Script("changed")).With("other", wt.Plain("1")).With("d/other", wt.Plain("1")).With("new/mine", wt.Plain("1")), nil},
		"as it shall be":  {base.With("f", wt.Plain("2")).With("new/n", wt.Plain("n")), nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := sourceOf(t, c.source)
			req := applyRequest(t, dir, base, after)
			before := snapshotOf(t, dir)
			for _, dry := range []bool{true, false} {
				req.DryRun = dry
				_, err := doOne(context.Background(), req)
				if c.want == nil {
					if err != nil {
						t.Fatal(err)
					}
					continue
				}
				unchanged(t, dir, before)
				leftNothing(t, req)
				var got []string
				e, ok := errors.AsType[*ConflictError](err)
				if !ok || cell.KindOf(err) != cell.Conflict || !strings.HasPrefix(err.Error(), "cannot apply: "+c.want[0]) || cell.HintOf(err) == "" {
					t.Fatalf("err = %v", err)
				}
				for _, p := range e.Paths {
					got = append(got, p.Path+" "+p.Why)
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Error(diff)
				}
			}
			if c.want == nil {
				want := c.source.With("f", after["f"]).With("d/x", after["d/x"]).With("l", after["l"]).With("m", after["m"]).With("new/n", after["new/n"])
				delete(want, "tofile/a")
				want = want.With("tofile", after["tofile"])
				if wt.ContentDigest(t, dir) != want.Side(t, nil).Tree.ContentDigest() {
					t.Errorf("%v", wt.Read(t, dir))
				}
			}
		})
	}
}

// The text of a conflict names the first 20 files and counts the rest.
func TestConflictTextIsBounded(t *testing.T) {
	base, after := wt.Model{}, wt.Model{}
	for i := range 1025 {
		base[fmt.Sprintf("f%04d", i)], after[fmt.Sprintf("f%04d", i)] = wt.Plain("1"), wt.Plain("2")
	}
	_, err := doOne(context.Background(), applyRequest(t, sourceOf(t, wt.Model{}), base, after))
	e, ok := errors.AsType[*ConflictError](err)
	if !ok || len(e.Paths) != 1025 || !strings.HasSuffix(err.Error(), "f0019 is gone; and 1,005 more") {
		t.Errorf("%.2000v", err)
	}
}

// Folders that lose their last file go, others stay.
func TestApplyPrunesFolders(t *testing.T) {
	base := wt.Model{"a/b/c": wt.Plain("1"), "a/d": wt.Plain("1"), "e/f/g": wt.Plain("1")}
	dir := sourceOf(t, base.With("e/mine", wt.Plain("1")).With("a/b/empty", wt.Thing{Folder: true}))
	mustApply(t, applyRequest(t, dir, base, wt.Model{"x": wt.Plain("1")}))
	if diff := cmp.Diff([]string{"a", "a/b", "a/b/empty", "e", "e/mine", "x"}, wt.Read(t, dir).Paths()); diff != "" {
		t.Error(diff)
	}
	base = wt.Model{"a/file": wt.Plain("1"), "x": wt.Plain("1")}
	dir = sourceOf(t, base)
	mustApply(t, applyRequest(t, dir, base, wt.Model{"a/file": {Folder: true}, "x": wt.Plain("1")}))
	if diff := cmp.Diff([]string{"x"}, wt.Read(t, dir).Paths()); diff != "" {
		t.Error(diff)
	}
}

// A file that came in without its credentials is left alone, and says why.
func TestF21ApplyOfScrubbedFile(t *testing.T) {
	base := wt.Model{".npmrc": wt.Plain("registry=x\n"), "f": wt.Plain("1")}
	dir := sourceOf(t, wt.Model{".npmrc": wt.Plain("registry=x\n//x/:_authToken=secret\n"), "f": wt.Plain("1")})
	before := snapshotOf(t, dir)
	req := applyRequest(t, dir, base, wt.Model{".npmrc": wt.Plain("registry=y\n"), "f": wt.Plain("2")})
	req.Scrubbed, req.Include = []string{".npmrc"}, []string{".npmrc"} // else it is held back as a control path
	if _, err := doOne(context.Background(), req); cell.KindOf(err) != cell.Conflict || !strings.Contains(err.Error(), ".npmrc came into the cell without its credentials") {
		t.Errorf("err = %v", err)
	}
	unchanged(t, dir, before)
}

// Ignored files are counted and left out unless asked for.
func TestApplyIgnored(t *testing.T) {
	base := wt.Model{"f": wt.Plain("1")}
	after := wt.Model{"f": wt.Plain("2"), "node_modules/a/x": wt.Plain("1"), "node_modules/y": wt.Plain("1"), "z.log": wt.Plain("1")}
	for _, all := range []bool{false, true} {
		dir := sourceOf(t, base)
		req := applyRequest(t, dir, base, after)
		req.Ignored = all
		req.IsIgnored = func(p string, isDir bool) bool {
			return p == "z.log" || p == "node_modules" || strings.HasPrefix(p, "node_modules/")
		}
		res := mustApply(t, req)
		want := diff.IgnoredFiles{Count: 3, Folders: []string{"node_modules", "z.log"}}
		paths := []string{"f"}
		if all {
			want, paths = diff.IgnoredFiles{}, []string{"f", "node_modules", "node_modules/a", "node_modules/a/x", "node_modules/y", "z.log"}
		}
		if diff := cmp.Diff(want, res.Ignored); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(paths, wt.Read(t, dir).Paths()); diff != "" {
			t.Error(diff)
		}
	}
}

// Ten files in a tree of a hundred thousand cost what ten files cost.
func BenchmarkApplyTenOfHundredThousand(b *testing.B) {
	base := wt.Model{}
	for i := range 100_000 {
		base[fmt.Sprintf("d%d/e%d/f%d", i%10, i/10%100, i)] = wt.Plain(fmt.Sprint("content\n", i))
	}
	objs := wt.NewObjects()
	there, touched := wt.Model{}, wt.Model{}
	for i := range 10 {
		p := fmt.Sprintf("d%d/e%d/f%d", i%10, i/10%100, i)
		there[p], touched[p] = base[p], wt.Plain(fmt.Sprint("changed\n", i))
	}
	after := base
	for p, f := range touched {
		after = after.With(p, f)
	}
	x, y := base.Side(b, objs), after.Side(b, objs)
	dir := sourceOf(b, there)
	backup := filepath.Join(b.TempDir(), "b")
	b.ResetTimer()
	for b.Loop() {
		if _, err := doOne(context.Background(), Request{Source: dir, Base: x.Tree, After: y, Backup: backup}); err != nil {
			b.Fatal(err)
		}
		x, y = y, x // and back
	}
}
