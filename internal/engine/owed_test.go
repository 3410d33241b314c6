package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/run"
)

// What a run made that was to be applied at its end is applied by the next daemon, when the one
// that ended it did not get there; or its notes say why not.
func TestAppliesThatAreOwed(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		source  string // of f, when the next daemon begins; "": as imported
		verdict cell.Verdict
		f       string
		note    string
	}{
		"applied":            {verdict: cell.Accepted, f: "1\n"},
		"the source changed": {source: "mine\n", verdict: cell.Pending, f: "mine\n", note: "not applied: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, "f: 0")
			r := b.do(b.request("web", "echo 1 > f"))
			if r.Verdict != string(cell.Pending) {
				t.Fatalf("the run: %+v", r)
			}
			args, err := json.Marshal(map[string]string{"run": r.ID})
			b.must(err)
			b.must(b.reg.Commit(&operation.Redo{ID: "o-0000000000000000", Kind: run.OpApply, Args: args, Phase: operation.Doing}))
			if x.source != "" {
				b.write("f", x.source)
			}
			b.reopen()
			now, err := b.reg.Run(cell.RunID(r.ID))
			b.must(err)
			if now.Verdict != x.verdict || b.source("f") != x.f || x.note == "" && len(now.Notes) > 0 || !strings.Contains(strings.Join(now.Notes, "\n"), x.note) {
				t.Errorf("verdict %s, f %q, notes %q", now.Verdict, b.source("f"), now.Notes)
			}
			if open := b.reg.OpenOps(); len(open) != 0 {
				t.Errorf("still owed: %+v", open)
			}
		})
	}
}

// Requests for forks at once are all counted, and together get no more than the policy allows.
func TestForksAtOnce(t *testing.T) {
	t.Parallel()
	const requests, allowed = 12, 5
	for policy, want := range map[string]int64{"": requests, "version: 1\nlimits: {forks: 5}": allowed} {
		b := newBed(t, "f: 0")
		_, err := b.BuildTemplate(b.ctx, api.TemplateRequest{Name: "warm", From: b.src, Setup: "x = 1", Policy: policy, CallerDir: b.src, CallerEnv: []string{"PATH=/usr/bin:/bin"}}, nil)
		b.must(err)
		var all sync.WaitGroup
		var made atomic.Int64
		for range requests {
			all.Go(func() {
				if r, err := b.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{}, nil); err == nil && r.Forks[0].Error == nil {
					made.Add(1)
				} else if err != nil && cell.KindOf(err) != cell.Denied {
					t.Error(err)
				}
			})
		}
		all.Wait()
		rec, err := b.reg.Template("warm")
		b.must(err)
		if made.Load() != want || rec.Forks != want {
			t.Errorf("policy %q: %d were made, %d are counted, want %d", policy, made.Load(), rec.Forks, want)
		}
		b.reopen()
		if rec, err = b.reg.Template("warm"); err != nil || rec.Forks != want {
			t.Errorf("afterwards %d are counted: %v", rec.Forks, err)
		}
	}
}

// Commands that are asked for at once are together no more than the policy allows: runs that wait
// for their cell are asked about again when it is theirs.
func TestCommandsAtOnce(t *testing.T) {
	t.Parallel()
	const allowed = 4
	b := newBed(t, "f: 0")
	req := b.request("few", "true")
	req.Policy = "version: 1\nlimits: {executions: 4}"
	if r := b.do(req); r.Error != nil {
		t.Fatal(r.Error)
	}
	c, err := b.reg.Cell(b.id("few"))
	b.must(err)
	had := c.Runs
	var all sync.WaitGroup
	var done, denied atomic.Int64
	for i := range 16 {
		all.Go(func() {
			if i%2 == 0 {
				_, err := b.Eval(b.ctx, c.ID, api.EvalRequest{Code: "1"}, nil)
				if err == nil {
					done.Add(1)
				} else if cell.KindOf(err) == cell.Denied {
					denied.Add(1)
				}
				return
			}
			r, err := b.StartRun(b.ctx, req)
			if err == nil {
				if r, err = b.runs.Wait(b.ctx, cell.RunID(r.ID)); err == nil && r.ExitCode != nil {
					done.Add(1)
					return
				}
				if r.Error != nil && cell.Kind(r.Error.Kind) == cell.Denied {
					denied.Add(1)
				}
			} else if cell.KindOf(err) == cell.Denied {
				denied.Add(1)
			}
		})
	}
	all.Wait()
	if done.Load() != int64(allowed-had) || denied.Load() != 16-done.Load() {
		t.Errorf("%d commands ran and %d were denied, of 16, after %d of %d", done.Load(), denied.Load(), had, allowed)
	}
}

// A fetch that was begun leaves no lock in the source's repository behind.
func TestFetchesThatWereBegun(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	common := filepath.Join(b.src, ".git")
	b.must(os.MkdirAll(filepath.Join(common, "objects"), 0o700))
	b.must(os.MkdirAll(filepath.Join(common, "refs/remotes/pando/web"), 0o700))
	for _, name := range []string{"refs/remotes/pando/web/main.lock", "refs/remotes/pando/other.lock"} {
		b.must(os.WriteFile(filepath.Join(common, name), nil, 0o600))
	}
	args, err := json.Marshal(map[string]string{"common": common, "prefix": "refs/remotes/pando/web/"})
	b.must(err)
	b.must(b.reg.Commit(&operation.Redo{ID: "o-0000000000000001", Kind: result.OpFetch, Args: args, Phase: operation.Doing}))
	b.reopen()
	if _, err := os.Stat(filepath.Join(common, "refs/remotes/pando/web/main.lock")); err == nil {
		t.Error("the lock is left")
	}
	if _, err := os.Stat(filepath.Join(common, "refs/remotes/pando/other.lock")); err != nil {
		t.Error("another lock is gone")
	}
	if open := b.reg.OpenOps(); len(open) != 0 {
		t.Errorf("still begun: %+v", open)
	}
}
