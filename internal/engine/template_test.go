package engine

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
)

// template builds a template of the toy language from the bed's source.
func (b *bed) template(name, setup string) api.Template {
	b.Helper()
	t, err := b.BuildTemplate(b.ctx, api.TemplateRequest{Name: name, From: b.src, Setup: setup, CallerDir: b.src, CallerEnv: []string{"PATH=/usr/bin:/bin"}}, nil)
	b.must(err)
	return t
}

func (b *bed) fork(name string, req api.WarmForkRequest) api.WarmForkResult {
	b.Helper()
	r, err := b.ForkTemplate(b.ctx, name, req, nil)
	b.must(err)
	return r
}

// says asserts what an evaluation in a cell comes to.
func (b *bed) says(name, code, want string) {
	b.Helper()
	r, err := b.Eval(b.ctx, b.id(name), api.EvalRequest{Code: code}, nil)
	if err != nil {
		b.Errorf("%s: %s: %v", name, code, err)
		return
	}
	if got := repr(r.Result); got != want {
		b.Errorf("%s: %s is %q, want %q", name, code, got, want)
	}
}

// repr is an evaluation's value, or its exception.
func repr(raw json.RawMessage) string {
	var v cell.Evaluated
	if err := json.Unmarshal(raw, &v); err != nil {
		return err.Error()
	}
	switch {
	case v.Error != nil:
		return v.Error.Traceback
	case v.Value != nil:
		return v.Value.Repr
	}
	return ""
}

func TestForkOfTemplate(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	tm := b.template("warm", "x = 41\nwrite made 1\nwrite ~/dot 2")
	if tm.State != "warm" || tm.Version != "Toy 1" || tm.Receipt == "" {
		t.Fatalf("template %+v", tm)
	}
	r := b.fork("warm", api.WarmForkRequest{Count: 3, Eval: "x + 1"})
	if len(r.Forks) != 3 || r.Receipt == "" {
		t.Fatalf("forks %+v", r)
	}
	for i, f := range r.Forks {
		if f.Error != nil || repr(f.Result) != "42" || f.Cell.Name != []string{"warm-1", "warm-2", "warm-3"}[i] {
			t.Errorf("fork %d: %+v %v", i, f, f.Error)
		}
	}
	b.says("warm-1", "x = 7\nwrite f 9", "")
	b.says("warm-1", "x + 0", "7")
	b.says("warm-2", "x + 0", "41")
	b.says("warm-2", "read f", "0")
	b.says("warm-2", "read made", "1")
	b.says("warm-2", "read ~/dot", "2")
	b.verified()
	if got := len(listOf(b.All())); got != 3 {
		t.Errorf("%d cells are listed, want 3", got)
	}
}

// What was recorded stands when its receipt cannot be written now: a template is the one of its name, and
// forks and branches live. The next daemon writes what is owed.
func TestReceiptsThatAreOwed(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("web", "echo 1 > f")
	b.eval("web", "x = 1")
	b.must(b.ledger.Close()) // whatever it is asked to write fails
	b.template("warm", "x = 41")
	if r := b.fork("warm", api.WarmForkRequest{Count: 1}); r.Receipt != "" || r.Forks[0].Error != nil {
		t.Errorf("forks %+v", r)
	}
	if r := b.branch("web", api.BranchRequest{}); r.Receipt != "" || len(r.Cells) != 1 {
		t.Errorf("branch %+v", r)
	}
	live := func() {
		t.Helper()
		b.says("warm-1", "x + 0", "41")
		b.says("web-b1", "x + 0", "1")
		b.says("web-b1", "read f", "1\n")
	}
	live()
	b.must(b.Engine.Close())
	b.must(b.objects.Close())
	b.open()
	live()
	if tm, err := b.reg.Template("warm"); err != nil || tm.Receipt == "" {
		t.Errorf("the template names receipt %q, %v", tm.Receipt, err)
	}
	b.verified()
}

// A template and its forks outlive the daemon; without its interpreter it is
// cold, and warmed again from its source as it was.
func TestTemplateIsFoundAgainAndWarmedAgain(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 41")
	b.fork("warm", api.WarmForkRequest{})
	b.reopen()
	if tm, err := b.spawn.Template("warm"); err != nil || tm.State != "warm" || len(tm.Cells) != 1 {
		t.Fatalf("after a restart: %+v, %v", tm, err)
	}
	b.says("warm-1", "x + 0", "41")

	b.write("f", "changed")
	tm, err := b.spawn.Template("warm")
	b.must(err)
	b.toys.kill(cell.ID(tm.Cell), "killed by SIGKILL")
	b.until("the template is cold", func() bool {
		tm, _ := b.spawn.Template("warm")
		return tm.State == "cold" && strings.Contains(tm.Cause, "SIGKILL")
	})
	var said []string
	r, err := b.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{Eval: "read f"}, func(l api.StreamLine) {
		if l.Progress != nil {
			said = append(said, l.Progress.Note)
		}
	})
	b.must(err)
	if repr(r.Forks[0].Result) != "0" {
		t.Errorf("the template was warmed again from what its source is now: %s", r.Forks[0].Result)
	}
	if !strings.Contains(strings.Join(said, "\n"), "template warm is cold") {
		t.Errorf("warming again was not said: %q", said)
	}
	b.says("warm-1", "x + 0", "41") // the fork of the old one goes on
	b.verified()
}

// D47: what a template was built on has changed.
func TestD47ChangedParent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		b.ctx = context.Background()
		tm := b.template("warm", "")
		c, err := b.reg.Cell(cell.ID(tm.Cell))
		b.must(err)
		k, err := b.reg.Numbered(c.ID, 1)
		b.must(err)
		// Warm: what looks different is read.
		b.fork("warm", api.WarmForkRequest{})
		time.Sleep(time.Minute) // it is not looked at again within a moment
		at := filepath.Join(b.home.Layers(), k.State.Layers[0], "fs", "f")
		head, err := b.reg.Checkpoint(c.Head)
		b.must(err)
		at2 := filepath.Join(b.home.Layers(), head.State.Layers[0], "fs", "f") // each layer of a clone is whole
		b.must(os.WriteFile(at2, []byte("tampered"), 0o644))
		_, err = b.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{Name: "none"}, nil)
		b.wantKind("fork of a warm parent that changed", err, cell.Corrupt, "template warm", "expected "+head.Tree.String(), "found sha256:")
		if len(listOf(b.All())) != 1 {
			t.Errorf("%d cells", len(listOf(b.All())))
		}
		b.toys.kill(c.ID, "gone")
		b.until("the template is cold", func() bool { tm, _ := b.spawn.Template("warm"); return tm.State == "cold" })
		b.must(os.WriteFile(at, []byte("tampered"), 0o644))
		_, err = b.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{}, nil)
		b.wantKind("fork of a changed parent", err, cell.Corrupt, "template warm", "expected "+k.Tree.String(), "found sha256:")
		if tm, _ := b.spawn.Template("warm"); tm.State != "failed" || !strings.Contains(tm.Cause, "expected") {
			t.Errorf("template %+v", tm)
		}
	})
}

// A template of a caller that may not name files of the host stays that when it is warmed again:
// its forks get nothing of the user's home.
func TestRewarmedTemplateStaysConfined(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	run := b.All().As(access.Principal{Token: "t-a", Level: access.Run})
	tm, err := run.BuildTemplate(b.ctx, api.TemplateRequest{Name: "warm", Setup: "x = 1", CallerEnv: []string{"PATH=/usr/bin:/bin"}}, nil)
	b.must(err)
	for _, name := range []string{"before", "after"} {
		b.fork("warm", api.WarmForkRequest{Name: name})
		if c, err := b.reg.Cell(b.id(name)); err != nil || !c.Guest {
			t.Errorf("%s: the fork is not confined (%v)", name, err)
		}
		if name == "before" {
			b.toys.kill(cell.ID(tm.Cell), "gone")
			b.until("the template is cold", func() bool { tm, _ := b.Template("warm"); return tm.State == "cold" })
		}
	}
}
