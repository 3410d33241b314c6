package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/testenv"
)

// What a merge wrote, and what it took the place of, outlives a collection: it is taken back by that.
func TestMergedAcceptOutlivesCollection(t *testing.T) {
	t.Parallel()
	testenv.Program(t, "git")
	b := newBed(t, "f: 0")
	b.run("w", "echo cell > f")
	b.write("f", "mine\n")
	_, err := b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})
	b.wantKind("an accept", err, cell.Conflict, "f has other content now")
	_, err = b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true, Merge: true, NoConflicts: true})
	b.wantKind("an accept without conflicts", err, cell.Conflict, "f was changed in the same lines")
	res, err := b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true, Merge: true})
	b.must(err)
	marked := "<<<<<<< source\nmine\n=======\ncell\n>>>>>>> w@2\n"
	if len(res.Merged) != 1 || res.Merged[0].Path != "f" || res.Merged[0].Conflicts != 1 || b.source("f") != marked {
		t.Errorf("merged is %+v, and the source has %q", res.Merged, b.source("f"))
	}
	if left, _ := b.shown(b.cellTarget("w")); len(left) > 0 {
		t.Errorf("diff shows %q of what was accepted", left)
	}
	b.age()
	b.reopen() // it knows no object that was just put
	b.collected()
	if d, err := b.results.Diff(b.ctx, result.DiffRequest{Target: b.cellTarget("w")}); err != nil || len(d.Files) > 0 {
		t.Errorf("diff is %+v, %v", d.Files, err)
	}
	b.must(second(b.results.Revert(b.ctx, b.cellTarget("w"), api.RevertRequest{})))
	if b.source("f") != "mine\n" {
		t.Errorf("the source has %q", b.source("f"))
	}
	if left, _ := b.shown(b.cellTarget("w")); !slices.Equal(left, []string{"f"}) {
		t.Errorf("diff shows %q", left)
	}
	b.verified()
}

// What a sync brought is the source's, and never a change of the cell: not after an undo, and not in a fork
// from before it.
func TestSyncedChangesAreTheSources(t *testing.T) {
	t.Parallel()
	testenv.Program(t, "git")
	b := newBed(t, "f: 0", "g: 0", "gone: 0")
	b.run("w", "echo cell > f")
	sync := func(name string, req api.SyncRequest) (api.SyncResult, error) {
		return b.results.Sync(b.ctx, b.id(name), req)
	}
	res, err := sync("w", api.SyncRequest{})
	if b.must(err); len(res.Synced) > 0 || res.Receipt != "" {
		t.Errorf("with nothing to bring it is %+v", res)
	}
	b.write("f", "mine\n")
	b.write("g", "mine\n")
	b.write("d/new", "mine\n")
	_, err = sync("w", api.SyncRequest{NoConflicts: true})
	b.wantKind("a sync without conflicts", err, cell.Conflict, "f was changed in the same lines")
	b.has("w", "f: cell", "g: 0", "gone: 0")
	res, err = sync("w", api.SyncRequest{})
	b.must(err)
	if !slices.Equal(res.Synced, []string{"d/new", "f", "g"}) || len(res.Merged) != 1 || res.Before != 2 || res.Number != 3 {
		t.Errorf("synced: %+v", res)
	}
	marked := "<<<<<<< w@2\ncell\n=======\nmine\n>>>>>>> source"
	b.has("w", "d/new: mine", "f: "+marked, "g: mine", "gone: 0")
	only := func(what, name string, want ...string) {
		t.Helper()
		if left, _ := b.shown(b.cellTarget(name)); !slices.Equal(left, want) {
			t.Errorf("%s, diff shows %q; want %q", what, left, want)
		}
	}
	only("synced", "w", "f")
	b.age()
	b.reopen()
	b.collected()
	if d, err := b.results.Diff(b.ctx, result.DiffRequest{Target: b.cellTarget("w"), Form: "patch"}); err != nil || len(d.Files) != 1 {
		t.Errorf("the patch is %+v, %v", d, err)
	}
	b.must(second(b.Fork(b.ctx, b.id("w"), api.ForkRequest{Count: 1, Number: 1, Name: "old"})))
	only("of a fork from before", "old", []string{}...)
	b.must(second(b.results.Undo(b.ctx, b.id("w"), api.UndoRequest{})))
	only("undone", "w", "f")
	b.has("w", "f: cell", "g: 0", "gone: 0")
	b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true, Merge: true})))
	b.wantFiles("accepted", map[string]string{"f": "<<<<<<< source\nmine\n=======\ncell\n>>>>>>> w@2\n", "g": "mine\n", "gone": "0", "d/new": "mine\n"})
	only("accepted", "w", []string{}...)
	b.must(second(b.results.Restore(b.ctx, b.id("w"), api.RestoreRequest{Number: 3, Lose: true})))
	only("with the sync again", "w", "f")
	b.verified()
}

// Of some hunks of a result the file has just these in the source; the others wait, and are told from that.
func TestHunksOfAResult(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.write("f", "0\n")
	b.write("g", "0\n")
	b.run("w", "echo one > f; echo two >> f; echo 1 > g; echo new > n")
	half := "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-0\n+one\n"
	accept := func(req api.AcceptRequest) (api.AcceptResult, error) {
		req.Apply = true
		return b.results.Accept(b.ctx, b.cellTarget("w"), req)
	}
	for patch, want := range map[string]string{
		"nonsense": "cannot read the patch of what to take",
		"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-5\n+one\n":                           "does not fit f",
		"diff --git a/m b/m\n--- a/m\n+++ b/m\n@@ -1 +1 @@\n-0\n+one\n":                           "there is no changed text at m",
		"diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+new\n": "cannot take a part of n",
		"diff --git a/../f b/../f\n--- a/../f\n+++ b/../f\n@@ -1 +1 @@\n-0\n+one\n":               "there is no changed text at ../f",
	} {
		_, err := accept(api.AcceptRequest{Patch: patch})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", patch, err, want)
		}
	}
	_, err := accept(api.AcceptRequest{Patch: half, Paths: []string{"f"}})
	b.wantKind("a file twice", err, cell.Invalid, "f is to be taken as a whole, and in part")
	res, err := accept(api.AcceptRequest{Patch: half, Paths: []string{"g"}})
	b.must(err)
	if !slices.Equal(res.Applied, []string{"f", "g"}) || !slices.Equal(res.Parts, []string{"f"}) || res.Left != 2 || len(res.Runs) != 0 {
		t.Errorf("accepted: %+v", res)
	}
	b.wantFiles("with a part", map[string]string{"f": "one\n", "g": "1\n"})
	b.age()
	b.reopen()
	b.collected()
	d, err := b.results.Diff(b.ctx, result.DiffRequest{Target: b.cellTarget("w"), Form: "patch"})
	if b.must(err); len(d.Files) != 2 || !strings.Contains(d.Text, " one\n+two\n") {
		t.Errorf("the rest is %+v", d)
	}
	b.must(second(accept(api.AcceptRequest{})))
	b.wantFiles("with all", map[string]string{"f": "one\ntwo\n", "g": "1\n", "n": "new\n"})
	b.must(second(b.results.Revert(b.ctx, b.cellTarget("w"), api.RevertRequest{})))
	b.wantFiles("the rest taken back", map[string]string{"f": "one\n", "g": "1\n"})
	b.must(second(b.results.Revert(b.ctx, b.cellTarget("w"), api.RevertRequest{})))
	b.wantFiles("all taken back", map[string]string{"f": "0\n", "g": "0\n"})
	b.verified()
}

// mergeBed has a cell that changed the first line of a text, of which the user changed the last.
func mergeBed(t *testing.T) *bed {
	t.Parallel()
	testenv.Program(t, "git")
	b := newBed(t, "g: 0")
	b.write("f", "1\n2\n3\n4\n5\n")
	b.run("w", "(echo one; echo 2; echo 3; echo 4; echo 5) > f; echo 1 > g")
	b.write("f", "1\n2\n3\n4\nfive\n")
	return b
}

const mergedText = "one\n2\n3\n4\nfive\n"

func (b *bed) accept(name string, req api.AcceptRequest) (api.AcceptResult, error) {
	b.Helper()
	req.Apply = true
	return b.results.Accept(b.ctx, b.cellTarget(name), req)
}

func (b *bed) sync(name string, req api.SyncRequest) api.SyncResult {
	b.Helper()
	res, err := b.results.Sync(b.ctx, b.id(name), req)
	b.must(err)
	return res
}

// keepsLines asserts that an accept of a cell as it is leaves the user's last line in the source.
func (b *bed) keepsLines(what, name string) {
	b.Helper()
	_, err := b.accept(name, api.AcceptRequest{Force: true, Reason: "a test"})
	if text := b.source("f"); !strings.HasSuffix(text, "five\n") {
		b.Errorf("%s: an accept (%v) makes the source %q", what, err, text)
	}
}

// A result that is had back after its rest was discarded does not remove what a merge kept of the user's.
func TestMergedPartIsHadBack(t *testing.T) {
	b := mergeBed(t)
	b.must(second(b.accept("w", api.AcceptRequest{Merge: true, Paths: []string{"f"}})))
	if b.source("f") != mergedText {
		t.Fatalf("merged is %q", b.source("f"))
	}
	b.must(second(b.results.Discard(b.ctx, b.cellTarget("w"), api.DiscardRequest{})))
	b.has("w", "f: "+strings.TrimSpace(mergedText), "g: 0")
	if left, _ := b.shown(b.cellTarget("w")); len(left) > 0 {
		t.Errorf("after the discard diff shows %q", left)
	}
	b.must(second(b.results.Restore(b.ctx, b.id("w"), api.RestoreRequest{Number: 2, Lose: true})))
	b.keepsLines("had back", "w")
	b.verified()
}

// A merge that was taken back leaves the cell without the user's lines, which are no change of the cell.
func TestMergeThatIsTakenBack(t *testing.T) {
	b := mergeBed(t)
	b.must(second(b.accept("w", api.AcceptRequest{Merge: true})))
	b.must(second(b.results.Revert(b.ctx, b.cellTarget("w"), api.RevertRequest{})))
	b.keepsLines("taken back", "w")
	b.must(second(b.accept("w", api.AcceptRequest{Merge: true})))
	b.wantFiles("merged again", map[string]string{"f": mergedText, "g": "1\n"})
	b.verified()
}

// A checkpoint from before a sync never got the user's lines: it does not remove them, also when what has them was
// accepted since.
func TestCheckpointsBeforeASync(t *testing.T) {
	b := mergeBed(t)
	if res := b.sync("w", api.SyncRequest{}); len(res.Merged) != 1 || res.Merged[0].Conflicts > 0 {
		t.Fatalf("synced: %+v", res)
	}
	b.must(second(b.accept("w", api.AcceptRequest{})))
	if b.source("f") != mergedText {
		t.Fatalf("accepted is %q", b.source("f"))
	}
	b.must(second(b.Fork(b.ctx, b.id("w"), api.ForkRequest{Count: 1, Number: 2, Name: "x"})))
	b.keepsLines("in a fork", "x")
	b.must(second(b.results.Restore(b.ctx, b.id("w"), api.RestoreRequest{Number: 2, Lose: true})))
	b.keepsLines("restored", "w")
	b.must(second(b.accept("w", api.AcceptRequest{Merge: true, Force: true, Reason: "a test"})))
	if b.source("f") != mergedText {
		t.Errorf("merged again is %q", b.source("f"))
	}
	b.verified()
}

// What a sync brought and the user took back is not written into the source again by an accept that has nothing to write.
func TestSyncedChangesThatAreTakenBack(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0", "g: 0")
	b.run("w", "echo 1 > f")
	b.must(second(b.accept("w", api.AcceptRequest{})))
	b.write("g", "mine\n")
	b.write("n", "mine\n")
	if res := b.sync("w", api.SyncRequest{}); !slices.Equal(res.Synced, []string{"g", "n"}) {
		t.Fatalf("synced: %+v", res)
	}
	b.write("g", "0")
	b.must(os.Remove(filepath.Join(b.src, "n")))
	_, err := b.accept("w", api.AcceptRequest{})
	b.wantFiles(fmt.Sprint("accepted (", err, ")"), map[string]string{"f": "1\n", "g": "0"})
	if res := b.sync("w", api.SyncRequest{}); !slices.Equal(res.Synced, []string{"g", "n"}) {
		t.Errorf("synced again: %+v", res)
	}
	b.has("w", "f: 1", "g: 0")
}

// A discard takes what the source became with a sync for the source's.
func TestDiscardAfterASync(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0", "g: 0", "gone: 0")
	b.run("w", "echo 1 > f")
	b.write("g", "mine\n")
	b.must(os.Remove(filepath.Join(b.src, "gone")))
	b.sync("w", api.SyncRequest{})
	b.must(second(b.results.Discard(b.ctx, b.cellTarget("w"), api.DiscardRequest{})))
	if left, _ := b.shown(b.cellTarget("w")); len(left) > 0 {
		t.Errorf("after the discard diff shows %q", left)
	}
	b.write("g", "0\n")
	b.write("gone", "0\n")
	_, err := b.accept("w", api.AcceptRequest{})
	b.wantFiles(fmt.Sprint("accepted (", err, ")"), map[string]string{"f": "0", "g": "0\n", "gone": "0\n"})
}

// A sync leaves a folder that the cell made in the place of a file which the source lost, and merges a file into a folder
// that one side made; of a file with two names it brings both.
func TestSyncOfFoldersAndRenames(t *testing.T) {
	t.Parallel()
	testenv.Program(t, "git")
	text := func(first, last string) string { return first + "\na\nb\nc\nd\ne\n" + last + "\n" }
	b := newBed(t, "build: 0")
	b.write("f", text("1", "2"))
	b.run("w", "rm build; mkdir build; echo 1 > build/x; (echo one; echo a; echo b; echo c; echo d; echo e; echo 2) > f")
	b.must(os.Remove(filepath.Join(b.src, "build")))
	b.must(os.Remove(filepath.Join(b.src, "f")))
	b.write("new/f", text("1", "two"))
	res := b.sync("w", api.SyncRequest{Paths: []string{"new"}})
	if len(res.Merged) != 1 || !slices.Equal(res.Synced, []string{"f", "new/f"}) {
		t.Errorf("synced: %+v", res)
	}
	has := []string{"build/x: 1", "new/f: " + strings.TrimSpace(text("one", "two"))}
	b.has("w", has...)
	if left, _ := b.shown(b.cellTarget("w")); slices.Contains(left, "f") {
		t.Errorf("diff shows %q", left)
	}
	b.sync("w", api.SyncRequest{})
	b.has("w", has...)
	b.must(second(b.accept("w", api.AcceptRequest{})))
	b.wantFiles("accepted", map[string]string{"build/x": "1\n", "new/f": text("one", "two")})

	c := newBed(t) // and the other way
	c.write("f", text("1", "2"))
	c.run("w", "mkdir new; rm f; (echo one; echo a; echo b; echo c; echo d; echo e; echo 2) > new/f")
	c.write("f", text("1", "two"))
	c.must(second(c.accept("w", api.AcceptRequest{Merge: true})))
	c.wantFiles("merged", map[string]string{"new/f": text("one", "two")})
	c.must(second(c.results.Revert(c.ctx, c.cellTarget("w"), api.RevertRequest{})))
	c.wantFiles("taken back", map[string]string{"f": text("1", "two")})
}

// A merge that comes to what the source has is accepted, and not shown again.
func TestMergeThatTheSourceHas(t *testing.T) {
	b := mergeBed(t)
	b.write("f", mergedText)
	b.must(second(b.accept("w", api.AcceptRequest{Merge: true})))
	if left, _ := b.shown(b.cellTarget("w")); len(left) > 0 {
		t.Errorf("diff shows %q", left)
	}
	b.wantFiles("accepted", map[string]string{"f": mergedText, "g": "1\n"})
}

// A part of the source that was brought is all that is known anew of it.
func TestSyncOfAPart(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0", "g: 0", "h: 0")
	b.run("w", "echo 1 > f; echo 1 > h")
	b.must(second(b.accept("w", api.AcceptRequest{Paths: []string{"f"}})))
	b.write("f", "mine\n")
	b.write("g", "mine\n")
	if res := b.sync("w", api.SyncRequest{Paths: []string{"g"}}); !slices.Equal(res.Synced, []string{"g"}) {
		t.Errorf("synced: %+v", res)
	}
	b.must(second(b.results.Discard(b.ctx, b.cellTarget("w"), api.DiscardRequest{})))
	b.has("w", "f: 1", "g: mine", "h: 0")
	b.write("f", "1\n")
	b.must(second(b.results.Revert(b.ctx, b.cellTarget("w"), api.RevertRequest{})))
	b.wantFiles("taken back", map[string]string{"f": "0", "g": "mine\n", "h": "0"})
}

// What the cell moved of the user's is not taken away by a checkpoint that never had it.
func TestMovedFilesOfTheUser(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0", "z: 0")
	b.run("w", "true")
	b.write("n", "mine\n")
	b.sync("w", api.SyncRequest{})
	b.run("w", "mkdir d; mv n d/n")
	b.must(second(b.accept("w", api.AcceptRequest{})))
	b.must(second(b.Fork(b.ctx, b.id("w"), api.ForkRequest{Count: 1, Number: 1, Name: "x"})))
	b.run("x", "echo 1 > z")
	b.must(second(b.accept("x", api.AcceptRequest{})))
	b.wantFiles("accepted", map[string]string{"f": "0", "z": "1\n", "d/n": "mine\n"})
}

// What the user did, too, is the user's: it stays when the cell's own is undone, and after.
func TestTheSameChangeOnBothSides(t *testing.T) {
	t.Parallel()
	b := newBed(t, "p: 0", "q: 0", "z: 0")
	b.run("w", "echo 1 > p; echo 1 > q")
	b.write("p", "1\n")
	b.must(second(b.accept("w", api.AcceptRequest{})))
	b.must(second(b.results.Undo(b.ctx, b.id("w"), api.UndoRequest{})))
	b.wantFiles("undone", map[string]string{"p": "1\n", "q": "0", "z": "0"})
	b.run("w", "echo 1 > z")
	b.must(second(b.accept("w", api.AcceptRequest{})))
	b.wantFiles("accepted", map[string]string{"p": "1\n", "q": "0", "z": "1\n"})
}

// An earlier run that is accepted after a sync brings no lines back that the user took out meanwhile.
func TestEarlierRunAfterASync(t *testing.T) {
	b := mergeBed(t)
	b.sync("w", api.SyncRequest{})
	b.write("f", "1\n2\n3\n4\n5\n")
	run := b.reg.LatestResult(b.id("w"))
	b.must(second(b.results.Accept(b.ctx, result.Target{Run: run.RunID()}, api.AcceptRequest{Apply: true})))
	_, err := b.accept("w", api.AcceptRequest{})
	if text := b.source("f"); strings.Contains(text, "five") {
		t.Errorf("accepted (%v), the source has %q", err, text)
	}
}

// A merge that is taken back after a sync brought it into the cell is a change of the cell again.
func TestSyncedMergeIsTakenBack(t *testing.T) {
	b := mergeBed(t)
	b.must(second(b.accept("w", api.AcceptRequest{Merge: true})))
	b.write("h", "mine\n")
	b.sync("w", api.SyncRequest{})
	b.has("w", "f: "+strings.TrimSpace(mergedText), "g: 1", "h: mine")
	b.must(second(b.results.Revert(b.ctx, b.cellTarget("w"), api.RevertRequest{})))
	if left, _ := b.shown(b.cellTarget("w")); !slices.Equal(left, []string{"f", "g"}) {
		t.Errorf("taken back, diff shows %q", left)
	}
	if d, err := b.results.Diff(b.ctx, result.DiffRequest{Target: b.cellTarget("w"), Form: "patch"}); err != nil || strings.Contains(d.Text, "five\n+") || strings.Contains(d.Text, "+five") {
		t.Errorf("the patch is %q, %v", d.Text, err)
	}
	b.must(second(b.accept("w", api.AcceptRequest{})))
	b.wantFiles("accepted again", map[string]string{"f": mergedText, "g": "1\n", "h": "mine\n"})
	b.verified()
}

// Names that were picked one by one are names, and no patterns: a cell chooses them.
func TestExactPaths(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0", "d: 0")
	b.run("w", "echo 1 > '*'; echo 1 > f; rm d; mkdir d; echo 1 > d/evil")
	_, err := b.accept("w", api.AcceptRequest{Paths: []string{"d"}, Exact: true})
	b.wantKind("a file that became a folder", err, cell.Invalid, "cannot take d without d/evil")
	b.must(second(b.accept("w", api.AcceptRequest{Paths: []string{"*"}, Exact: true})))
	b.wantFiles("picked", map[string]string{"f": "0", "d": "0", "*": "1\n"})
}

// What was accepted of a later checkpoint, and was in the one that a discard goes back to as well, stays in common.
func TestDiscardToWhatWasApplied(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0", "g: 0", "h: 0")
	b.run("w", "true")
	b.write("h", "mine\n")
	b.sync("w", api.SyncRequest{})
	b.run("w", "echo 1 > f")
	b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{})))
	b.run("w", "echo 1 > g")
	b.must(second(b.accept("w", api.AcceptRequest{Paths: []string{"f"}})))
	b.must(second(b.results.Discard(b.ctx, b.cellTarget("w"), api.DiscardRequest{})))
	b.has("w", "f: 1", "g: 0", "h: mine")
	if left, _ := b.shown(b.cellTarget("w")); len(left) > 0 {
		t.Errorf("diff shows %q", left)
	}
}

// What was applied, and was taken back by hand and so by a sync, is in common as it is now.
func TestDiscardOfWhatWasTakenBackByHand(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0", "g: 0")
	b.run("w", "echo 1 > f; echo 1 > g")
	b.must(second(b.accept("w", api.AcceptRequest{Paths: []string{"f"}})))
	b.write("f", "0")
	b.sync("w", api.SyncRequest{})
	b.has("w", "f: 0", "g: 1")
	b.must(second(b.results.Discard(b.ctx, b.cellTarget("w"), api.DiscardRequest{})))
	b.has("w", "f: 0", "g: 0")
	if left, _ := b.shown(b.cellTarget("w")); len(left) > 0 {
		t.Errorf("diff shows %q", left)
	}
}
