package engine

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/result"
)

// Whatever starts something is refused when the backend isolates less than a
// policy demands, also in cells, templates and living interpreters that are older
// than the policy; what looks, takes out and ends is not.
func TestX53EveryDoorMeetsTheRule(t *testing.T) {
	b := newBed(t, "f: 0")
	b.run("idle", "echo 1 > f")
	b.run("live", "echo 1 > f")
	b.run("done", "echo 1 > f")
	b.eval("live", "x = 41")
	b.template("warm", "x = 41")
	b.run("paused", "true")
	b.eval("paused", "x = 1")
	if _, err := b.Pause(b.ctx, b.id("paused")); err != nil {
		t.Fatal(err)
	}
	pending := b.do(b.request("", "echo 2 > f"))
	b.home.Policy = filepath.Join(t.TempDir(), "policy.yaml")
	b.reopen()

	idle, live := b.id("idle"), b.id("live")
	text := "version: 1\n"
	doors := map[string]func() error{
		"run":           func() error { _, err := b.StartRun(b.ctx, b.request("", "true")); return err },
		"run in a cell": func() error { _, err := b.StartRun(b.ctx, b.request("idle", "true")); return err },
		"plan":          func() error { _, err := b.Plan(b.ctx, b.request("", "true")); return err },
		"create":        func() error { _, err := b.Create(b.ctx, api.CreateRequest{Name: "new"}); return err },
		"exec": func() error {
			_, err := b.StartExec(b.ctx, idle, api.ExecRequest{Command: []string{"true"}, Wait: true})
			return err
		},
		"exec in a live cell": func() error {
			_, err := b.StartExec(b.ctx, live, api.ExecRequest{Command: []string{"true"}, Wait: true})
			return err
		},
		"eval":       func() error { _, err := b.Eval(b.ctx, live, api.EvalRequest{Code: "x + 0"}, nil); return err },
		"first eval": func() error { _, err := b.Eval(b.ctx, idle, api.EvalRequest{Code: "x = 0"}, nil); return err },
		"fork":       func() error { _, err := b.Fork(b.ctx, idle, api.ForkRequest{}); return err },
		"branch":     func() error { _, err := b.Branch(b.ctx, live, api.BranchRequest{}); return err },
		"restore": func() error {
			_, err := b.results.Restore(b.ctx, idle, api.RestoreRequest{Number: 1, Lose: true})
			return err
		},
		"undo":         func() error { _, err := b.results.Undo(b.ctx, idle, api.UndoRequest{Lose: true}); return err },
		"resume":       func() error { _, err := b.Resume(b.ctx, b.id("paused")); return err },
		"files out":    func() error { return b.alive.ReadFiles(b.ctx, idle, "/", io.Discard) },
		"files in":     func() error { return b.alive.WriteFiles(b.ctx, idle, "/tmp", bytes.NewReader(nil)) },
		"manage files": func() error { return b.alive.Manage(b.ctx, idle, cell.FileAct{}, nil, io.Discard) },
		"template": func() error {
			_, err := b.BuildTemplate(b.ctx, api.TemplateRequest{Name: "other", From: b.src}, nil)
			return err
		},
		"fork of a template": func() error { _, err := b.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{}, nil); return err },
		"govern":             func() error { return b.All().Regovern(b.ctx, live, text) },
	}
	refused := func(when string) {
		t.Helper()
		for name, door := range doors {
			err := door()
			b.wantKind(when+": "+name, err, cell.Denied, "isolation.least", b.home.Policy)
			if err != nil && !strings.Contains(cell.HintOf(err), "isolation: {least: none}") {
				t.Errorf("%s: %s: the hint does not say what to do: %q", when, name, cell.HintOf(err))
			}
		}
	}
	b.must(os.WriteFile(b.home.Policy, []byte("version: 1\nisolation: {least: namespace}\n"), 0o600))
	refused("user policy")
	if n := len(listOf(b.All())); n != 5 {
		t.Errorf("%d cells after refusals, not 5", n)
	}

	// What is there can be looked at, taken and ended.
	if _, err := b.results.Diff(b.ctx, result.DiffRequest{Target: result.Target{Run: cell.RunID(pending.ID)}, Form: "stat"}); err != nil {
		t.Error(err)
	}
	if _, err := b.results.Accept(b.ctx, result.Target{Run: cell.RunID(pending.ID)}, api.AcceptRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := b.Stop(b.ctx, live); err != nil {
		t.Error(err)
	}
	if _, err := b.Remove(b.ctx, b.id("done"), false); err != nil {
		t.Error(err)
	}

	// The word none allows it, and is in the receipt.
	b.must(os.WriteFile(b.home.Policy, []byte("version: 1\nisolation: {least: none}\n"), 0o600))
	r := b.run("idle", "true")
	rec, err := b.All().Receipt(r.ID, "")
	b.must(err)
	if !strings.Contains(string(rec.Statement), `"least":"none","rule":"isolation.least (`+b.home.Policy+":2)") {
		t.Errorf("the receipt does not have the rule: %s", rec.Statement)
	}
	// What can't be read is no reason to go without.
	b.must(os.WriteFile(b.home.Policy, []byte("version: 1\nisolation: {least: nome}\n"), 0o600))
	if _, err := b.StartExec(b.ctx, idle, api.ExecRequest{Command: []string{"true"}, Wait: true}); cell.KindOf(err) != cell.Invalid {
		t.Errorf("with a policy that can't be read: %v", err)
	}
	b.must(os.Remove(b.home.Policy))
}

type namedBackend struct {
	backend.Backend
	name string
}

func (n namedBackend) Name() string { return n.name }

// Without --backend the first is taken that isolates enough; what is asked for is
// never replaced by another.
func TestX53BackendThatIsEnough(t *testing.T) {
	e := &Engine{cfg: Config{Backends: []backend.Backend{namedBackend{name: "namespace"}, namedBackend{name: "gvisor"}, namedBackend{name: "microvm"}, namedBackend{name: "none"}}}}
	for _, c := range []struct{ asked, least, want string }{
		{"", "none", "namespace"}, {"auto", "namespace", "namespace"}, {"", "gvisor", "gvisor"}, {"auto", "microvm", "microvm"},
		{"none", "microvm", "none"}, {"namespace", "gvisor", "namespace"}, {"microvm", "none", "microvm"},
	} {
		b, err := e.backendUnder(c.asked, policy.Isolation{Least: c.least})
		if err != nil || b.Name() != c.want {
			t.Errorf("asked for %q, at least %s: %v, %v; want %s", c.asked, c.least, b, err, c.want)
		}
		p := &runPlan{req: api.RunRequest{Prefer: c.asked}, policy: policy.Result{Effective: policy.Effective{Isolation: policy.Isolation{Least: c.least}}}}
		if err := e.planBackend(p); (err == nil) != p.policy.Isolation.Allows(c.want) || p.backend.Name() != c.want {
			t.Errorf("preferred %q, at least %s: %v, %v", c.asked, c.least, p.backend, err)
		}
	}
}
