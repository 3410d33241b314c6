package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
)

// What a run has made so far is accepted while it goes on; at its end the rest waits, and is told from that.
func TestAcceptWhileARunGoesOn(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0", "same: s")
	r, goOn := b.begin("w", "echo 1 > f; echo 1 > g", "echo 2 > f; echo 3 > h")
	w := b.cellTarget("w")
	b.wantKind("a verdict alone", second(b.results.Accept(b.ctx, w, api.AcceptRequest{})), cell.Conflict, "run "+r.ID+" is under way in it")
	b.wantKind("of the run", second(b.results.Accept(b.ctx, runTarget(r), api.AcceptRequest{Apply: true})), cell.Conflict, "is executing")
	res, err := b.results.Accept(b.ctx, w, api.AcceptRequest{Apply: true})
	b.must(err)
	if res.During != r.ID || !slices.Equal(res.Applied, []string{"f", "g"}) || len(res.Runs) > 0 {
		t.Errorf("%+v", res)
	}
	if p := b.predicate(res.Receipt); string(p.During) != r.ID || !slices.Equal(p.Applied, res.Applied) {
		t.Errorf("the receipt says %+v", p)
	}
	b.wantFiles("so far", map[string]string{"f": "1\n", "g": "1\n", "same": "s"})
	if paths, _ := b.shown(w); len(paths) > 0 {
		t.Errorf("diff shows %q", paths)
	}
	b.wantKind("once more", second(b.results.Accept(b.ctx, w, api.AcceptRequest{Apply: true})), cell.Conflict, "nothing to accept yet")
	r = goOn()
	if r.Verdict != "pending" || r.Applied != 2 {
		t.Errorf("it is %s, with %d files applied", r.Verdict, r.Applied)
	}
	for _, target := range []result.Target{w, runTarget(r)} {
		if paths, _ := b.shown(target); !slices.Equal(paths, []string{"f", "h"}) {
			t.Errorf("of %v, diff shows %q", target, paths)
		}
	}
	b.must(second(b.results.Accept(b.ctx, runTarget(r), api.AcceptRequest{Apply: true})))
	b.wantFiles("at its end", map[string]string{"f": "2\n", "g": "1\n", "h": "3\n", "same": "s"})
	b.must(second(b.results.Revert(b.ctx, runTarget(r), api.RevertRequest{})))
	b.wantFiles("the rest taken back", map[string]string{"f": "1\n", "g": "1\n", "same": "s"})
	if now, err := b.Engine.Run(cell.RunID(r.ID)); err != nil || now.Verdict != "pending" || now.Applied != 2 {
		t.Errorf("it is %s, with %d files applied (%v)", now.Verdict, now.Applied, err)
	}
	b.must(second(b.results.Revert(b.ctx, runTarget(r), api.RevertRequest{})))
	b.wantFiles("all taken back", map[string]string{"f": "0", "same": "s"})
	if b.verdict(r) != "pending" {
		t.Errorf("it is %s", b.verdict(r))
	}
	b.verified()
}

// A run that fails stays where a part of what it made was accepted, and one of which all was has nothing to wait for.
func TestEndOfARunThatWasTaken(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, then, verdict, reason string
		paths                        []string // that are asked for
		apply                        bool
		left                         []string // what diff shows afterwards
		source                       map[string]string
	}{
		"it fails":               {first: "echo 1 > f", then: "echo 1 > g; exit 7", verdict: "pending", reason: "exit code 7", left: []string{"g"}, source: map[string]string{"f": "1\n"}},
		"all of it was taken":    {first: "echo 1 > f", then: "true", verdict: "accepted", reason: "all of it was accepted while it went on", left: []string{}, source: map[string]string{"f": "1\n"}},
		"it is applied":          {first: "echo 1 > f; echo 1 > g", then: "echo 2 > f; rm g", apply: true, verdict: "accepted", left: []string{}, source: map[string]string{"f": "2\n"}},
		"a part, and it is":      {first: "echo 1 > f; echo 1 > g", then: "echo 2 > f", paths: []string{"f"}, apply: true, verdict: "accepted", left: []string{}, source: map[string]string{"f": "2\n", "g": "1\n"}},
		"it goes back by itself": {first: "echo 1 > f", then: "printf 0 > f", verdict: "pending", left: []string{"f"}, source: map[string]string{"f": "1\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, "f: 0")
			r, goOn := b.beginWith("w", c.first, c.then, func(req *api.RunRequest) {
				if c.apply {
					req.OnSuccess = "apply"
				}
			})
			b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true, Paths: c.paths})))
			r = goOn()
			if r.Verdict != c.verdict || !strings.Contains(r.Reason, c.reason) {
				t.Errorf("it is %s: %s", r.Verdict, r.Reason)
			}
			if paths, _ := b.shown(b.cellTarget("w")); !slices.Equal(paths, c.left) {
				t.Errorf("diff shows %q, want %q", paths, c.left)
			}
			b.wantFiles("at its end", c.source)
			b.verified()
		})
	}
}

// What was looked at last is taken, although the cell is another by now; without a look it is what the cell is.
func TestAcceptTakesWhatWasLookedAt(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	_, goOn := b.begin("w", "echo 1 > f", "true")
	w := b.cellTarget("w")
	exec := func(script string) {
		b.must(second(b.StartExec(b.ctx, w.Cell, api.ExecRequest{Command: []string{"sh", "-c", script}, Wait: true})))
	}
	_, digest := b.shown(w)
	exec("echo 2 > f; echo 1 > g")
	b.must(second(b.results.Accept(b.ctx, w, api.AcceptRequest{Apply: true, Expect: digest})))
	b.wantFiles("with its digest", map[string]string{"f": "1\n"})
	b.must(second(b.results.Accept(b.ctx, w, api.AcceptRequest{Apply: true}))) // no look since
	b.wantFiles("without a look", map[string]string{"f": "2\n", "g": "1\n"})
	exec("echo 3 > f")
	if paths, _ := b.shown(w); !slices.Equal(paths, []string{"f"}) {
		t.Errorf("diff shows %q", paths)
	}
	exec("echo 4 > f; echo 4 > g; echo 4 > h")
	b.must(second(b.results.Accept(b.ctx, w, api.AcceptRequest{Apply: true})))
	b.wantFiles("as it was looked at", map[string]string{"f": "3\n", "g": "1\n"})
	b.wantKind("another one", second(b.results.Accept(b.ctx, w, api.AcceptRequest{Apply: true, Expect: "0123456789abcdef"})), cell.Conflict, "others than those")
	if r := goOn(); r.Verdict != "pending" {
		t.Errorf("it is %s", r.Verdict)
	}
	if paths, _ := b.shown(w); !slices.Equal(paths, []string{"f", "g", "h"}) {
		t.Errorf("diff shows %q", paths)
	}
	b.verified()
}

// What is taken back while its run goes on waits at the end.
func TestRevertWhileARunGoesOn(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	r, goOn := b.begin("w", "echo 1 > f", "echo 1 > g; exit 1")
	b.must(second(b.results.Accept(b.ctx, b.cellTarget("w"), api.AcceptRequest{Apply: true})))
	res, err := b.results.Revert(b.ctx, runTarget(r), api.RevertRequest{})
	if err != nil || len(res.Runs) > 0 {
		t.Errorf("%+v, %v", res, err)
	}
	b.wantFiles("taken back", map[string]string{"f": "0"})
	if r := goOn(); r.Verdict != "restored" || r.Applied != 0 { // nothing of it is in the source
		t.Errorf("it is %s, with %d files applied", r.Verdict, r.Applied)
	}
	b.has("w", "f: 0")
	b.verified()
}

// The rest of what was taken in part is discarded, also where no run made it.
func TestDiscardOfARestWithoutARun(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("w", "true")
	w := b.cellTarget("w")
	b.must(second(b.StartExec(b.ctx, w.Cell, api.ExecRequest{Command: []string{"sh", "-c", "echo 1 > f; echo 1 > g"}, Wait: true})))
	b.must(second(b.results.Accept(b.ctx, w, api.AcceptRequest{Apply: true, Paths: []string{"f"}})))
	b.must(second(b.results.Discard(b.ctx, w, api.DiscardRequest{})))
	if paths, _ := b.shown(w); len(paths) > 0 {
		t.Errorf("diff shows %q", paths)
	}
	b.has("w", "f: 1")
	b.wantKind("once more", second(b.results.Discard(b.ctx, w, api.DiscardRequest{})), cell.Conflict, "nothing waits")

	// So it is with the rest of a run that was taken in part while it went on.
	_, goOn := b.begin("w", "echo 2 > f; echo 2 > h", "echo 2 > i")
	b.must(second(b.results.Accept(b.ctx, w, api.AcceptRequest{Apply: true, Paths: []string{"f"}})))
	r := goOn()
	b.must(second(b.results.Discard(b.ctx, w, api.DiscardRequest{})))
	if paths, _ := b.shown(w); len(paths) > 0 || b.verdict(r) != "discarded" {
		t.Errorf("diff shows %q; the run is %s", paths, b.verdict(r))
	}
	b.has("w", "f: 2")
	b.verified()
}

// Of a run that was taken while it went on, and of later ones, an older state never goes over a newer one.
func TestRestOfARunIsToldFromWhatWasTakenOfIt(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	r, goOn := b.begin("w", "echo 1 > f", "echo 2 > f; echo 2 > h")
	w := b.cellTarget("w")
	b.must(second(b.results.Accept(b.ctx, w, api.AcceptRequest{Apply: true})))
	goOn()
	_, rest := b.shown(runTarget(r))
	b.run("w", "echo 4 > f")
	b.must(second(b.results.Accept(b.ctx, w, api.AcceptRequest{Apply: true})))
	if paths, now := b.shown(runTarget(r)); now != rest || !slices.Equal(paths, []string{"f", "h"}) {
		t.Errorf("its changes are %q, and became others: %v", paths, now != rest)
	}
	b.wantKind("the older one", second(b.results.Accept(b.ctx, runTarget(r), api.AcceptRequest{Apply: true})), cell.Conflict, "f has other content now")
	b.wantFiles("the newer one", map[string]string{"f": "4\n", "h": "2\n"})
	b.verified()
}

// A checkpoint that is made after a look, a turn of an agent say, is not what was looked at.
func TestAcceptTakesALookBeforeATurn(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	_, goOn := b.begin("w", "echo 1 > f", "true")
	w := b.cellTarget("w")
	b.shown(w)
	b.must(second(b.StartExec(b.ctx, w.Cell, api.ExecRequest{Command: []string{"sh", "-c", "echo unseen > f"}, Wait: true})))
	b.must(b.takeTurn(b.ctx, w.Cell, cell.Turn{Text: "go on"}))
	b.must(second(b.results.Accept(b.ctx, w, api.AcceptRequest{Apply: true})))
	b.wantFiles("as it was looked at", map[string]string{"f": "1\n"})
	goOn()
	b.verified()
}

// What earlier runs made is not the running one's: it may be rolled back.
func TestEarlierWorkTakenDuringARun(t *testing.T) {
	t.Parallel()
	for _, looked := range []bool{false, true} {
		b := newBed(t, "f: 0")
		b.run("w", "echo 1 > f")
		w := b.cellTarget("w")
		if looked {
			b.shown(w)
		}
		r, goOn := b.begin("w", "true", "echo 2 > g; exit 1")
		res, err := b.results.Accept(b.ctx, w, api.AcceptRequest{Apply: true})
		if err != nil || len(res.Runs) != 1 || res.During != r.ID {
			t.Errorf("%+v, %v", res, err)
		}
		if r = goOn(); r.Verdict != "restored" || r.Applied != 0 {
			t.Errorf("looked %v: it is %s, with %d files applied", looked, r.Verdict, r.Applied)
		}
		if paths, _ := b.shown(w); len(paths) > 0 {
			t.Errorf("looked %v: diff shows %q", looked, paths)
		}
		b.verified()
	}
}

// A discard leaves nothing in the cell that was held back from the source.
func TestDiscardOfARunThatWasTaken(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	_, goOn := b.begin("w", "echo 1 > f; echo x > .envrc", "echo 1 > h")
	w := b.cellTarget("w")
	res, err := b.results.Accept(b.ctx, w, api.AcceptRequest{Apply: true})
	if err != nil || len(res.Held) != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	goOn()
	b.must(second(b.results.Discard(b.ctx, w, api.DiscardRequest{})))
	if paths, _ := b.shown(w); len(paths) > 0 {
		t.Errorf("diff shows %q", paths)
	}
	b.has("w", "f: 1")
	b.verified()
}

// An accept within a run that a daemon had begun is completed as such.
func TestF19InterruptedAcceptWithinARun(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	r, goOn := b.begin("w", "echo 1 > f", "echo 2 > g")
	w := b.cellTarget("w")
	b.shown(w)
	c, err := b.reg.Cell(w.Cell)
	b.must(err)
	goOn()
	b.interrupted(result.OpAccept, map[string]any{"id": "a-1", "cell": c.ID, "at": c.Head, "during": r.ID, "planned": []string{"f"}, "request": api.AcceptRequest{Apply: true}})
	c, err = b.reg.Cell(w.Cell)
	b.must(err)
	if taken := c.TakenDuring(cell.RunID(r.ID)); len(taken) != 1 || !slices.Contains(taken[0].Runs, cell.RunID(r.ID)) {
		t.Errorf("taken are %+v", taken)
	}
	b.wantFiles("so far", map[string]string{"f": "1\n"})
	if paths, _ := b.shown(w); !slices.Equal(paths, []string{"g"}) {
		t.Errorf("diff shows %q", paths)
	}
	b.verified()
}
