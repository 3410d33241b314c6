package apply

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/cell"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// outside makes a folder that no apply may touch and returns its state.
func outside(t *testing.T) (dir string, before map[string]string) {
	dir = sourceOf(t, wt.Model{"x": wt.Plain("mine"), "sub/x": wt.Plain("mine")})
	return dir, snapshotOf(t, dir)
}

// A symlink in the source, wherever it stands in the path of a change, leads
// nowhere: the change is a conflict.
func TestF16ApplyFollowsNoSymlinkOfTheSource(t *testing.T) {
	away, before := outside(t)
	base := wt.Model{"dir/x": wt.Plain("mine"), "dir/sub/x": wt.Plain("mine")}
	for name, after := range map[string]wt.Model{
		"modify": {"dir/x": wt.Plain("evil"), "dir/sub/x": wt.Plain("mine")},
		"deep":   {"dir/x": wt.Plain("mine"), "dir/sub/x": wt.Plain("evil")},
		"delete": {"dir/sub/x": wt.Plain("mine")},
		"chmod":  {"dir/x": wt.Script("mine"), "dir/sub/x": wt.Plain("mine")},
		"create": {"dir/x": wt.Plain("mine"), "dir/sub/x": wt.Plain("mine"), "dir/new": wt.Plain("evil")},
		"mkdir":  {"dir/x": wt.Plain("mine"), "dir/sub/x": wt.Plain("mine"), "dir/n/e/w": wt.Plain("evil")},
		"file":   {"dir": wt.Plain("evil")},
	} {
		dir := sourceOf(t, wt.Model{"dir": wt.Link(away)})
		req := applyRequest(t, dir, base, after)
		_, err := doOne(context.Background(), req)
		if cell.KindOf(err) != cell.Conflict || !strings.Contains(err.Error(), "dir") {
			t.Errorf("%s: %v", name, err)
		}
		leftNothing(t, req)
	}
	unchanged(t, away, before)
}

// The cell replaces a folder by a symlink to somewhere and writes below it:
// neither the link nor what it leads to is touched.
func TestF16ApplyOfFolderReplacedByLink(t *testing.T) {
	away, before := outside(t)
	base := wt.Model{"dir/x": wt.Plain("mine"), "dir/y": wt.Plain("mine"), "other": wt.Plain("1")}
	for _, target := range []string{away, "/", "..", "../..", "sub/../../x", "d/../.."} {
		dir := sourceOf(t, base)
		res := mustApply(t, applyRequest(t, dir, base, wt.Model{"dir": wt.Link(target), "other": wt.Plain("2"), "d": wt.Link("."), "sub/x": wt.Plain("1")}))
		if len(res.Held) != 3 || res.Held[0].Path != "dir" || !strings.Contains(res.Held[0].Why, "out of the workspace") || res.Held[0].Flag != "--include dir" {
			t.Errorf("%s: held %+v", target, res.Held)
		}
		// What is below waits with it: the folder stays whole.
		if got := wt.Read(t, dir); got["dir/x"].Text != "mine" || got["dir/y"].Text != "mine" || got["other"].Text != "2" {
			t.Errorf("%s: %v", target, got)
		}
	}
	// Included, the link comes, as a link: nothing is written through it.
	dir := sourceOf(t, base)
	req := applyRequest(t, dir, base, wt.Model{"dir": wt.Link(away), "other": wt.Plain("1")})
	req.Include = []string{"dir"}
	mustApply(t, req)
	if got := wt.Read(t, dir)["dir"].Link; got != away {
		t.Errorf("dir leads to %q", got)
	}
	unchanged(t, away, before)
}

// A folder is swapped for a symlink while the apply runs.
func TestF16ApplyFolderSwappedMeanwhile(t *testing.T) {
	base := wt.Model{"dir/x": wt.Plain("mine"), "dir/sub/x": wt.Plain("mine"), "dir/m": wt.Plain("m")}
	after := wt.Model{"dir/x": wt.Plain("evil"), "dir/new/n": wt.Plain("evil"), "dir/m": wt.Script("m")}
	for _, step := range []string{"stage", "write", "recheck", "take", "mkdir", "put", "chmod", "prune"} {
		away, before := outside(t)
		dir := sourceOf(t, base)
		req := applyRequest(t, dir, base, after)
		done := false
		req.hook = func(s, path string) error {
			if s == step && !done {
				done = true
				os.Rename(filepath.Join(dir, "dir"), filepath.Join(dir, "was"))
				os.Symlink(away, filepath.Join(dir, "dir"))
			}
			return nil
		}
		_, err := doOne(context.Background(), req)
		if !done || (err == nil && step != "prune") {
			t.Errorf("%s: swapped %v, %v", step, done, err)
		}
		unchanged(t, away, before)
	}
}

// F62, F61: no spelling of .git is written, at any depth, in any state.
func TestF62ApplyNeverWritesGit(t *testing.T) {
	evil := wt.Script("#!/bin/sh\ntouch pwned\n")
	spellings := []string{".git", ".GIT", ".Git", ".git.", ".git ", ".git. .", "git~1", "GIT~1", ".g\u200cit", ".\u200dgit", ".git\u2060", ".git::$INDEX_ALLOCATION", ".git:x", `a\.git`, ".gıt", ".g\ufe0fit"}
	base := wt.Model{"a": wt.Plain("1"), "nested/.git/config": wt.Plain("[core]\n"), "nested/f": wt.Plain("1")}
	after := base.With("a", wt.Plain("2")).With("nested/.git/config", wt.Plain("[core]\n\tfsmonitor = evil\n")).With("nested/.git/hooks/pre-commit", evil).With("nested/f", wt.Plain("2")).With("worktree/.git", wt.Plain("gitdir: ../evil\n"))
	for _, g := range spellings {
		after = after.With(g+"/hooks/post-checkout", evil).With("deep/er/"+g+"/config", evil)
	}
	dir := sourceOf(t, base.With(".git/config", wt.Plain("[core]\n")))
	req := applyRequest(t, dir, base, after)
	req.Include = []string{".", ".git", "nested/.git"}
	req.Ignored = true
	res := mustApply(t, req)
	want := base.With("a", wt.Plain("2")).With("nested/f", wt.Plain("2"))
	var got []string
	for p, f := range wt.Read(t, dir) {
		if f.Folder {
			continue
		}
		got = append(got, p)
		if f.Text != want[p].Text {
			t.Errorf("%q is %q", p, f.Text)
		}
	}
	if len(got) != len(want) {
		t.Errorf("the source holds %q", got)
	}
	if entries, _ := os.ReadDir(filepath.Join(dir, ".git")); len(entries) != 1 {
		t.Error("the repository was touched")
	}
	noted := map[string]bool{}
	for _, n := range res.Unrepresented {
		noted[n.Path] = true
	}
	for _, p := range append(spellings, "nested/.git", "worktree/.git") {
		if !noted[p] {
			t.Errorf("%q is dropped without a word", p)
		}
	}
}

// Git hooks in nested repositories never appear, and a repository in
// disguise, without a .git, is held back.
func TestF61ApplyHooksOfNestedRepositories(t *testing.T) {
	base := wt.Model{"a": wt.Plain("1")}
	after := base.With("sub/.git/hooks/pre-commit", wt.Script("evil")).With("sub/.git/HEAD", wt.Plain("ref: x")).With("sub/f", wt.Plain("1")).
		With("bare/HEAD", wt.Plain("ref: refs/heads/x\n")).With("bare/config", wt.Plain("[core]\n\tfsmonitor = evil\n")).With("bare/objects/a", wt.Plain("1")).With("bare/refs/x", wt.Plain("1")).With("bare/deep/er", wt.Plain("1")).
		With("link/head", wt.Plain("ref: x")).With("link/commondir", wt.Plain("../bare")).With("link/config", wt.Plain(""))
	dir := sourceOf(t, base)
	res := mustApply(t, applyRequest(t, dir, base, after))
	if diff := cmp.Diff([]string{"a", "sub", "sub/f"}, wt.Read(t, dir).Paths()); diff != "" {
		t.Error(diff)
	}
	if len(res.Held) != 8 || !strings.Contains(res.Held[0].Why, "looks like a git repository") {
		t.Errorf("held %+v", res.Held)
	}
}

// F23a: what import left out is never written, replaced, removed or linked
// to, under any spelling.
func TestF23aApplyReservedPaths(t *testing.T) {
	base := wt.Model{"a": wt.Plain("1"), "conf/x": wt.Plain("1")}
	reserved := []string{".env", "conf/keys", "sub/.env"}
	secret := wt.Model{".env": wt.Plain("secret"), "conf/keys/id": wt.Plain("secret"), "sub/.env": wt.Plain("secret")}
	for name, c := range map[string]struct {
		after wt.Model
		want  string
	}{
		"create":        {base.With(".env", wt.Plain("evil")), ".env was left out of the cell and is never written"},
		"same content":  {base.With(".env", wt.Plain("secret")), ".env was left out"},
		"symlink":       {base.With(".env", wt.Link("a")), ".env was left out"},
		"fifo":          {base.With(".env", wt.Thing{Fifo: true}), ".env was left out"},
		"folder":        {base.With(".env/x", wt.Plain("1")), ".env was left out"},
		"below":         {base.With("conf/keys/new", wt.Plain("1")), "conf/keys was left out"},
		"case":          {base.With(".ENV", wt.Plain("1")), ".ENV was left out"},
		"trailing":      {base.With(".env. ", wt.Plain("1")), ".env.  was left out"},
		"parent":        {wt.Model{"a": wt.Plain("1"), "conf": wt.Plain("evil")}, "conf is a folder that holds conf/keys, which was left out"},
		"parent linked": {base.With("sub", wt.Link("conf")), "sub is a folder that holds sub/.env"},
	} {
		dir := sourceOf(t, base)
		secret.Write(t, dir)
		before := snapshotOf(t, dir)
		req := applyRequest(t, dir, base, c.after)
		req.Reserved, req.Include = reserved, []string{"."}
		_, err := doOne(context.Background(), req)
		if cell.KindOf(err) != cell.Conflict || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		leftNothing(t, req)
		unchanged(t, dir, before)
	}
	// All that is in the way is named, in order.
	mixed := sourceOf(t, base.With("a", wt.Plain("9")))
	secret.Write(t, mixed)
	both := applyRequest(t, mixed, base, base.With("a", wt.Plain("2")).With("sub/.env", wt.Plain("evil")))
	both.Reserved = reserved
	_, err := doOne(context.Background(), both)
	if e, ok := errors.AsType[*ConflictError](err); !ok || len(e.Paths) != 2 || e.Paths[0].Path != "a" {
		t.Errorf("err = %v", err)
	}
	// Removing the folder around leaves the secret, and a link to it is held.
	dir := sourceOf(t, base)
	secret.Write(t, dir)
	req := applyRequest(t, dir, base, wt.Model{"a": wt.Plain("1"), "public/x": wt.Link("../conf/KEYS/id")})
	req.Reserved = reserved
	res := mustApply(t, req)
	if len(res.Held) != 1 || !strings.Contains(res.Held[0].Why, "left out") {
		t.Errorf("held %+v", res.Held)
	}
	if got := wt.Read(t, dir); got["conf/keys/id"].Text != "secret" || got["conf/x"].Text != "" {
		t.Errorf("%v", got)
	}
}

func TestApplyRefusesPlaces(t *testing.T) {
	base, after := wt.Model{"f": wt.Plain("1")}, wt.Model{"f": wt.Plain("2")}
	dir := sourceOf(t, wt.Model{".git/f": wt.Plain("1"), "f": wt.Plain("1"), "a/.GIT/modules/x/f": wt.Plain("1")})
	for _, c := range []struct {
		source, backup string
		kind           cell.Kind
	}{
		{filepath.Join(dir, ".git"), t.TempDir(), cell.Denied},
		{filepath.Join(dir, "a/.GIT/modules/x"), t.TempDir(), cell.Denied},
		{dir, filepath.Join(dir, "backup"), cell.Invalid},
		{dir, dir, cell.Invalid},
		{dir, "", cell.Invalid},
	} {
		req := applyRequest(t, c.source, base, after)
		req.Backup = c.backup
		if _, err := doOne(context.Background(), req); cell.KindOf(err) != c.kind {
			t.Errorf("%s, %s: %v", c.source, c.backup, err)
		}
	}
	if got := wt.Read(t, filepath.Join(dir, ".git"))["f"].Text; got != "1" {
		t.Error(got)
	}
}
