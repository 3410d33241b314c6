package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/result"
)

// levelsOf says what a replay compared, as "level is".
func levelsOf(r api.Replay) (list []string) {
	for _, l := range r.Levels {
		list = append(list, l.Level+" "+l.Is)
	}
	return list
}

// A replay brings back what a run left, in a new cell, and changes nothing of the run.
func TestReplayBringsBackAResult(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0", "g: 0", "d/x: 0")
	b.run("w", "echo 1 > f")
	was := b.run("w", "echo 2 > f; rm -r d; echo 3 > d; echo 4 > new")
	b.run("w", "echo 5 > f")
	res, err := b.All().Replay(b.ctx, cell.RunID(was.ID), api.ReplayRequest{Name: "back"})
	b.must(err)
	if !res.Identical || !slices.Equal(levelsOf(res), []string{"evidence same", "patch same", "before same", "after same"}) {
		t.Errorf("%+v", res)
	}
	b.has("back", "f: 2", "g: 0", "d: 3", "new: 4")
	if now, err := b.Engine.Run(cell.RunID(was.ID)); err != nil || now.Verdict != was.Verdict || len(now.Receipts) != len(was.Receipts) {
		t.Errorf("the run is %+v, %v", now, err)
	}
	if len(b.reg.OpenOps()) > 0 {
		t.Errorf("open: %+v", b.reg.OpenOps())
	}
	b.verified()

	// One that differs leaves no cell.
	run, err := b.reg.Run(cell.RunID(was.ID))
	b.must(err)
	f, err := evidence.CreateRecord(run.Folder, "patch")
	b.must(err)
	f.Close()
	res, err = b.All().Replay(b.ctx, cell.RunID(was.ID), api.ReplayRequest{Name: "other"})
	if err != nil || res.Identical || !strings.HasPrefix(res.First, "evidence: "+was.ID+"/patch") || res.Cell != "" {
		t.Errorf("an empty patch: %+v, %v", res, err)
	}
	if c, ok := b.reg.Named("other"); ok {
		t.Errorf("a cell of it: %+v", c)
	}
}

// What was discarded, and is given up by now, comes back as far as the patch has it.
func TestReplayWithoutTheResult(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	was := b.run("w", "echo 2 > f")
	run, err := b.reg.Run(cell.RunID(was.ID))
	b.must(err)
	after, err := b.reg.Checkpoint(run.In.After)
	b.must(err)
	_, err = b.All().Discard(b.ctx, result.Target{Run: cell.RunID(was.ID)}, api.DiscardRequest{})
	b.must(err)
	after, err = b.reg.Checkpoint(run.In.After)
	b.must(err)
	after.Expires = time.Now().Add(-time.Hour)
	b.must(b.reg.Commit(&after))
	b.age()
	b.collected()
	b.trees.forget()
	if k, err := b.reg.Checkpoint(after.ID); err != nil || !k.Gone {
		t.Fatalf("the result is there: %+v, %v", k, err)
	}
	res, err := b.All().Replay(b.ctx, cell.RunID(was.ID), api.ReplayRequest{Name: "back"})
	if err != nil || !res.Identical {
		t.Fatalf("%+v, %v", res, err)
	}
	b.has("back", "f: 2")
	if _, err := b.All().Replay(b.ctx, cell.RunID(was.ID), api.ReplayRequest{Until: "after"}); cell.KindOf(err) != cell.NotFound {
		t.Errorf("until after: %v", err)
	}
}

// A replay that a daemon did not finish leaves no cell.
func TestF19InterruptedReplayLeavesNoCell(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	was := b.run("w", "echo 1 > f")
	res, err := b.All().Replay(b.ctx, cell.RunID(was.ID), api.ReplayRequest{Name: "done"})
	b.must(err)
	run, err := b.reg.Run(cell.RunID(was.ID))
	b.must(err)
	src, err := b.reg.Cell(run.CellID())
	b.must(err)
	k, err := b.reg.Checkpoint(run.In.Before)
	b.must(err)
	c, _, err := b.spawn.Anew(b.ctx, &src, &k, "half")
	b.must(err)
	b.interrupted(opReplay, replayArgs{Cell: c.ID})
	if now, err := b.reg.Cell(c.ID); err == nil && now.State != cell.Removed {
		t.Errorf("the half one is %+v", now)
	}
	b.interrupted(opReplay, replayArgs{Cell: cell.ID(res.Cell)}) // it had its receipt
	b.has("done", "f: 1")
}

// Callers with labels replay what they see, and what they make of it carries their labels.
func TestReplayWithLabels(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	a := b.caller("t-a", team("a"))
	b.makes(a, "mine")
	mine, theirs := b.run("mine", "echo 1 > f"), b.run("theirs", "echo 1 > f")
	res, err := a.Replay(b.ctx, cell.RunID(mine.ID), api.ReplayRequest{})
	b.must(err)
	c, err := a.Cell(cell.ID(res.Cell))
	if err != nil || c.Labels["team"] != "a" || c.Name != "replay-1" {
		t.Errorf("%+v, %v", c, err)
	}
	for _, req := range []api.ReplayRequest{{}, {Verify: true}, {Until: "before"}} {
		_, err := a.Replay(b.ctx, cell.RunID(theirs.ID), req)
		_, none := a.Replay(b.ctx, "r-00000000000000ff", req)
		b.wantKind("a replay of another's run", err, cell.NotFound)
		if strings.ReplaceAll(err.Error(), theirs.ID, "r-00000000000000ff") != none.Error() {
			t.Errorf("%v; of what there is not: %v", err, none)
		}
	}
}

// A removed cell that was shown files of the host is not brought back by callers that may not name these.
func TestReplayShowsNoHostAgain(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	was := b.run("w", "echo 1 > f")
	c, err := b.reg.Cell(b.id("w"))
	b.must(err)
	c.Setup.PolicyText = strings.Replace(c.Setup.PolicyText, `"mounts":[]`, `"mounts":[{"source":"/srv","target":"/srv","writable":true}]`, 1)
	b.must(b.reg.Commit(&c))
	a := b.caller("t-a", access.Bounds{})
	if _, err := a.Replay(b.ctx, cell.RunID(was.ID), api.ReplayRequest{Until: "before"}); err != nil {
		t.Errorf("the cell is there: %v", err)
	}
	_, err = b.Remove(b.ctx, c.ID, false)
	b.must(err)
	for _, req := range []api.ReplayRequest{{}, {Verify: true}, {Until: "before"}} {
		_, err := a.Replay(b.ctx, cell.RunID(was.ID), req)
		b.wantKind("a cell that was removed", err, cell.Denied, "files of the daemon's host")
	}
	if _, err := b.All().Replay(b.ctx, cell.RunID(was.ID), api.ReplayRequest{Until: "before"}); err != nil {
		t.Errorf("for the user: %v", err)
	}
}

// The files before are gone, and those of a directory have to be the same.
func TestReplayFrom(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("w", "echo 1 > f")
	was := b.run("w", "echo 2 > g")
	_, err := b.Remove(b.ctx, b.id("w"), false)
	b.must(err)
	b.age()
	b.collected()
	b.until("the layers go", func() bool {
		_, err := b.All().Replay(b.ctx, cell.RunID(was.ID), api.ReplayRequest{})
		return cell.KindOf(err) == cell.NotFound && strings.Contains(cell.HintOf(err), "--from PATH")
	})
	res, err := b.All().Replay(b.ctx, cell.RunID(was.ID), api.ReplayRequest{From: b.src, Name: "wrong"})
	if err != nil || res.Identical || res.Cell != "" || !strings.HasPrefix(res.First, "before: ") {
		t.Errorf("the source as it is: %+v, %v", res, err)
	}
	dir := filepath.Join(b.TempDir(), "clone")
	b.must(os.CopyFS(dir, os.DirFS(b.src)))
	b.must(os.WriteFile(filepath.Join(dir, "f"), []byte("1\n"), 0o644))
	res, err = b.All().Replay(b.ctx, cell.RunID(was.ID), api.ReplayRequest{From: dir, Name: "back"})
	if err != nil || !res.Identical {
		t.Fatalf("%+v, %v", res, err)
	}
	b.has("back", "f: 1", "g: 2")
}

func TestCompareLines(t *testing.T) {
	for name, x := range map[string]struct {
		was, is string
		line    int
		lines   int
		times   bool
	}{
		"the same":        {"a\nb\n", "a\nb\n", 0, 0, true},
		"a line":          {"a\nb\n", "a\nc\n", 2, 1, false},
		"more":            {"a\n", "a\nb\n", 2, 1, false},
		"less":            {"a\nb", "a\n", 2, 1, false},
		"no last newline": {"a", "a\n", 1, 1, false},
		"nor with times":  {"1s", "1s\n", 1, 1, false},
		"spaces":          {"a b\n", "a  b\n", 1, 1, false},
		"padded times":    {"a  9s\n", "a 10s\n", 1, 1, true},
		"a duration":      {"ok  \tx\t0.012s\nend\n", "ok  \tx\t1.9s\nend\n", 1, 1, true},
		"minutes":         {"in 1m2.5s\n", "in 59s\n", 1, 1, true},
		"a date":          {"at 2026-11-30T19:00:01Z\n", "at 2027-01-01T00:00:00.123+01:00\n", 1, 1, true},
		"words of a date": {"Mon Nov 30 19:44:05 UTC 2026\n", "Tue Dec  1 09:44:05 UTC 2026\n", 1, 1, true},
		"two times":       {"1.0s\nx\n2.0s\n", "1.1s\nx\n2.1s\n", 1, 2, true},
		"a number":        {"took 12 files\n", "took 13 files\n", 1, 1, false},
		"a time and more": {"0.1s a\n", "0.2s b\n", 1, 1, false},
		"a year":          {"UTC 2026\n", "UTC 2027\n", 1, 1, false},
	} {
		d, err := compareLines(strings.NewReader(x.was), strings.NewReader(x.is))
		if err != nil || d.line != x.line || d.lines != x.lines || d.onlyTimes != x.times {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
}

// The new cell of a replay can be used as soon as it has a name: what was done in it meanwhile is neither lost nor removed.
func TestReplayLeavesATouchedCell(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.makes(b.All(), "new")
	c, err := b.reg.Cell(b.id("new"))
	b.must(err)
	first, err := b.reg.Checkpoint(c.Head)
	b.must(err)
	r := &replay{e: b.Engine}
	r.out.Cell = string(c.ID)
	done := 0
	again := func() error { done++; return nil }
	b.must(r.alone(b.ctx, &c, &first, again))
	b.run("new", "echo 1 > f")
	err = r.alone(b.ctx, &c, &first, again)
	if b.wantKind("in a cell with a run", err, cell.Conflict); done != 1 {
		t.Errorf("it was done %d times", done)
	}
	if err := r.drop(b.ctx, &c, err); err == nil || r.out.Cell == "" {
		t.Errorf("giving it up: %v, and it names %q", err, r.out.Cell)
	}
	if now, err := b.reg.Cell(c.ID); err != nil || now.State == cell.Removed {
		t.Errorf("the cell is %+v, %v", now.State, err)
	}
	if err := r.drop(b.ctx, &c, nil); err != nil || r.out.Cell != "" {
		t.Errorf("removing it: %v", err)
	}
}
