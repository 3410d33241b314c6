package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/spawn"
	"github.com/pando-dev/pando/internal/state"
)

// testToken is shaped as a token of GitHub, and none.
const testToken = "ghp_9aK2mXq7Lw3Zt8Rb5Yc1Vd4Ne6Pf0Hj2Su7Q"

func (b *bed) source(path string) string {
	text, _ := os.ReadFile(filepath.Join(b.src, path))
	return string(text)
}

// What becomes of a run follows from how it ended, as the kernel told, and
// from what was asked for.
func TestF03Verdicts(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name, script string
		ask          func(*api.RunRequest)
		want         cell.Verdict
		reason       string
		files        string // of f in the cell afterwards
	}{
		{name: "failed", script: "echo 1 > f; echo exit status: 0; exit 7", want: cell.Restored, reason: "exit code 7", files: "0"},
		{name: "killed", script: "echo 1 > f; kill -KILL $$", want: cell.Restored, reason: "ended by SIGKILL", files: "0"},
		{name: "failed, to be kept", script: "echo 1 > f; exit 7", ask: func(r *api.RunRequest) { r.OnFailure = "pending" }, want: cell.Pending, reason: "exit code 7", files: "1"},
		{name: "failed, asked about", script: "echo 1 > f; exit 7", ask: func(r *api.RunRequest) { r.OnFailure = "ask" }, want: cell.Pending, reason: "exit code 7", files: "1"},
		{name: "failed, success accepted", script: "echo 1 > f; exit 7", ask: func(r *api.RunRequest) { r.OnFailure, r.OnSuccess = "pending", "accept" }, want: cell.Pending, reason: "exit code 7", files: "1"},
		{name: "failed, changed nothing", script: "exit 7", ask: func(r *api.RunRequest) { r.OnFailure = "pending" }, want: cell.Pending, reason: "exit code 7", files: "0"},
		{name: "too long", script: "echo 1 > f; sleep 300", ask: func(r *api.RunRequest) { r.Limits.Timeout = "300ms" }, want: cell.Pending, reason: "timeout", files: "1"},
		{name: "too long, success accepted", script: "trap 'exit 0' TERM; echo 1 > f; while :; do sleep 0.01; done",
			ask: func(r *api.RunRequest) { r.Limits.Timeout, r.OnSuccess = "300ms", "accept" }, want: cell.Pending, reason: "timeout", files: "1"},
		{name: "good", script: "echo 1 > f", want: cell.Pending, files: "1"},
		{name: "good, accepted", script: "echo 1 > f", ask: func(r *api.RunRequest) { r.OnSuccess = "accept" }, want: cell.Accepted, reason: "--on-success accept", files: "1"},
		{name: "changed nothing", script: "cat f", want: cell.Accepted, reason: "no changes", files: "0"},
		{name: "checked", script: "echo 1 > f", ask: func(r *api.RunRequest) { r.Check = "grep -q 1 f" }, want: cell.Pending, files: "1"},
		{name: "check failed", script: "echo 1 > f", ask: func(r *api.RunRequest) { r.Check = "grep -q 2 f" }, want: cell.Restored, reason: "the check failed with exit code 1", files: "0"},
		{name: "check failed, success accepted", script: "echo 1 > f", ask: func(r *api.RunRequest) { r.Check, r.OnSuccess, r.OnFailure = "grep -q 2 f", "accept", "pending" },
			want: cell.Pending, reason: "the check failed with exit code 1", files: "1"},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, "f: 0")
				req := b.request("w", x.script)
				if x.ask != nil {
					x.ask(&req)
				}
				r := b.do(req)
				if r.Error != nil || r.Verdict != string(x.want) || r.Reason != x.reason || r.By != "pando" {
					t.Errorf("%s %q by %s (%+v), want %s %q", r.Verdict, r.Reason, r.By, r.Error, x.want, x.reason)
				}
				b.has("w", "f: "+x.files)
				if r.Receipt == "" {
					t.Error("there is no receipt")
				}
				if b.source("f") != "0" {
					t.Errorf("the source has %q", b.source("f"))
				}
				b.verified()
			})
		})
	}
}

// What did not succeed is accepted only by force, with a reason, and both are
// in the receipt.
func TestF03AcceptingAFailure(t *testing.T) {
	t.Parallel()
	why := map[string]string{"exit code": "its command failed with exit code 3", "time-out": "its command was ended: timeout", "check": "its check failed with exit code 1"}
	for name, ask := range map[string]func(*api.RunRequest){
		"exit code": func(r *api.RunRequest) { r.Command[2] = "echo 1 > f; exit 3" },
		"time-out":  func(r *api.RunRequest) { r.Command[2], r.Limits.Timeout = "echo 1 > f; sleep 300", "200ms" },
		"check":     func(r *api.RunRequest) { r.Command[2], r.Check = "echo 1 > f", "false" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, "f: 0")
				req := b.request("w", "")
				req.OnFailure = "pending"
				ask(&req)
				r := b.do(req)
				id := cell.RunID(r.ID)
				_, err := b.results.Accept(b.ctx, result.Target{Run: id}, api.AcceptRequest{Apply: true})
				b.wantKind("without force", err, cell.Conflict, "cannot accept run "+r.ID+": "+why[name])
				_, err = b.results.Accept(b.ctx, result.Target{Run: id}, api.AcceptRequest{Force: true, Reason: " "})
				b.wantKind("without a reason", err, cell.Invalid, "reason")
				if now, _ := b.Engine.Run(id); now.Verdict != string(cell.Pending) || b.source("f") != "0" {
					t.Fatalf("refused, and %s, the source %q", now.Verdict, b.source("f"))
				}
				res, err := b.results.Accept(b.ctx, result.Target{Run: id}, api.AcceptRequest{Force: true, Reason: "looked at it", Apply: true})
				b.must(err)
				run := res.Runs[0]
				if run.Verdict != string(cell.Accepted) || run.By != "user" || run.Reason != "looked at it" || b.source("f") != "1\n" {
					t.Errorf("%+v; the source has %q", run, b.source("f"))
				}
				if v := b.predicate(res.Receipt); !v.Forced || v.Verdict == nil || v.Verdict.Reason != "looked at it" || len(v.Runs) != 1 || v.Runs[0].Receipt != r.Receipt || run.Receipt != res.Receipt {
					t.Errorf("its receipt says %+v", v)
				}
				b.verified()
			})
		})
	}
}

// predicate reads what a receipt of an act says.
func (b *bed) predicate(id string) (p state.Act) {
	b.Helper()
	entry, err := b.cfg.Ledger.Find(id)
	b.must(err)
	s, err := entry.Statement()
	b.must(err)
	b.must(json.Unmarshal(s.Predicate, &p))
	return p
}

func TestF05AcceptTakesOnlyTheLatest(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	one := b.run("w", "echo 1 > f")
	two := b.run("w", "echo 2 > f")
	accept := func(r api.Run, req api.AcceptRequest) error {
		_, err := b.results.Accept(b.ctx, result.Target{Run: cell.RunID(r.ID)}, req)
		return err
	}
	b.wantKind("an earlier run", accept(one, api.AcceptRequest{}), cell.Conflict, two.ID)
	b.wantKind("an earlier run by force", accept(one, api.AcceptRequest{Force: true, Reason: "x"}), cell.Conflict, two.ID)
	three := b.run("w", "echo 3 > f; exit 1")
	b.wantKind("a restored run", accept(three, api.AcceptRequest{Force: true, Reason: "x"}), cell.Conflict, "restored")
	b.must(accept(two, api.AcceptRequest{})) // a run that failed hinders nothing
	// Going back past runs says which, and asks.
	id := b.id("w")
	_, err := b.results.Restore(b.ctx, id, api.RestoreRequest{Number: 1})
	b.wantKind("going back unasked", err, cell.Conflict, one.ID, two.ID)
	dry, err := b.results.Restore(b.ctx, id, api.RestoreRequest{Number: 1, DryRun: true})
	if err != nil || !slices.Contains(dry.Lost, one.ID) || !slices.Contains(dry.Lost, two.ID) || len(dry.Lost) != 2 {
		t.Errorf("what would be lost: %+v, %v", dry, err)
	}
	b.has("w", "f: 2")
	res, err := b.results.Restore(b.ctx, id, api.RestoreRequest{Number: 1, Lose: true})
	b.must(err)
	b.has("w", "f: 0")
	for _, r := range []api.Run{one, two} {
		if now, _ := b.Engine.Run(cell.RunID(r.ID)); now.Verdict != string(cell.Restored) || now.Receipt != res.Receipt {
			t.Errorf("run %s is %s, with receipt %s", r.ID, now.Verdict, now.Receipt)
		}
	}
	// The kept result of the latest can be had back, and waits again.
	res, err = b.results.Restore(b.ctx, id, api.RestoreRequest{Number: three.After.Number, Lose: true})
	if err != nil || !slices.Contains(res.Reopened, three.ID) {
		t.Fatalf("%+v, %v", res, err)
	}
	b.has("w", "f: 3")
	b.wantKind("it failed all the same", accept(three, api.AcceptRequest{}), cell.Conflict, "its command failed with exit code 1")
	b.must(accept(three, api.AcceptRequest{Force: true, Reason: "x"}))
	b.verified()
}

// What is recorded must be what the receipt says.
func TestF05AcceptChecksTheReceiptFirst(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	other := b.run("other", "echo x > f")
	r := b.run("w", "echo 1 > f; exit 4")
	if _, err := b.results.Restore(b.ctx, b.id("w"), api.RestoreRequest{Number: r.After.Number, Lose: true}); err != nil {
		t.Fatal(err)
	}
	good, err := b.reg.Run(cell.RunID(r.ID))
	b.must(err)
	for name, forge := range map[string]func(*state.Run){
		"exit code":         func(r *state.Run) { zero := 0; r.ExitCode = &zero },
		"result":            func(r *state.Run) { r.After = (*state.Point)(other.After) },
		"another's receipt": func(r *state.Run) { r.Receipts = []string{other.Receipt} },
		"no receipt":        func(r *state.Run) { r.Receipts = nil },
		"unknown receipt":   func(r *state.Run) { r.Receipts = []string{cell.Sum([]byte("x")).String()} },
	} {
		forged := good
		forge(&forged)
		b.must(b.reg.Commit(&forged))
		_, err := b.results.Accept(b.ctx, result.Target{Run: cell.RunID(r.ID)}, api.AcceptRequest{Force: true, Reason: "x", Apply: true})
		b.wantKind(name, err, cell.Corrupt)
		if b.source("f") != "0" {
			t.Errorf("%s: the source has %q", name, b.source("f"))
		}
	}
	b.must(b.reg.Commit(&good))
	if _, err := b.results.Accept(b.ctx, result.Target{Run: cell.RunID(r.ID)}, api.AcceptRequest{Force: true, Reason: "x"}); err != nil {
		t.Error(err)
	}
}

func TestDiscardGoesBackAndKeeps(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	one := b.run("w", "echo 1 > f")
	two := b.run("w", "echo 2 > f")
	_, err := b.results.Discard(b.ctx, result.Target{Run: cell.RunID(one.ID)}, api.DiscardRequest{})
	b.wantKind("an earlier run", err, cell.Conflict, two.ID)
	if _, err := b.results.Discard(b.ctx, result.Target{Run: cell.RunID(two.ID)}, api.DiscardRequest{DryRun: true}); err != nil {
		t.Fatal(err)
	}
	b.has("w", "f: 2")
	res, err := b.results.Discard(b.ctx, result.Target{Run: cell.RunID(two.ID)}, api.DiscardRequest{})
	if err != nil || len(res.Runs) != 1 || res.Runs[0].Verdict != string(cell.Discarded) || res.Runs[0].By != "user" {
		t.Fatalf("%+v, %v", res, err)
	}
	b.has("w", "f: 1")
	k, err := b.reg.Numbered(b.id("w"), two.After.Number)
	if err != nil || k.Expires.IsZero() {
		t.Errorf("the result: %+v, %v", k, err)
	}
	b.holds("the result", &k, "f: 2")
	_, err = b.results.Discard(b.ctx, result.Target{Run: cell.RunID(two.ID)}, api.DiscardRequest{})
	b.wantKind("again", err, cell.Conflict)
	b.verified()
}

func TestUndoGoesStepByStep(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("w", "echo 1 > f")
	b.run("w", "echo 2 > f")
	id := b.id("w")
	for _, want := range []string{"1", "0"} {
		if _, err := b.results.Undo(b.ctx, id, api.UndoRequest{Lose: true}); err != nil {
			t.Fatal(err)
		}
		b.has("w", "f: "+want)
	}
	_, err := b.results.Undo(b.ctx, id, api.UndoRequest{Lose: true})
	b.wantKind("at the beginning", err, cell.Conflict, "nothing to undo")
	if _, err := b.results.Undo(b.ctx, id, api.UndoRequest{To: 3, Lose: true}); err != nil {
		t.Fatal(err)
	}
	b.has("w", "f: 2")
	b.verified()
}

func TestForkMakesCellsOfTheirOwn(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	r := b.run("w", "echo 1 > f")
	id := b.id("w")
	res, err := b.Fork(b.ctx, id, api.ForkRequest{Count: 3, Name: "n"})
	if err != nil || len(res.Cells) != 3 {
		t.Fatalf("%+v, %v", res, err)
	}
	if now, _ := b.Engine.Run(cell.RunID(r.ID)); now.Verdict != string(cell.Forked) || now.Receipt != res.Receipt {
		t.Errorf("the run is %s, with receipt %s", now.Verdict, now.Receipt)
	}
	for n, c := range []string{"n-1", "n-2", "n-3"} {
		b.run(c, "echo "+c+" > f")
		b.has(c, "f: "+c)
		if res.Cells[n].Name != c || res.Cells[n].Parent == nil || res.Cells[n].Parent.Name != "w" {
			t.Errorf("child %d: %+v", n, res.Cells[n])
		}
	}
	b.has("w", "f: 1")
	_, err = b.Fork(b.ctx, id, api.ForkRequest{Count: 2, Name: "n"})
	b.wantKind("names that are taken", err, cell.Exists, "n-1")
	for _, bad := range []api.ForkRequest{{Count: -1}, {Count: spawn.MaxFork + 1}, {Name: "../x"}, {Name: "c-0123456789abcdef"}} {
		_, err := b.Fork(b.ctx, id, bad)
		b.wantKind("a fork that can't be", err, cell.Invalid)
	}
	_, err = b.Fork(b.ctx, id, api.ForkRequest{Number: 9, Name: "x"})
	b.wantKind("a checkpoint that is not there", err, cell.NotFound)
	x, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sleep", "300"}})
	b.must(err)
	_, err = b.Fork(b.ctx, id, api.ForkRequest{Name: "x"})
	b.wantKind("a fork of "+x.ID+"'s cell", err, cell.Unsupported, "processes")
	if n := len(listOf(b.All())); n != 4 {
		t.Errorf("there are %d cells", n)
	}
	b.verified()
}

// What went with its cell can't be taken, nor is it said to wait.
func TestResultOfARemovedCell(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	r := b.run("", "echo 1 > f")
	_, err := b.Remove(b.ctx, cell.ID(r.Cell), false)
	b.must(err)
	gone, err := b.Engine.Run(cell.RunID(r.ID))
	b.must(err)
	if gone.Verdict != string(cell.Discarded) || gone.Reason != "its cell was removed" || len(gone.Receipts) != 2 || gone.Receipt != gone.Receipts[1] {
		t.Errorf("%s, %s, receipts %v", gone.Verdict, gone.Reason, gone.Receipts)
	}
	for _, req := range []api.AcceptRequest{{}, {Apply: true}, {Force: true, Reason: "x"}} {
		_, err := b.results.Accept(b.ctx, result.Target{Run: cell.RunID(r.ID)}, req)
		b.wantKind("accepting what is gone", err, cell.Conflict, "removed")
	}
	_, err = b.results.Discard(b.ctx, result.Target{Run: cell.RunID(r.ID)}, api.DiscardRequest{})
	b.wantKind("discarding what is gone", err, cell.Conflict, "removed")
	next := b.run("", "echo 2 > f")
	for _, n := range next.Notes {
		if strings.Contains(n, r.ID) {
			t.Errorf("the next run says: %s", n)
		}
	}
	if b.source("f") != "0" {
		t.Errorf("the source has %q", b.source("f"))
	}
	// A run that changed nothing took its cell with it, and stays accepted.
	same := b.run("", "true")
	if same.Verdict != string(cell.Accepted) {
		t.Fatalf("%+v", same)
	}
	if res, err := b.results.Accept(b.ctx, result.Target{Run: cell.RunID(same.ID)}, api.AcceptRequest{}); err != nil || len(res.Runs) != 1 || res.Runs[0].Verdict != string(cell.Accepted) {
		t.Errorf("accepting what is accepted: %+v, %v", res, err)
	}
	b.verified()
}

// A check runs as it was asked for, though its record hides what looks like a token.
func TestCheckWithAToken(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	req := b.request("w", "echo 1 > f")
	req.Check = `case ` + testToken + ` in ghp_9*) exit 0;; esac; exit 3`
	r := b.do(req)
	if r.Check == nil || r.Check.ExitCode != 0 || r.Verdict != string(cell.Pending) {
		t.Errorf("the run is %s, and its check %+v", r.Verdict, r.Check)
	}
	if r.Check != nil && strings.Contains(r.Check.Command, testToken) {
		t.Errorf("the record has the token: %s", r.Check.Command)
	}
}
