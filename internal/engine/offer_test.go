package engine

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
)

// A later run that waits and changed nothing does not keep an earlier one from being
// accepted by its name.
func TestX22LaterRunsThatOfferNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	good := b.run("w", "echo 1 > f")
	req := b.request("w", "exit 7")
	req.OnFailure = "pending"
	if r := b.do(req); r.Verdict != "pending" {
		t.Fatalf("the later run is %s", r.Verdict)
	}
	d, err := b.results.Diff(b.ctx, result.DiffRequest{Target: b.cellTarget("w")})
	if err != nil || !slices.Equal(d.Runs, []string{good.ID}) {
		t.Errorf("diff names the runs %q, %v; want %s alone", d.Runs, err, good.ID)
	}
	b.must(second(b.results.Accept(b.ctx, runTarget(good), api.AcceptRequest{Apply: true})))
	if b.source("f") != "1\n" || b.verdict(good) != "accepted" {
		t.Errorf("the source has %q, and the run is %s", b.source("f"), b.verdict(good))
	}
	b.verified()
}

// Without a name every verb means the cell of the newest result that waits, and, when none
// waits, that of the latest run.
func TestX22OneCellWithoutAName(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("w", "echo 1 > f")
	b.run("x", "true")
	latest := func(want string) {
		t.Helper()
		if id, err := b.SelectCell("", b.src); err != nil || id != b.id(want) {
			t.Errorf("without a name it is %s, %v; want %s", id, err, want)
		}
	}
	latest("w")
	if r := b.run("y", "exit 3"); r.Verdict != "restored" {
		t.Fatalf("the run is %s", r.Verdict)
	}
	latest("w")
	b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{})))
	latest("y")
}

// A checkpoint of a cell in which nothing runs, and which was not put to rest yet, is taken
// under nothing.
func TestCheckpointUnderNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("w", "true")
	id := b.id("w")
	x, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sleep", "300"}})
	b.must(err)
	_, let := b.alive.Ref(id)
	defer let()
	w, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sh", "-c", "echo 1 > f"}})
	b.must(err)
	b.until("the file is written", func() bool { return b.ended(w.ID) })
	_, err = b.alive.SignalExec(b.ctx, x.ID, "SIGKILL")
	b.must(err)
	b.until("the exec ended", func() bool { return b.ended(x.ID) })
	k, err := b.Checkpoint(b.ctx, id, api.CheckpointRequest{})
	if err != nil || k.Number != 2 || k.Under != "" {
		t.Errorf("checkpoint %+v, %v", k, err)
	}
}

// What the source has already is no change any more, and is not taken back.
func TestX51WhatTheSourceHasAlready(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0", "g: 0")
	b.run("w", "echo 1 > f; echo 1 > g")
	b.write("g", "1\n")
	res, err := b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})
	if err != nil || !slices.Equal(res.Applied, []string{"f"}) {
		t.Errorf("%+v, %v", res.Applied, err)
	}
	if paths, _ := b.shown(b.cellTarget("w")); len(paths) > 0 {
		t.Errorf("diff still shows %q", paths)
	}
	b.must(second(b.results.Revert(b.ctx, b.cellTarget("w"), api.RevertRequest{})))
	b.wantFiles("taken back", map[string]string{"f": "0", "g": "1\n"})
	if paths, _ := b.shown(b.cellTarget("w")); !slices.Equal(paths, []string{"f"}) {
		t.Errorf("diff shows %q", paths)
	}
	b.verified()
}

// A fork knows what of its workspace is in the source.
func TestX51ForksKnowTheSource(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("w", "echo 1 > f")
	b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})))
	b.must(second(b.Fork(b.ctx, b.id("w"), api.ForkRequest{Name: "child"})))
	if paths, _ := b.shown(b.cellTarget("child")); len(paths) > 0 {
		t.Errorf("diff shows %q", paths)
	}
	b.run("child", "echo 2 > g")
	if paths, _ := b.shown(b.cellTarget("child")); !slices.Equal(paths, []string{"g"}) {
		t.Errorf("diff shows %q", paths)
	}
	b.wantKind("the other cell's", second(b.results.Revert(b.ctx, b.cellTarget("child"), api.RevertRequest{})), cell.Conflict, "nothing to take back")
	b.wantFiles("refused", map[string]string{"f": "1\n"})
	b.verified()
}

// discard goes back to what was accepted, and no further.
func TestX55DiscardStopsAtWhatWasAccepted(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	one := b.run("w", "echo 1 > f")
	b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})))
	two := b.run("w", "echo 2 > f")
	res, err := b.results.Discard(b.ctx, b.cellTarget("w"), api.DiscardRequest{})
	if err != nil || !slices.Equal(ids(res.Runs), []string{two.ID}) {
		t.Errorf("%+v, %v", res, err)
	}
	b.has("w", "f: 1")
	if b.verdict(one) != "accepted" || b.verdict(two) != "discarded" || b.source("f") != "1\n" {
		t.Errorf("the runs are %s and %s; the source has %q", b.verdict(one), b.verdict(two), b.source("f"))
	}
	b.verified()
}

// Without a name revert is of the cell of which something was applied last, whatever ran
// since.
func TestX54RevertWithoutAName(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.wantKind("nothing yet", second(b.All().SelectApplied("", b.src)), cell.NotFound, "nothing that ran here is in the source")
	apply := func(name, script string) {
		b.Helper()
		b.run(name, script)
		b.must(second(b.results.Accept(b.ctx, b.cellTarget(name), api.AcceptRequest{Apply: true})))
	}
	apply("v", "echo 1 > v")
	apply("w", "echo 1 > w")
	b.run("v", "echo 2 > v")
	for _, want := range []string{"w", "v"} {
		id, err := b.All().SelectApplied("", b.src)
		if b.must(err); id != b.id(want) {
			t.Errorf("it is %s, want that of %s", id, want)
		}
		b.must(second(b.results.Revert(b.ctx, result.Target{Cell: id}, api.RevertRequest{})))
	}
	b.wantFiles("taken back", map[string]string{"f": "0"})
	b.verified()
}

// When the cell is gone, and what its source was with it, revert names the patch of what was
// applied.
func TestX54RevertWithoutACell(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	r := b.run("w", "echo 1 > f")
	res, err := b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})
	b.must(err)
	b.must(second(b.Remove(b.ctx, b.id("w"), false)))
	b.must(second(b.GC(b.ctx, false)))
	b.must(second(b.results.Revert(b.ctx, runTarget(r), api.RevertRequest{DryRun: true}))) // the import is still there
	list, err := b.sources.Recorded()
	b.must(err)
	for _, s := range list {
		b.sources.Forget(s.Name)
	}
	b.age()
	b.must(second(b.GC(b.ctx, false)))
	err = second(b.results.Revert(b.ctx, runTarget(r), api.RevertRequest{}))
	if b.wantKind("without the cell", err, cell.NotFound, "was removed"); res.Patch == "" || !strings.Contains(cell.HintOf(err), "git -C "+b.src+" apply -R "+res.Patch) {
		t.Errorf("the hint is %q", cell.HintOf(err))
	}
	if patch, err := os.ReadFile(res.Patch); err != nil || !strings.Contains(string(patch), "+1\n") {
		t.Errorf("the patch is %q (%v)", patch, err)
	}
	b.wantFiles("refused", map[string]string{"f": "1\n"})
	b.verified()
}
