package apply

import (
	"context"
	"errors"
	"maps"
	"math/rand"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// partsOf makes directories, and asks to bring what changed in each. The models are by their places.
func partsOf(t *testing.T, base, after map[string]wt.Model) (parts []Part) {
	t.Helper()
	whole := func(of map[string]wt.Model) wt.Model {
		all := wt.Model{}
		for at, m := range of {
			all[at] = wt.Thing{Folder: true}
			for p, f := range m {
				all[path.Join(at, p)] = f
			}
		}
		return all
	}
	top, backups := t.TempDir(), t.TempDir()
	for _, at := range slices.Sorted(maps.Keys(base)) {
		req := applyRequest(t, filepath.Join(top, at), whole(base), whole(after))
		req.Backup = filepath.Join(backups, strings.ReplaceAll(at, "/", "-"))
		if err := os.MkdirAll(req.Source, 0o755); err != nil {
			t.Fatal(err)
		}
		base[at].Write(t, req.Source)
		parts = append(parts, Part{At: at, Request: req})
	}
	return parts
}

// Three directories with their changes; in the third there is none.
func several(t *testing.T) []Part {
	base, after := everything()
	return partsOf(t, map[string]wt.Model{"app": base, "libs/one": {"f": wt.Plain("1"), "g": wt.Plain("1")}, "libs/two": {"f": wt.Plain("1")}},
		map[string]wt.Model{"app": after, "libs/one": {"f": wt.Plain("2"), "h/i": wt.Plain("2")}, "libs/two": {"f": wt.Plain("1")}})
}

// states are which of the directories are as they were, and which are as they become.
func states(t *testing.T, parts []Part) (old, now int) {
	t.Helper()
	for i := range parts {
		before, err := partOf(parts[i].Base, parts[i].At)
		if err != nil {
			t.Fatal(err)
		}
		after, err := partOf(parts[i].After.Tree, parts[i].At)
		if err != nil {
			t.Fatal(err)
		}
		got := wt.ContentDigest(t, parts[i].Source)
		if got == before.ContentDigest() {
			old++
		}
		if got == after.ContentDigest() {
			now++
		}
	}
	return old, now
}

// Several directories become what they should, or none does, at a failure before any step.
func TestPartsAreOne(t *testing.T) {
	t.Parallel()
	for fail := 0; ; fail++ {
		parts := several(t)
		before := map[string]map[string]string{}
		n, at := 0, ""
		for i := range parts {
			before[parts[i].At] = snapshotOf(t, parts[i].Source)
			parts[i].Include = []string{"."}
			parts[i].hook = func(step, path string) error {
				if n++; n-1 == fail && !strings.HasPrefix(step, "undo") {
					at = step
					return unix.ENOSPC
				}
				return nil
			}
		}
		_, err := Do(context.Background(), parts)
		old, now := states(t, parts)
		switch {
		case at == "clean":
			for i := range parts { // the originals go
				if _, err := Recover(context.Background(), parts[i].Backup); err != nil {
					t.Error(err)
				}
			}
			if _, now = states(t, parts); err == nil || now != len(parts) {
				t.Errorf("%d of %d are there: %v", now, len(parts), err)
			}
		case at == "":
			if err != nil || now != len(parts) || fail < 60 {
				t.Errorf("step %d: %d of %d are there: %v", fail, now, len(parts), err)
			}
		default:
			if !errors.Is(err, unix.ENOSPC) || old != len(parts) {
				t.Errorf("at %s %d of %d are as they were: %v", at, old, len(parts), err)
			}
			for i := range parts {
				unchanged(t, parts[i].Source, before[parts[i].At])
			}
		}
		for i := range parts {
			os.Remove(parts[i].Backup)
			leftNothing(t, parts[i].Request)
		}
		if at == "" || t.Failed() {
			return
		}
	}
}

// After a kill at any step, and one of the recovery, all are what they were or all what they should become, in whatever order they
// are recovered.
func TestF19PartsRecoverFromKill(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewSource(5))
	for at := 0; ; at++ {
		for _, again := range []int{-1, r.Intn(40)} {
			parts := several(t)
			n := 0
			for i := range parts {
				parts[i].Include, parts[i].hook = []string{"."}, killAt(&n, at)
			}
			if dead := survives(func() { Do(context.Background(), parts) }); !dead {
				if at < 60 {
					t.Fatalf("only %d steps", at)
				}
				return
			}
			order := r.Perm(len(parts))
			other := filepath.Join(t.TempDir(), "state") // the same folder, by another path
			if err := os.Symlink(filepath.Dir(parts[0].Backup), other); err != nil {
				t.Fatal(err)
			}
			if again >= 0 {
				n = 0
				survives(func() { recoverWith(parts[order[0]].Backup, killAt(&n, again)) })
			}
			for _, i := range order {
				if _, err := Recover(context.Background(), filepath.Join(other, filepath.Base(parts[i].Backup))); err != nil {
					t.Fatalf("killed at %d and %d: %v", at, again, err)
				}
			}
			if old, now := states(t, parts); old != len(parts) && now != len(parts) {
				t.Fatalf("killed at %d and %d: of %d, %d are old and %d new", at, again, len(parts), old, now)
			}
			for i := range parts {
				os.Remove(parts[i].Backup)
				leftNothing(t, parts[i].Request)
			}
		}
	}
}

// What is committed is finished in each directory for itself: one that is gone keeps no other waiting.
func TestPartsFinishEach(t *testing.T) {
	for _, gone := range []int{0, 1} {
		parts := several(t)
		committed := false
		for i := range parts {
			parts[i].Include = []string{"."}
			parts[i].hook = func(step, _ string) error {
				if committed = committed || step == "clean"; committed {
					panic(killed{})
				}
				return nil
			}
		}
		survives(func() { Do(context.Background(), parts) })
		if err := os.RemoveAll(parts[gone].Source); err != nil || !committed {
			t.Fatal(committed, err)
		}
		for i := range parts[:2] {
			r, err := Recover(context.Background(), parts[i].Backup)
			if i == gone && err == nil || i != gone && (err != nil || r.Outcome != "finished") {
				t.Errorf("without directory %d, %d is recovered as %+v, %v", gone, i, r, err)
			}
		}
	}
}

// A conflict in one keeps all out, and names the path in the workspace; each directory is locked for itself.
func TestPartsConflict(t *testing.T) {
	parts := several(t)
	if err := os.WriteFile(filepath.Join(parts[1].Source, "f"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Do(context.Background(), parts)
	if c, ok := errors.AsType[*ConflictError](err); !ok || len(c.Paths) != 1 || c.Paths[0].Path != "libs/one/f" {
		t.Errorf("%v", err)
	}
	if old, _ := states(t, parts); old != len(parts)-1 { // and the one that was changed
		t.Errorf("%d are as they were", old)
	}

	parts = several(t)
	held, err := openBeneath(parts[1].Source)
	if err != nil {
		t.Fatal(err)
	}
	defer held.close()
	if err := held.lock(); err != nil {
		t.Fatal(err)
	}
	if _, err := Do(context.Background(), parts); cell.KindOf(err) != cell.Conflict {
		t.Errorf("while another writes to one of them: %v", err)
	}
	if old, _ := states(t, parts); old != len(parts) {
		t.Errorf("%d are as they were", old)
	}
}

// Each directory is a source of its own: what leads out of it is held back, also where it leads to another one, and so is what
// the configurations of users (also for a repository within one), of the repository above one, and of the others name in it. No directory goes or is made.
func TestPartsHoldControlPaths(t *testing.T) {
	base := map[string]wt.Model{"app": {"f": wt.Plain("1"), "sub/.git/HEAD": wt.Plain("ref: x\n")}, "mono/lib": {"only": wt.Plain("1"), ".envrc": wt.Plain("source_env ../../app/env.sh\n")}}
	after := map[string]wt.Model{
		"app":      {"f": wt.Plain("1"), "sub/.git/HEAD": wt.Plain("ref: x\n"), "sub/hk/pre-commit": wt.Script("x"), "hk/pre-commit": wt.Script("x"), "out": wt.Link("../other"), "over": wt.Link("../mono/lib"), "tools/h": wt.Script("x"), "env.sh": wt.Plain("x"), "g": wt.Plain("x"), ".github/workflows/ci.yml": wt.Plain("x")},
		"mono/lib": {".envrc": wt.Plain("source_env ../../app/env.sh\n"), "hk/pre-commit": wt.Script("x"), "mine/h": wt.Script("x"), "g": wt.Plain("x")},
	}
	parts := partsOf(t, base, after)
	home, top := t.TempDir(), filepath.Dir(parts[0].Source)
	for name, text := range map[string]string{
		home + "/.gitconfig":      "[core]\n\thooksPath = hk\n",
		top + "/mono/.git/config": "[core]\n\thooksPath = lib/mine\n[alias]\n\tx = !../app/tools/h\n",
		top + "/mono/.git/HEAD":   "ref: refs/heads/main\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"objects", "refs"} {
		if err := os.MkdirAll(top+"/mono/.git/"+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := range parts {
		parts[i].Homes = []string{home}
	}
	review, err := ReviewOf(parts)
	if err != nil {
		t.Fatal(err)
	}
	res, err := Do(context.Background(), parts)
	if err != nil {
		t.Fatal(err)
	}
	var held, applied []string
	for i, h := range res.Held {
		held = append(held, h.Path)
		if review.Held[i] != h || h.Flag != "--include "+h.Path {
			t.Errorf("the review says %+v, and %+v was held back", review.Held[i], h)
		}
	}
	for _, f := range res.Applied {
		applied = append(applied, f.Path)
	}
	if want := "app/.github/workflows/ci.yml app/env.sh app/hk/pre-commit app/out app/over app/sub/hk/pre-commit app/tools/h mono/lib/hk/pre-commit mono/lib/mine/h"; strings.Join(held, " ") != want {
		t.Errorf("held back are %q, want %s", held, want)
	}
	if want := "app/g mono/lib/g mono/lib/only"; strings.Join(applied, " ") != want {
		t.Errorf("applied are %q, want %s", applied, want)
	}

	// An include that says nothing takes nothing; one that names a folder holds for what is below it, and its flag says so.
	for i := range parts {
		parts[i].Include, parts[i].DryRun = []string{"", "app/x/.."}, true
	}
	if res, err = Do(context.Background(), parts); err != nil || len(res.Held) != len(held) || len(res.UnusedInclude) != 2 {
		t.Errorf("%+v, %v", res, err)
	}
	for i := range parts {
		parts[i].Include = []string{"app/hk", "/mono/lib/mine/"}
	}
	if res, err = Do(context.Background(), parts); err != nil || len(res.Held) != len(held)-2 || len(res.UnusedInclude) != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	for i := range parts {
		parts[i].DryRun = false
	}

	// All files of one are removed: the directory stays, and where it is gone none is made.
	for i := range parts {
		parts[i].Include = []string{"mono/lib", "nothing"}
	}
	if res, err = Do(context.Background(), parts); err != nil || !slices.Equal(res.UnusedInclude, []string{"nothing"}) {
		t.Errorf("%+v, %v", res, err)
	}
	gone := partsOf(t, map[string]wt.Model{"app": {"f": wt.Plain("1")}, "x/lib": {"only": wt.Plain("1")}}, map[string]wt.Model{"app": {}, "x/lib": {}})
	if _, err := Do(context.Background(), gone); err != nil {
		t.Error(err)
	}
	for i := range gone {
		if list, err := os.ReadDir(gone[i].Source); err != nil || len(list) > 0 {
			t.Errorf("%s has %v, %v", gone[i].At, list, err)
		}
	}
	if err := os.Remove(gone[1].Source); err != nil {
		t.Fatal(err)
	}
	if _, err := Do(context.Background(), gone); cell.KindOf(err) != cell.NotFound {
		t.Errorf("without one of the directories: %v", err)
	}
}
