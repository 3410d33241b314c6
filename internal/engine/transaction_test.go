package engine

import (
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/state"
)

// cellTarget is a cell as it is now, "" the one of the newest result that waits.
func (b *bed) cellTarget(name string) result.Target {
	b.Helper()
	id, err := b.All().SelectCell(name, b.src)
	b.must(err)
	return result.Target{Cell: id}
}

func runTarget(r api.Run) result.Target { return result.Target{Run: cell.RunID(r.ID)} }

// shown is what diff says of a target: the paths, and the digest.
func (b *bed) shown(t result.Target) ([]string, string) {
	b.Helper()
	d, err := b.results.Diff(b.ctx, result.DiffRequest{Target: t})
	b.must(err)
	paths := []string{}
	for _, f := range d.Files {
		paths = append(paths, f.Path)
	}
	return paths, d.Digest
}

// verdict is a run's verdict now.
func (b *bed) verdict(r api.Run) string {
	b.Helper()
	now, err := b.Engine.Run(cell.RunID(r.ID))
	b.must(err)
	return now.Verdict
}

// files are the source's.
func (b *bed) files() map[string]string {
	b.Helper()
	out := map[string]string{}
	b.must(filepath.WalkDir(b.src, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(p)
		rel, _ := filepath.Rel(b.src, p)
		out[rel] = string(text)
		return err
	}))
	return out
}

func (b *bed) wantFiles(what string, want map[string]string) {
	b.Helper()
	if got := b.files(); !maps.Equal(got, want) {
		b.Errorf("%s: the source has %q, want %q", what, got, want)
	}
}

// A later run that fails or changes nothing takes nothing away.
func TestX22LaterRunsTakeNothingAway(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	good := b.run("w", "echo 1 > f")
	b.run("w", "echo 2 > f; exit 1")
	b.run("w", "true")
	if paths, _ := b.shown(b.cellTarget("")); !slices.Equal(paths, []string{"f"}) {
		t.Errorf("diff shows %q", paths)
	}
	res, err := b.results.Accept(b.ctx, b.cellTarget(""), api.AcceptRequest{Apply: true})
	if err != nil || len(res.Runs) != 1 || res.Runs[0].ID != good.ID || b.source("f") != "1\n" {
		t.Errorf("%+v, %v; the source has %q", res, err, b.source("f"))
	}

	// Without names each run has a cell of its own; a later one may have a cell that stays.
	fix := b.run("", "echo 3 > f")
	b.run("", "true")
	b.run("", "exit 1")
	b.run("v", "true")
	b.run("v", "echo 4 > f; exit 1")
	if paths, _ := b.shown(b.cellTarget("")); !slices.Equal(paths, []string{"f"}) {
		t.Errorf("diff shows %q", paths)
	}
	b.must(second(b.results.Accept(b.ctx, b.cellTarget(""), api.AcceptRequest{Apply: true})))
	if b.verdict(fix) != "accepted" || b.source("f") != "3\n" {
		t.Errorf("the fix is %s; the source has %q", b.verdict(fix), b.source("f"))
	}
	b.verified()
}

// What was looked at is what is applied: of a cell all its results, of a run that run's.
func TestX51WhatIsShownIsWhatIsApplied(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	one := b.run("w", "echo 1 > one")
	two := b.run("w", "echo 2 > two")
	b.run("w", "echo hi")

	if paths, _ := b.shown(runTarget(two)); !slices.Equal(paths, []string{"two"}) {
		t.Errorf("of the run, diff shows %q", paths)
	}
	_, digest := b.shown(b.cellTarget("w"))
	three := b.run("w", "echo 3 > three")
	paths, now := b.shown(b.cellTarget("w"))
	if !slices.Equal(paths, []string{"one", "three", "two"}) {
		t.Errorf("of the cell, diff shows %q", paths)
	}
	for _, c := range []struct {
		expect string
		kind   cell.Kind
	}{{digest, cell.Conflict}, {digest[:30], cell.Conflict}, {now[:12], cell.Invalid}, {"sha256:xx", cell.Invalid}, {now + "00", cell.Invalid}} {
		b.wantKind("expecting "+c.expect, second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true, Expect: c.expect})), c.kind)
	}
	b.wantFiles("after refusals", map[string]string{"f": "0"})
	res, err := b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true, Expect: strings.TrimPrefix(now, "sha256:")[:16]})
	b.must(err)
	if !slices.Equal(res.Applied, paths) || res.Digest != now {
		t.Errorf("diff showed %q (%s), and %q (%s) was applied", paths, now, res.Applied, res.Digest)
	}
	for _, r := range []api.Run{one, two, three} {
		if v := b.verdict(r); v != "accepted" {
			t.Errorf("run %v is %s", r.Command, v)
		}
	}
	if p := b.predicate(res.Receipt); p.Digest != now || len(p.Runs) != 3 {
		t.Errorf("the receipt says %+v", p)
	}
	if paths, _ := b.shown(b.cellTarget("w")); len(paths) > 0 {
		t.Errorf("diff still shows %q", paths)
	}

	// Of a run, that run's alone; the earlier one waits.
	four, five := b.run("w", "echo 4 > four"), b.run("w", "echo 5 > five")
	b.wantKind("an earlier run", second(b.results.Accept(b.ctx, runTarget(four), api.AcceptRequest{Apply: true})), cell.Conflict, five.ID)
	b.must(second(b.results.Accept(b.ctx, runTarget(five), api.AcceptRequest{Apply: true})))
	if b.source("five") != "5\n" || b.files()["four"] != "" || b.verdict(four) != "pending" {
		t.Errorf("the source has %q, and the earlier run is %s", b.files(), b.verdict(four))
	}
	if paths, _ := b.shown(b.cellTarget("w")); !slices.Equal(paths, []string{"four"}) {
		t.Errorf("diff shows %q", paths)
	}
	b.verified()
}

// What was taken back by hand is no longer to be taken back: revert says so, and the runs
// wait again.
func TestRevertAfterTakingBackByHand(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0", "g: 0")
	r := b.run("w", "echo 1 > f; echo 1 > g; echo 1 > h")
	b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})))
	b.write("f", "0")
	b.write("g", "0")
	dry, err := b.results.Revert(b.ctx, runTarget(r), api.RevertRequest{DryRun: true})
	b.must(err)
	if !slices.Equal(dry.Reverted, []string{"h"}) || !slices.Equal(dry.Already, []string{"f", "g"}) {
		t.Errorf("of one file in three: %q, already %q", dry.Reverted, dry.Already)
	}
	b.must(os.Remove(filepath.Join(b.src, "h")))
	res, err := b.results.Revert(b.ctx, runTarget(r), api.RevertRequest{})
	b.must(err)
	if len(res.Reverted) != 0 || !slices.Equal(res.Already, []string{"f", "g", "h"}) || b.verdict(r) != "pending" {
		t.Errorf("of none: %q, already %q, and the run is %s", res.Reverted, res.Already, b.verdict(r))
	}
	if p := b.predicate(res.Receipt); !slices.Equal(p.Already, res.Already) || len(p.Reverted) != 0 || !strings.Contains(p.Verdict.Reason, "in the source no more") {
		t.Errorf("the receipt says %+v", p)
	}
	if rec, err := b.All().Receipt(res.Receipt, b.src); err != nil || !strings.Contains(rec.Summary, "nothing was left in the source") {
		t.Errorf("its summary is %q, %v", rec.Summary, err)
	}
	b.wantFiles("after it", map[string]string{"f": "0", "g": "0"})
	b.verified()
	b.wantKind("again", second(b.results.Revert(b.ctx, runTarget(r), api.RevertRequest{})), cell.Conflict, "nothing to take back")
	b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})))
	b.wantFiles("applied again", map[string]string{"f": "1\n", "g": "1\n", "h": "1\n"})
}

// Work of no run is the cell's, too, and gets a receipt.
func TestX51WorkOutsideOfRuns(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.must(second(b.Create(b.ctx, api.CreateRequest{Name: "w", From: b.src, CallerDir: b.src, CallerEnv: []string{"PATH=/usr/bin:/bin"}})))
	b.wantKind("nothing was done", second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{})), cell.Conflict, "nothing to accept")
	b.wantKind("nothing to discard", second(b.results.Discard(b.ctx, b.cellTarget("w"), api.DiscardRequest{})), cell.Conflict, "nothing waits")
	b.must(second(b.StartExec(b.ctx, b.id("w"), api.ExecRequest{Command: []string{"sh", "-c", "echo 1 > f"}, Wait: true})))
	res, err := b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})
	if err != nil || len(res.Runs) != 0 || b.source("f") != "1\n" {
		t.Fatalf("%+v, %v; the source has %q", res, err, b.source("f"))
	}
	if p := b.predicate(res.Receipt); p.Act != "accept" || !slices.Equal(p.Applied, []string{"f"}) {
		t.Errorf("its receipt says %+v", p)
	}
	b.must(second(b.results.Revert(b.ctx, b.cellTarget("w"), api.RevertRequest{})))
	b.wantFiles("taken back", map[string]string{"f": "0"})
	b.verified()
}

// A patch for people has what accept would apply.
func TestX52PatchesHaveWhatIsApplied(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0\n", "tool.sh: #!/bin/sh\n")
	r := b.run("w", "echo 1 > f; mkdir -p .vscode .git/hooks; mv tool.sh .vscode/tasks.json; echo x > .envrc")
	b.write("f", "mine\n")
	err := second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true}))
	b.wantKind("a conflict", err, cell.Conflict, `f`)
	if hint := cell.HintOf(err); strings.Contains(hint, "git apply") {
		t.Errorf("the hint is %q", hint)
	}
	kept, err := os.ReadFile(filepath.Join(r.Folder, "patch"))
	b.must(err)
	for name, patch := range map[string]string{
		"kept": string(kept),
		"cell": b.patch(result.DiffRequest{Target: b.cellTarget("w")}),
		"run":  b.patch(result.DiffRequest{Target: runTarget(r)}),
	} {
		if !strings.Contains(patch, "b/f\n") || !strings.Contains(patch, "--- a/tool.sh\n+++ /dev/null\n") || strings.Contains(patch, "tasks.json") || strings.Contains(patch, ".envrc") {
			t.Errorf("the patch (%s) is\n%s", name, patch)
		}
	}
	d, err := b.results.Diff(b.ctx, result.DiffRequest{Target: b.cellTarget("w"), Form: "patch"})
	if b.must(err); len(d.Held) != 2 {
		t.Errorf("held back: %+v", d.Held)
	}
	if patch := b.patch(result.DiffRequest{Target: b.cellTarget("w"), Include: []string{".envrc"}}); !strings.Contains(patch, ".envrc") || strings.Contains(patch, "tasks.json") {
		t.Errorf("with one included, the patch is\n%s", patch)
	}
}

func (b *bed) patch(req result.DiffRequest) string {
	b.Helper()
	req.Form = "patch"
	d, err := b.results.Diff(b.ctx, req)
	b.must(err)
	return d.Text
}

// What accept applied, revert and undo take back, when the source still has it.
func TestX54WhatWasAppliedIsTakenBack(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0", "gone: there", "d/e: e")
	was := b.files()
	r := b.run("w", "echo 1 > f; rm gone; rm -r d; mkdir -p n; echo n > n/new; echo x > .envrc")
	for what, back := range map[string]func() error{
		"revert of the run":  func() error { return second(b.results.Revert(b.ctx, runTarget(r), api.RevertRequest{})) },
		"revert of the cell": func() error { return second(b.results.Revert(b.ctx, b.cellTarget("w"), api.RevertRequest{})) },
	} {
		b.wantKind(what+" of nothing", back(), cell.Conflict, "nothing to take back")
		b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true, Include: []string{".envrc"}})))
		b.wantFiles(what+": applied", map[string]string{"f": "1\n", "n/new": "n\n", ".envrc": "x\n"})
		b.must(back())
		b.wantFiles(what, was)
		if b.verdict(r) != "pending" {
			t.Errorf("%s: the run is %s", what, b.verdict(r))
		}
	}
	// A second accept with more included is a second thing in the source, of the run and of
	// the cell.
	for i, target := range []result.Target{runTarget(r), b.cellTarget("w")} {
		if i > 0 {
			b.must(second(b.results.Revert(b.ctx, runTarget(r), api.RevertRequest{})))
			b.wantFiles("the first, too", was)
		}
		b.must(second(b.results.Accept(b.ctx, target, api.AcceptRequest{Apply: true})))
		b.must(second(b.results.Accept(b.ctx, target, api.AcceptRequest{Apply: true, Include: []string{".envrc"}})))
		b.wantFiles("both", map[string]string{"f": "1\n", "n/new": "n\n", ".envrc": "x\n"})
		if b.verdict(r) != "accepted" {
			t.Errorf("the run is %s", b.verdict(r))
		}
		b.must(second(b.results.Revert(b.ctx, runTarget(r), api.RevertRequest{})))
		b.wantFiles("the second alone", map[string]string{"f": "1\n", "n/new": "n\n"})
		if b.verdict(r) != "accepted" {
			t.Errorf("the first is in the source, and the run is %s", b.verdict(r))
		}
	}

	// A file that changed since is named, and nothing is touched.
	b.write("f", "mine")
	b.wantKind("a changed file", second(b.results.Revert(b.ctx, runTarget(r), api.RevertRequest{})), cell.Conflict, "f ")
	b.wantKind("a changed file", second(b.results.Undo(b.ctx, b.id("w"), api.UndoRequest{})), cell.Conflict, "f ")
	b.wantFiles("refused", map[string]string{"f": "mine", "n/new": "n\n"})
	b.has("w", "f: 1", "n/new: n", ".envrc: x")
	b.write("f", "1\n")
	dry, err := b.results.Undo(b.ctx, b.id("w"), api.UndoRequest{DryRun: true})
	if err != nil || len(dry.Reverted) != 4 || b.source("f") != "1\n" {
		t.Errorf("dry: %+v, %v", dry, err)
	}
	res, err := b.results.Undo(b.ctx, b.id("w"), api.UndoRequest{})
	if err != nil || len(res.Reverted) != 4 {
		t.Errorf("undo: %+v, %v", res, err)
	}
	b.wantFiles("undone", was)
	b.has("w", "f: 0", "gone: there", "d/e: e")
	if b.verdict(r) != "restored" {
		t.Errorf("the run is %s", b.verdict(r))
	}
	b.verified()
}

// An earlier accept is taken back from under later ones, unless one of these changed the
// same file: what that wrote stays.
func TestX54LaterAcceptsStay(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0", "g: 0")
	accepted := func(script string) api.Run {
		b.Helper()
		r := b.run("w", script)
		b.must(second(b.results.Accept(b.ctx, runTarget(r), api.AcceptRequest{Apply: true})))
		return r
	}
	one := accepted("echo 1 > f; echo 1 > g")
	two, three := accepted("echo 2 > f"), accepted("echo 3 > h")
	now := b.files()
	b.wantKind("changed later", second(b.results.Revert(b.ctx, runTarget(one), api.RevertRequest{})), cell.Conflict, "f was changed by a later accept")
	b.wantFiles("refused", now)
	b.must(second(b.results.Revert(b.ctx, runTarget(two), api.RevertRequest{})))
	b.wantFiles("the second", map[string]string{"f": "1\n", "g": "1\n", "h": "3\n"})
	b.must(second(b.results.Revert(b.ctx, runTarget(one), api.RevertRequest{})))
	b.wantFiles("the first", map[string]string{"f": "0", "g": "0", "h": "3\n"})
	if b.verdict(one) != "pending" || b.verdict(two) != "pending" || b.verdict(three) != "accepted" {
		t.Errorf("the runs are %s, %s and %s", b.verdict(one), b.verdict(two), b.verdict(three))
	}
	b.verified()
}

// undo --keep-source and restore leave the source, and the verdict stays true.
func TestX54VerdictsStayTrue(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	r := b.run("w", "echo 1 > f")
	b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})))
	res, err := b.results.Undo(b.ctx, b.id("w"), api.UndoRequest{KeepSource: true})
	if err != nil || !slices.Equal(res.Applied, []string{r.ID}) || b.source("f") != "1\n" || b.verdict(r) != "accepted" {
		t.Errorf("%+v, %v; the source has %q, and the run is %s", res, err, b.source("f"), b.verdict(r))
	}
	// The source has what the cell has not.
	if paths, _ := b.shown(b.cellTarget("w")); !slices.Equal(paths, []string{"f"}) {
		t.Errorf("diff shows %q", paths)
	}
	b.must(second(b.results.Revert(b.ctx, runTarget(r), api.RevertRequest{})))
	if b.source("f") != "0" || b.verdict(r) != "restored" {
		t.Errorf("the source has %q, and the run is %s", b.source("f"), b.verdict(r))
	}
	// Its files stay with the cell, by which the source is known; the hint does not lead to
	// revert, which has nothing to take back.
	err = second(b.results.Discard(b.ctx, runTarget(r), api.DiscardRequest{Lose: true}))
	if b.wantKind("needed", err, cell.Conflict, "was in the source"); !strings.Contains(cell.HintOf(err), "pando rm w") {
		t.Errorf("the hint is %q", cell.HintOf(err))
	}
	b.verified()
}

// What was applied together is taken back together: a run that is not undone itself waits
// again, and the answer names it.
func TestX54UndoOfOneOfSeveral(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	one, two := b.run("w", "echo 1 > one"), b.run("w", "echo 2 > two")
	b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})))
	res, err := b.results.Undo(b.ctx, b.id("w"), api.UndoRequest{})
	if err != nil || !slices.Equal(res.Reopened, []string{one.ID}) || !slices.Equal(res.Lost, []string{two.ID}) {
		t.Errorf("%+v, %v", res, err)
	}
	b.wantFiles("undone", map[string]string{"f": "0"})
	b.has("w", "f: 0", "one: 1")
	if b.verdict(one) != "pending" || b.verdict(two) != "restored" {
		t.Errorf("the runs are %s and %s", b.verdict(one), b.verdict(two))
	}
	b.verified()
}

// Results of several runs are not thrown away without an answer, and come back together.
func TestX55NothingPendingIsLostUnasked(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	one, two := b.run("w", "echo 1 > f"), b.run("w", "echo 2 > g")
	b.run("w", "true")
	if c, err := b.All().Cell(b.id("w")); err != nil || !slices.Equal(c.Pending, []string{two.ID, one.ID}) {
		t.Errorf("pending: %v, %v", c.Pending, err)
	}
	b.wantKind("unasked", second(b.results.Discard(b.ctx, b.cellTarget("w"), api.DiscardRequest{})), cell.Conflict, one.ID, two.ID)
	res, err := b.results.Discard(b.ctx, b.cellTarget("w"), api.DiscardRequest{Lose: true})
	b.must(err)
	b.has("w", "f: 0")
	for _, r := range []api.Run{one, two} {
		if b.verdict(r) != "discarded" {
			t.Errorf("run %v is %s", r.Command, b.verdict(r))
		}
	}
	back, err := b.results.Restore(b.ctx, b.id("w"), api.RestoreRequest{Number: res.Kept})
	if err != nil || len(back.Reopened) != 2 || b.verdict(one) != "pending" || b.verdict(two) != "pending" {
		t.Errorf("%+v, %v", back, err)
	}
	b.has("w", "f: 1", "g: 2")
	b.verified()
}

// What is kept of a failed or discarded run can be given up, and what it holds is free.
func TestX27KeptResultsAreGivenUp(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	failed := b.run("w", "head -c 3000000 /dev/zero > big; exit 1")
	if hint := b.gc.Hint(); !strings.Contains(hint, "pando discard "+failed.ID) {
		t.Errorf("the hint is %q", hint)
	}
	layers := len(b.layers())
	dry, err := b.results.Discard(b.ctx, runTarget(failed), api.DiscardRequest{DryRun: true})
	if err != nil || dry.Freed < 3_000_000 || len(b.layers()) != layers || b.verdict(failed) != "restored" {
		t.Errorf("dry: %+v, %v", dry, err)
	}
	b.wantKind("unasked", second(b.results.Discard(b.ctx, runTarget(failed), api.DiscardRequest{})), cell.Conflict, "for good")
	res, err := b.results.Discard(b.ctx, runTarget(failed), api.DiscardRequest{Lose: true})
	if err != nil || res.Freed != dry.Freed || len(b.layers()) >= layers || b.verdict(failed) != "discarded" {
		t.Errorf("%+v, %v; %d layers, there were %d", res, err, len(b.layers()), layers)
	}
	b.wantKind("once more", second(b.results.Discard(b.ctx, runTarget(failed), api.DiscardRequest{})), cell.Conflict, "nothing is kept")
	b.wantKind("back", second(b.results.Restore(b.ctx, b.id("w"), api.RestoreRequest{Number: failed.After.Number, Lose: true})), cell.NotFound)

	// What is in the workspace, in a fork or in the source is not free to go.
	kept := b.run("w", "echo 1 > f; exit 1")
	b.must(second(b.results.Restore(b.ctx, b.id("w"), api.RestoreRequest{Number: kept.After.Number})))
	b.must(second(b.Fork(b.ctx, b.id("w"), api.ForkRequest{Name: "child"})))
	b.must(second(b.results.Undo(b.ctx, b.id("w"), api.UndoRequest{})))
	b.must(second(b.results.Discard(b.ctx, runTarget(kept), api.DiscardRequest{Lose: true})))
	b.has("child", "f: 1")
	b.must(second(b.results.Accept(b.ctx, b.cellTarget("child"), api.AcceptRequest{Apply: true, Force: true, Reason: "a test"})))
	if b.source("f") != "1\n" {
		t.Errorf("the source has %q", b.source("f"))
	}
	b.verified()
}

// --include of what did not change is a mistake.
func TestX34IncludeNamesAChange(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("w", "echo 1 > f; echo x > .envrc")
	b.wantKind("a typing error", second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true, Include: []string{".enwrc"}})), cell.Invalid, ".enwrc")
	b.wantFiles("refused", map[string]string{"f": "0"})
	b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true, Include: []string{"f", ".envrc"}})))
}

// A run that changed times alone is accepted and asks for nothing. (Of git's index:
// x29-clean-is-clean.)
func TestX34NothingOfSubstance(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0", "d/g: g")
	for _, script := range []string{"printf 0 > f", "printf g > d/g; printf 0 > f", "echo x > d/tmp; rm d/tmp"} {
		for _, name := range []string{"w", ""} {
			if r := b.run(name, script); r.Verdict != "accepted" || r.Reason != "no changes" {
				t.Errorf("%q in cell %q is %s, %s", script, name, r.Verdict, r.Reason)
			}
		}
	}
	for _, script := range []string{"printf 1 > f", "rm d/g", "mkdir empty", "rm -r empty"} {
		if r := b.run("w", script); r.Verdict != "pending" {
			t.Errorf("%q is %s, %s", script, r.Verdict, r.Reason)
		}
	}
	b.verified()
}

// What was taken back by hand is applied again.
func TestX34TakenBackByHand(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("w", "echo 1 > f")
	b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})))
	b.write("f", "0")
	res, err := b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})
	if err != nil || !slices.Equal(res.Applied, []string{"f"}) || b.source("f") != "1\n" {
		t.Errorf("%+v, %v; the source has %q", res, err, b.source("f"))
	}
}

// accept takes no run with other records than its receipt says.
func TestX24AlteredRecordsAreNotAccepted(t *testing.T) {
	t.Parallel()
	for name, alter := range map[string]func(b *bed, r *state.Run){
		"output": func(b *bed, r *state.Run) {
			b.must(os.WriteFile(filepath.Join(r.Folder, "stdout"), []byte("all tests pass\n"), 0o600))
		},
		"patch":   func(b *bed, r *state.Run) { b.must(os.WriteFile(filepath.Join(r.Folder, "patch"), nil, 0o600)) },
		"command": func(_ *bed, r *state.Run) { r.Command = []string{"make", "test"} },
		"backend": func(_ *bed, r *state.Run) { r.Backend = "gvisor" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, "f: 0")
			r := b.run("w", "echo out; echo 1 > f")
			forged, err := b.reg.Run(cell.RunID(r.ID))
			b.must(err)
			alter(b, &forged)
			b.must(b.reg.Commit(&forged))
			for _, target := range []result.Target{runTarget(r), b.cellTarget("w")} {
				b.wantKind(name, second(b.results.Accept(b.ctx, target, api.AcceptRequest{Apply: true})), cell.Corrupt, r.ID)
			}
			b.wantFiles(name, map[string]string{"f": "0"})
		})
	}
}

// TestTransactions makes random histories, and holds: what was shown is what is applied;
// nothing that waits is lost without an answer; every run has one verdict, which its
// receipts say; taking back gives the source its bytes; files that were changed in the
// source stay as they are.
func TestTransactions(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue && os.Getenv("E2E_SOAK") == "" { // each takes half a second
		if err := f.Value.Set("15"); err != nil {
			t.Fatal(err)
		}
		defer f.Value.Set(f.DefValue)
	}
	rapid.Check(t, func(rt *rapid.T) {
		h := &history{bed: newBed(t, "a: 0", "b: 0", "d/c: 0"), rt: rt, cells: []string{"w"}}
		h.run("w", "true")
		rt.Repeat(map[string]func(*rapid.T){
			"":        func(*rapid.T) { h.check() },
			"run":     func(*rapid.T) { h.run(h.cell(), h.script()) },
			"fail":    func(*rapid.T) { h.run(h.cell(), h.script()+"; exit 1") },
			"exec":    func(*rapid.T) { h.exec() },
			"live":    func(*rapid.T) { h.live() },
			"edit":    func(*rapid.T) { h.edit() },
			"accept":  func(*rapid.T) { h.accept(h.cell()) },
			"revert":  func(*rapid.T) { h.revert(h.cell()) },
			"undo":    func(*rapid.T) { h.undo() },
			"sync":    func(*rapid.T) { h.sync() },
			"discard": func(*rapid.T) { h.discard() },
			"give up": func(*rapid.T) { h.giveUp() },
			"fork":    func(*rapid.T) { h.fork() },
			"daemon":  func(*rapid.T) { h.reopen() },
		})
		h.verified()
		for _, c := range h.reg.Cells() {
			h.must(second(h.Remove(h.ctx, c.ID, false)))
		}
		h.closed = true
		h.close()
		h.host.Wait()
	})
}

type history struct {
	*bed
	rt      *rapid.T
	cells   []string
	runs    []api.Run
	accepts []accept // of all cells, that changed the source, oldest first
	acts    []string // what was done, printed with a failure
}

func (h *history) did(format string, args ...any) {
	h.acts = append(h.acts, fmt.Sprintf(format, args...))
}

// accept is what the source's files were before it, and after: path, and content, "" for none.
type accept struct {
	id       string // of what the cell's record has of it
	old, new map[string]string
}

func (h *history) cell() string { return rapid.SampledFrom(h.cells).Draw(h.rt, "cell") }

// script changes a file or two.
func (h *history) script() string {
	var lines []string
	for range rapid.IntRange(1, 2).Draw(h.rt, "changes") {
		name := rapid.SampledFrom([]string{"a", "b", "d/c", "n", "d/n"}).Draw(h.rt, "file")
		if rapid.Bool().Draw(h.rt, "remove") {
			lines = append(lines, "rm -f "+name)
		} else {
			lines = append(lines, fmt.Sprintf("mkdir -p d; echo %d > %s", rapid.IntRange(0, 3).Draw(h.rt, "text"), name))
		}
	}
	return strings.Join(lines, "; ")
}

func (h *history) run(name, script string) {
	h.did("run %s: %s", name, script)
	h.runs = append(h.runs, h.bed.run(name, script))
}

func (h *history) exec() {
	name, script := h.cell(), h.script()
	h.did("exec %s: %s", name, script)
	h.must(second(h.StartExec(h.ctx, h.id(name), api.ExecRequest{Command: []string{"sh", "-c", script}, Wait: true})))
}

// edit changes the source behind pando's back.
func (h *history) edit() {
	name, text := rapid.SampledFrom([]string{"a", "b", "mine"}).Draw(h.rt, "file"), fmt.Sprint("edited ", rapid.IntRange(0, 3).Draw(h.rt, "text"))
	h.did("edit %s: %s", name, text)
	h.write(name, text)
}

// waiting are the runs that wait for a verdict.
func (h *history) waiting() map[string]bool {
	out := map[string]bool{}
	for _, r := range h.runs {
		if h.verdict(r) == "pending" {
			out[r.ID] = true
		}
	}
	return out
}

// lost fails when a run that waited does not any more, and no answer names it.
func (h *history) lost(before map[string]bool, named []string) {
	now := h.waiting()
	for id := range before {
		if !now[id] && !slices.Contains(named, id) {
			h.Errorf("run %s waits no more, and the answer names %q", id, named)
		}
	}
}

func ids(runs []api.Run) (out []string) {
	for _, r := range runs {
		out = append(out, r.ID)
	}
	return out
}

// live is a run of which some is taken, or taken back, while it goes on.
func (h *history) live() {
	name, end := h.cell(), ""
	if rapid.Bool().Draw(h.rt, "fails") {
		end = "; exit 1"
	}
	first, then := h.script(), h.script()+end
	h.did("begin a run of %s: %s; then %s", name, first, then)
	r, goOn := h.begin(name, first, then)
	for range rapid.IntRange(1, 2).Draw(h.rt, "acts") {
		switch rapid.IntRange(0, 3).Draw(h.rt, "act") {
		case 0:
			h.revert(name)
		case 1:
			h.edit()
		default:
			h.accept(name)
		}
	}
	h.did("and go on")
	h.runs = append(h.runs, goOn())
	if taken := len(h.takenOf(name, r)) > 0; taken && h.verdict(r) == "restored" {
		h.Errorf("run %s was restored, and a part of it is in the source", r.ID)
	}
}

// takenOf is what was applied of a run while it went on.
func (h *history) takenOf(name string, r api.Run) []state.Applied {
	c, err := h.reg.Cell(h.id(name))
	h.must(err)
	return c.TakenDuring(cell.RunID(r.ID))
}

func (h *history) accept(name string) {
	before, source := h.waiting(), h.files()
	d, err := h.results.Diff(h.ctx, result.DiffRequest{Target: h.cellTarget(name)})
	h.must(err)
	req := api.AcceptRequest{Apply: true, Force: true, Reason: "a test", Expect: d.Digest, Merge: rapid.Bool().Draw(h.rt, "merge")}
	chosen := map[string]bool{}
	if len(d.Files) > 0 && rapid.Bool().Draw(h.rt, "a part") {
		for _, f := range d.Files {
			if f.OldPath == "" && rapid.Bool().Draw(h.rt, "of it") {
				req.Paths, chosen[f.Path] = append(req.Paths, f.Path), true
			}
		}
	}
	res, err := h.results.Accept(h.ctx, h.cellTarget(name), req)
	now := h.files()
	h.did("accept %s, merge %v, paths %q of %+v: applied %q, merged %+v, %v", name, req.Merge, req.Paths, d.Files, res.Applied, res.Merged, err)
	if err != nil {
		if !maps.Equal(source, now) || cell.KindOf(err) != cell.Conflict && cell.KindOf(err) != cell.Invalid {
			h.Errorf("refused with %v, and the source became %q from %q", err, now, source)
		}
		h.lost(before, nil)
		return
	}
	h.lost(before, ids(res.Runs))
	if left, _ := h.bed.shown(h.cellTarget(name)); len(req.Paths) == 0 && len(left) > 0 {
		h.Errorf("all of %s was accepted, and diff shows %q", name, left)
	}
	for _, f := range res.Merged {
		if !req.Merge || !slices.Contains(res.Applied, f.Path) && source[f.Path] != now[f.Path] {
			h.Errorf("%+v is said to be merged, of %q", f, res.Applied)
		}
	}
	shown := map[string]bool{}
	for _, f := range d.Files {
		shown[f.Path], shown[f.OldPath] = true, true
	}
	for _, f := range res.Merged { // the source may have it under another name
		shown[f.Path] = true
		for _, p := range f.Also {
			shown[p] = true
		}
	}
	old, became := map[string]string{}, map[string]string{}
	for p := range union(source, now) {
		if source[p] == now[p] {
			continue
		}
		if len(req.Paths) > 0 && !chosen[p] && !slices.ContainsFunc(res.Merged, func(f api.Merged) bool { return f.Path == p || slices.Contains(f.Also, p) }) {
			h.Errorf("%s was changed in the source, and was not chosen: %q", p, req.Paths)
		}
		if !shown[p] && len(d.Files) > 0 {
			h.Errorf("%s was changed in the source, and diff shows %+v", p, d.Files)
		}
		if !slices.Contains(res.Applied, p) {
			h.Errorf("%s was changed in the source, and the answer says %q", p, res.Applied)
		}
		old[p], became[p] = source[p], now[p]
	}
	if len(old) > 0 {
		list := h.applied(name)
		h.accepts = append(h.accepts, accept{list[len(list)-1].ID, old, became})
	}
	for _, p := range res.Applied {
		if _, changed := old[p]; !changed {
			h.Errorf("%s is said to be applied, and is as it was", p)
		}
	}
}

func union(a, b map[string]string) map[string]bool {
	all := map[string]bool{}
	for p := range a {
		all[p] = true
	}
	for p := range b {
		all[p] = true
	}
	return all
}

// applied is what of a cell's work is in the source.
func (h *history) applied(name string) []state.Applied {
	c, err := h.reg.Cell(h.id(name))
	h.must(err)
	return c.Applied
}

// tookBack checks that the source is what it was without the accepts of a cell that its record
// has no more: they need not be its newest, since undo takes back what the checkpoint that it
// goes to does not come of. A file that a later accept of the cell changed is left to that, and one that they changed and
// changed back is whatever it is: another cell's accept may have written it since.
func (h *history) tookBack(name string, was []state.Applied, source map[string]string) {
	left := map[string]bool{}
	for _, a := range h.applied(name) {
		left[a.ID] = true
	}
	kept := map[string]bool{}    // paths
	last := map[string]string{}  // what the newest of those taken back wrote
	first := map[string]string{} // what was there before the oldest
	for _, a := range slices.Backward(was) {
		at := slices.IndexFunc(h.accepts, func(x accept) bool { return x.id == a.ID })
		if at < 0 {
			h.Errorf("%s is in a record, and was not applied", a.ID)
			return
		}
		for p, text := range h.accepts[at].old {
			switch {
			case left[a.ID]:
				kept[p] = true
			case kept[p]:
			default:
				if _, later := last[p]; !later {
					last[p] = h.accepts[at].new[p]
				}
				first[p] = text
			}
		}
	}
	for p, text := range first {
		switch {
		case text == last[p]:
		case text == "":
			delete(source, p)
		default:
			source[p] = text
		}
	}
	h.wantFiles("taken back", source)
}

func (h *history) revert(name string) {
	before, source, was := h.waiting(), h.files(), h.applied(name)
	res, err := h.results.Revert(h.ctx, h.cellTarget(name), api.RevertRequest{})
	h.did("revert %s: %q, already %q, %v", name, res.Reverted, res.Already, err)
	h.lost(before, nil)
	if err != nil {
		h.wantKind("revert", err, cell.Conflict)
		h.wantFiles("refused", source)
		return
	}
	if n := len(h.applied(name)); n != len(was)-1 {
		h.Errorf("%d were applied, and %d after one was taken back", len(was), n)
	}
	h.tookBack(name, was, source)
}

// sync brings in what became of the source: that is no change of the cell, and none of the source.
func (h *history) sync() {
	name := h.cell()
	before, source := h.waiting(), h.files()
	compare := func() map[string]bool {
		d, err := h.results.Diff(h.ctx, result.DiffRequest{Target: h.cellTarget(name)})
		h.must(err)
		paths := map[string]bool{}
		for _, f := range d.Files {
			paths[f.Path], paths[f.OldPath] = true, true
		}
		return paths
	}
	shown := compare()
	res, err := h.results.Sync(h.ctx, h.id(name), api.SyncRequest{NoConflicts: rapid.Bool().Draw(h.rt, "no conflicts")})
	h.did("sync %s: %q, merged %+v, %v", name, res.Synced, res.Merged, err)
	h.lost(before, nil)
	h.wantFiles("synced", source)
	if err != nil {
		h.wantKind("sync", err, cell.Conflict)
	}
	for p := range compare() {
		if !shown[p] && !slices.ContainsFunc(res.Merged, func(f api.Merged) bool { return f.Path == p || slices.Contains(f.Also, p) }) {
			h.Errorf("%s is a change of %s after a sync (%+v, %v), and was none before: %v", p, name, res, err, shown)
		}
	}
}

func (h *history) undo() {
	name := h.cell()
	before, source := h.waiting(), h.files()
	c, err := h.reg.Cell(h.id(name))
	h.must(err)
	req := api.UndoRequest{Lose: rapid.Bool().Draw(h.rt, "lose")}
	if head, err := h.reg.Checkpoint(c.Head); err == nil && head.Number > 1 {
		req.To = rapid.IntRange(0, head.Number-1).Draw(h.rt, "to")
	}
	res, err := h.results.Undo(h.ctx, c.ID, req)
	h.did("undo %s to %d: at %d, reverted %q, %v", name, req.To, res.Number, res.Reverted, err)
	if err != nil {
		if cell.KindOf(err) != cell.NotFound || req.To == 0 { // a number that another line of the cell has
			h.wantKind("undo", err, cell.Conflict)
		}
		h.wantFiles("refused", source)
		h.lost(before, nil)
		return
	}
	h.lost(before, res.Lost)
	k, err := h.reg.Numbered(c.ID, res.Number)
	h.must(err)
	from := map[cell.CheckpointID]bool{}
	for id := k.ID; id != ""; {
		from[id] = true
		k, err := h.reg.Checkpoint(id)
		h.must(err)
		id = k.Parent
	}
	for _, a := range h.applied(name) {
		if !from[a.Checkpoint] {
			h.Errorf("%s is in the source, and the cell is back at %d, which does not come of it", a.ID, res.Number)
		}
	}
	for _, a := range c.Applied {
		left := slices.ContainsFunc(h.applied(name), func(l state.Applied) bool { return l.ID == a.ID })
		if from[a.Checkpoint] && !left {
			h.Errorf("%s was taken back, and the cell is back at %d, which comes of it", a.ID, res.Number)
		}
	}
	h.tookBack(name, c.Applied, source)
}

func (h *history) discard() {
	name := h.cell()
	before, source, shown := h.waiting(), h.files(), h.shown(name)
	res, err := h.results.Discard(h.ctx, h.cellTarget(name), api.DiscardRequest{Lose: true})
	h.did("discard %s: runs %q, %v", name, ids(res.Runs), err)
	h.wantFiles("discard", source)
	if err != nil {
		h.wantKind("discard", err, cell.Conflict)
		h.lost(before, nil)
		return
	}
	h.lost(before, ids(res.Runs))
	for p := range h.shown(name) {
		for _, a := range h.applied(name) { // what was applied, is in the source and was in the cell stays there
			at := slices.IndexFunc(h.accepts, func(x accept) bool { return x.id == a.ID })
			if text, is := h.accepts[at].new[p]; is && text == source[p] && !shown[p] {
				h.Errorf("after the discard the cell differs in %s, which %s brought into the source", p, a.ID)
			}
		}
	}
}

// shown are the paths that diff of a cell shows.
func (h *history) shown(name string) map[string]bool {
	d, err := h.results.Diff(h.ctx, result.DiffRequest{Target: h.cellTarget(name)})
	h.must(err)
	paths := map[string]bool{}
	for _, f := range d.Files {
		paths[f.Path] = true
		if f.OldPath != "" {
			paths[f.OldPath] = true
		}
	}
	return paths
}

// giveUp discards a run with a kept result.
func (h *history) giveUp() {
	r := rapid.SampledFrom(h.runs).Draw(h.rt, "run")
	if v := h.verdict(r); v != "restored" && v != "discarded" {
		return
	}
	before, source := h.waiting(), h.files()
	h.did("discard run %s", r.ID)
	if _, err := h.results.Discard(h.ctx, runTarget(r), api.DiscardRequest{Lose: true}); err != nil {
		h.wantKind("give up", err, cell.Conflict)
	}
	h.wantFiles("give up", source)
	h.lost(before, nil)
}

func (h *history) fork() {
	if len(h.cells) > 2 {
		return
	}
	name := fmt.Sprint("f", len(h.cells))
	from := h.cell()
	h.did("fork %s as %s", from, name)
	if _, err := h.Fork(h.ctx, h.id(from), api.ForkRequest{Name: name}); err != nil {
		h.Errorf("fork: %v", err)
		return
	}
	h.cells = append(h.cells, name)
}

// check is what holds at any time.
func (h *history) check() {
	for _, r := range h.runs {
		now, err := h.reg.Run(cell.RunID(r.ID))
		h.must(err)
		if _, problems, _ := h.evidence.VerifyRun(&now); len(problems) > 0 {
			h.Errorf("run %s (%s): %+v", r.ID, now.Verdict, problems)
		}
		switch now.Verdict {
		case "pending", "accepted", "restored", "discarded", "forked":
		default:
			h.Errorf("run %s has verdict %q", r.ID, now.Verdict)
		}
	}
	if h.Failed() {
		h.rt.Fatalf("see above, after\n%s", strings.Join(h.acts, "\n"))
	}
}
