package engine

import (
	"context"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/state"
)

// caller is the engine as a token with bounds has it.
func (b *bed) caller(token string, bounds access.Bounds) *View {
	b.Helper()
	b.must(bounds.Check())
	return b.All().As(access.Principal{Name: token, Token: token, Level: access.Run, Bounds: &bounds, Here: true, Process: os.Getpid()})
}

func team(name string) access.Bounds { return access.Bounds{Labels: map[string]string{"team": name}} }

func (b *bed) makes(v *View, name string) api.Cell {
	b.Helper()
	c, err := v.Create(b.ctx, api.CreateRequest{Name: name, From: b.src, CallerDir: b.src, CallerEnv: []string{"PATH=/usr/bin:/bin"}})
	b.must(err)
	return c
}

// Each method of a View that names a cell or a run by its id refuses, or has
// nothing of, one that the caller does not see, in the words of one that there is
// not. A method that is added is tried without being named here.
func TestViewsDoNotHaveOthersCells(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	foreign := b.makes(b.caller("t-b", team("b")), "theirs")
	run := b.run("theirs", "echo 1 > f")
	a := b.caller("t-a", team("a"))
	mine := b.makes(a, "mine")
	v := reflect.ValueOf(a)
	tried := 0
	for i := range v.NumMethod() {
		m, name := v.Method(i), v.Type().Method(i).Name
		try := func(id cell.ID, r cell.RunID) (named bool, out []reflect.Value) { return called(b.ctx, m, id, r) }
		named, got := try(cell.ID(foreign.ID), cell.RunID(run.ID))
		if !named {
			continue
		}
		tried++
		_, none := try("c-0123456789abcdef", "r-0123456789abcdef")
		if name == "Runs" { // of no cell, it is of none
			none = got
		}
		for k := range got {
			if err, ok := got[k].Interface().(error); ok {
				want, _ := none[k].Interface().(error)
				is := strings.NewReplacer(foreign.ID, "X", run.ID, "X").Replace(err.Error())
				if cell.KindOf(err) != cell.NotFound || want == nil || is != strings.NewReplacer("c-0123456789abcdef", "X", "r-0123456789abcdef", "X").Replace(want.Error()) {
					t.Errorf("%s of another's: %v; of what there is not: %v", name, err, want)
				}
			} else if s := fmt.Sprint(got[k].Interface()); strings.Contains(s, foreign.ID) || strings.Contains(s, run.ID) || strings.Contains(s, "theirs") {
				t.Errorf("%s of another's gives %s", name, s)
			}
		}
		if last := got[len(got)-1]; last.Type() == reflect.TypeFor[error]() && last.IsNil() {
			t.Errorf("%s of another's is done", name)
		}
	}
	if tried < 40 {
		t.Errorf("only %d methods were tried", tried)
	}
	if c, err := b.All().Cell(cell.ID(foreign.ID)); err != nil || c.Runs != 1 || c.State != foreign.State && c.State != "idle" {
		t.Errorf("the other's cell is %+v, %v", c, err)
	}
	for _, r := range []result.DiffRequest{
		{Target: result.Target{Cell: cell.ID(mine.ID)}, FromCell: cell.ID(foreign.ID)},
		{Target: result.Target{Cell: cell.ID(foreign.ID)}, FromCell: cell.ID(mine.ID), From: 1},
	} {
		d, err := a.Diff(b.ctx, r)
		if b.wantKind("own cell and another's", err, cell.NotFound); d.Text != "" || len(d.Files) > 0 {
			t.Errorf("an own cell and another's: %+v", d)
		}
	}
	// What is looked for by other words.
	for _, sel := range []string{"theirs", foreign.ID, foreign.ID[:8], run.ID, run.ID[:8], "theirs:latest"} {
		if id, err := a.SelectCell(sel, b.src); err == nil {
			t.Errorf("cell %s is %s", sel, id)
		}
		_, err := a.SelectRun(sel, b.src)
		b.wantKind("run "+sel, err, cell.NotFound)
		_, err = a.Receipt(sel, b.src)
		b.wantKind("receipt of "+sel, err, cell.NotFound)
	}
	for _, sel := range []string{"theirs@1", "theirs"} {
		_, err := a.SelectCheckpoint(sel, b.src)
		b.wantKind("checkpoint "+sel, err, cell.NotFound)
	}
	k, err := b.All().SelectCheckpoint("theirs@latest", b.src)
	b.must(err)
	for _, sel := range []string{string(k.ID), strings.TrimPrefix(k.Tree.String(), "sha256:")} {
		if got, err := a.SelectCheckpoint(sel, b.src); err == nil && got.Cell != cell.ID(mine.ID) {
			t.Errorf("checkpoint %s is %+v", sel, got)
		}
	}
	if _, err := a.SelectRun("", b.src); cell.KindOf(err) != cell.NotFound {
		t.Errorf("the latest run from the source: %v", err)
	}
	r, err := b.All().Run(cell.RunID(run.ID))
	b.must(err)
	for _, receipt := range r.Receipts {
		_, none := a.Receipt("sha256:"+strings.Repeat("0", 64), b.src)
		for what, do := range map[string]func() error{
			"receipt": func() error { _, err := a.Receipt(receipt, b.src); return err },
			"export":  func() error { _, err := a.ExportReceipts(receipt, b.src); return err },
			"bundle":  func() error { _, err := a.Bundle([]string{receipt}, b.src); return err },
			"verify":  func() error { _, err := a.Verify(receipt, b.src); return err },
		} {
			if err := do(); err == nil || cell.KindOf(err) != cell.KindOf(none) || strings.ReplaceAll(err.Error(), receipt, "X") != strings.ReplaceAll(none.Error(), "sha256:"+strings.Repeat("0", 64), "X") {
				t.Errorf("%s %s: %v; of what there is not: %v", what, receipt, err, none)
			}
		}
	}
	_, err = a.Bundle([]string{"all"}, b.src)
	b.wantKind("a bundle of all receipts", err, cell.Denied)
	_, err = a.BundleFrom(0, 1)
	b.wantKind("a bundle of a range", err, cell.Denied)
	_, err = a.Ledger(0)
	b.wantKind("the ledger's head", err, cell.Denied)
	// Lists and counts.
	if cells := listOf(a); len(cells) != 1 || cells[0].ID != mine.ID || cells[0].Labels["team"] != "a" {
		t.Errorf("cells %+v", cells)
	}
	receipts, err := a.Receipts(0)
	if n, _ := a.Count(); n != 1 || len(a.Runs("")) != 0 || len(receipts) != 0 || err != nil {
		t.Errorf("%d cells, runs %v, receipts %v, %v", n, a.Runs(""), receipts, err)
	}
	if tree, err := a.Tree(""); err != nil || len(tree) != 1 || tree[0].Cell.ID != mine.ID {
		t.Errorf("tree %+v, %v", tree, err)
	}
	if all, err := a.AllStats(b.ctx); err != nil || all.Cells["idle"] != 1 || len(all.Cells) != 1 {
		t.Errorf("stats %+v, %v", all.Cells, err)
	}
	b.must(b.reg.Commit(&state.Approval{Ask: cell.Asked{ID: "q-1", Cell: cell.ID(foreign.ID), At: time.Now(), Expires: time.Now().Add(time.Hour)}, State: state.ApprovalWaiting}))
	_, err = a.Answer(b.ctx, "q-1", true, "")
	_, none := a.Answer(b.ctx, "q-2", true, "")
	if b.wantKind("another's approval", err, cell.NotFound); len(a.Approvals(true)) != 0 || len(b.All().Approvals(true)) != 1 || strings.ReplaceAll(err.Error(), "q-1", "q-2") != none.Error() {
		t.Errorf("approvals %+v; %v; %v", a.Approvals(true), err, none)
	}
	// A run that names the cell, and one that makes it.
	_, err = a.StartRun(b.ctx, b.request("theirs", "true"))
	b.wantKind("a run in it", err, cell.Conflict)
	if plan, err := a.Plan(b.ctx, b.request("theirs", "true")); err != nil || strings.Contains(fmt.Sprint(plan.Notes), "theirs") {
		t.Errorf("a plan of one: %+v, %v", plan.Notes, err)
	}
	_, err = a.ShowPolicy(b.ctx, api.PolicyRequest{Of: "theirs", Dir: b.src})
	b.wantKind("its policy", err, cell.NotFound)
	_, err = a.ShowPolicy(b.ctx, api.PolicyRequest{Of: run.ID, Dir: b.src})
	b.wantKind("its run's policy", err, cell.NotFound)
	for what, do := range map[string]func() error{
		"gc":   func() error { _, err := a.GC(b.ctx, true); return err },
		"disk": func() error { _, err := a.Disk(b.ctx, true); return err },
		"all receipts": func() error {
			_, err := a.Verify("all", "")
			return err
		},
		"credentials": func() error { _, err := a.AddCredential(b.ctx, api.CredentialRequest{}); return err },
	} {
		b.wantKind(what, do(), cell.Denied, "team=a")
	}
}

// What is made of what carries labels carries them, of any maker, in all the
// ways there are, also after a restart; and they can't be taken off.
func TestLabelsAreInherited(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	a := b.caller("t-a", team("a"))
	b.makes(a, "mine")
	b.run("mine", "echo 1 > f")
	fork, err := b.Fork(b.ctx, b.id("mine"), api.ForkRequest{Count: 2})
	b.must(err)
	if fork.Cells[0].Labels["team"] != "a" {
		t.Errorf("a fork says %+v", fork.Cells[0])
	}
	b.run("mine-fork-1", "true")
	b.eval("mine", "x = 1")
	b.branch("mine", api.BranchRequest{Name: "branch"})
	_, err = a.BuildTemplate(b.ctx, b.spec("warm", "x = 1"), nil)
	b.must(err)
	b.fork("warm", api.WarmForkRequest{Count: 2})
	_, err = b.BuildTemplate(b.ctx, b.spec("warm", "x = 2"), nil) // by the user, in its place
	b.must(err)
	b.fork("warm", api.WarmForkRequest{Name: "later"})
	_, err = a.StartRun(b.ctx, b.request("ran", "true"))
	b.must(err)
	want := []string{"branch", "later", "mine", "mine-fork-1", "mine-fork-2", "ran", "warm-1", "warm-2"}
	for _, when := range []string{"", "after a restart, "} {
		names := []string{}
		for _, c := range listOf(a) {
			names = append(names, c.Name)
		}
		slices.Sort(names)
		if !slices.Equal(names, want) {
			t.Errorf("%sseen are %v", when, names)
		}
		if x := b.caller("t-b", team("b")); len(listOf(x)) != 0 || len(x.Templates()) != 0 {
			t.Errorf("%sothers see %v, %v", when, listOf(x), x.Templates())
		}
		b.until("runs have ended", func() bool {
			return !slices.ContainsFunc(b.Runs(""), func(r api.Run) bool { return r.Phase != "ended" })
		})
		b.reopen()
		a = b.caller("t-a", team("a"))
	}
	c, err := a.Lease(b.ctx, b.id("mine"), api.LeaseRequest{Labels: map[string]string{"my": "own"}})
	if b.must(err); c.Labels["team"] != "a" || c.Labels["my"] != "own" {
		t.Errorf("labels are %v", c.Labels)
	}
	_, err = a.Lease(b.ctx, b.id("mine"), api.LeaseRequest{Labels: map[string]string{"team": "b"}})
	b.wantKind("another team", err, cell.Denied, "team=a")
	_, err = a.Create(b.ctx, api.CreateRequest{Labels: map[string]string{"team": "b"}})
	b.wantKind("a cell of another team", err, cell.Denied, "team=a")
	both := b.caller("t-ab", access.Bounds{Labels: map[string]string{"team": "a", "my": "own"}})
	if cells := listOf(both); len(cells) != 1 || cells[0].Name != "mine" {
		t.Errorf("with two labels: %+v", cells)
	}
	if _, err := a.Remove(b.ctx, b.id("ran"), false); err != nil {
		t.Fatal(err)
	}
	if n := len(a.Runs("")); n == 0 || !slices.ContainsFunc(a.Runs(""), func(r api.Run) bool { return r.CellName == "ran" }) {
		t.Errorf("the run of a cell that was removed is not seen: %d runs", n)
	}
	b.must(b.reg.Rewrite())
	b.reopen()
	a = b.caller("t-a", team("a"))
	if !slices.ContainsFunc(a.Runs(""), func(r api.Run) bool { return r.CellName == "ran" }) {
		t.Error("nor after a restart")
	}
}

// Templates without labels are for all to fork, and a restricted caller changes
// none.
func TestTemplatesOfAll(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 41")
	b.fork("warm", api.WarmForkRequest{Count: 2})
	a := b.caller("t-a", team("a"))
	tm, err := a.Template("warm")
	if b.must(err); len(tm.Cells) != 0 || tm.Forks != 0 {
		t.Errorf("of the others' forks it says %v, %d", tm.Cells, tm.Forks)
	}
	res, err := a.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{Name: "mine"}, nil)
	b.must(err)
	if c := res.Forks[0].Cell; c.Labels["team"] != "a" || c.Parent == nil {
		t.Errorf("a fork is %+v", c)
	}
	if tm, _ = a.Template("warm"); len(tm.Cells) != 1 || tm.Forks != 1 {
		t.Errorf("of its own forks it says %v, %d", tm.Cells, tm.Forks)
	}
	if r, err := a.Receipt("mine", ""); err != nil || r.Summary == "" {
		t.Errorf("the receipt of the fork: %v", err)
	}
	theirs, err := b.All().Receipt("warm-1", "")
	b.must(err)
	_, err = a.Receipt(theirs.ID, "")
	_, none := a.Receipt("sha256:"+strings.Repeat("0", 64), "")
	if cell.KindOf(err) != cell.KindOf(none) {
		t.Errorf("the receipt of others' forks of it: %v; of what there is not: %v", err, none)
	}
	if list, err := a.Receipts(0); err != nil || len(list) != 1 {
		t.Errorf("receipts %+v, %v", list, err)
	}
	_, err = a.RemoveTemplate(b.ctx, "warm", api.TemplateRemoval{Force: true})
	b.wantKind("removing it", err, cell.Denied)
	_, err = a.BuildTemplate(b.ctx, b.spec("warm", "x = 6"), nil)
	b.wantKind("building it anew", err, cell.Exists)
	_, err = b.caller("t-b", team("b")).BuildTemplate(b.ctx, b.spec("theirs", "x = 1"), nil)
	b.must(err)
	_, err = a.Template("theirs")
	b.wantKind("another's", err, cell.NotFound)
	_, err = a.ForkTemplate(b.ctx, "theirs", api.WarmForkRequest{}, nil)
	b.wantKind("forking another's", err, cell.NotFound)
	_, err = a.RemoveTemplate(b.ctx, "theirs", api.TemplateRemoval{})
	b.wantKind("removing another's", err, cell.NotFound)
	_, err = a.BuildTemplate(b.ctx, b.spec("theirs", "x = 6"), nil)
	b.wantKind("in the place of another's", err, cell.Exists)
	_, err = a.BuildTemplate(b.ctx, b.spec("own", "x = 1"), nil)
	b.must(err)
	b.fork("own", api.WarmForkRequest{Name: "shown"})
	b.fork("own", api.WarmForkRequest{Name: "taken"}) // and given to no caller
	_, err = b.Lease(b.ctx, b.id("taken"), api.LeaseRequest{Labels: map[string]string{}})
	b.must(err)
	for _, how := range []api.TemplateRemoval{{}, {Cascade: true}} {
		if _, err = a.RemoveTemplate(b.ctx, "own", how); cell.KindOf(err) != cell.Denied || strings.Contains(err.Error(), "taken") {
			t.Errorf("removing what others have forks of, %+v: %v", how, err)
		}
	}
	_, err = a.RemoveTemplate(b.ctx, "own", api.TemplateRemoval{Force: true})
	b.must(err)
	if _, err := b.Cell(b.id("taken")); err != nil {
		t.Error(err)
	}
	if list := a.Templates(); len(list) != 1 {
		t.Errorf("templates %+v", list)
	}
}

// D44: a token has no more cells than it may, in whatever way and however many at
// once they are asked for; what failed, or was removed, counts no more; and a new
// daemon counts the same.
func TestD44QuotaOfCells(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 41")
	v := b.caller("t-q", access.Bounds{MaxCells: 5})
	_, err := v.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{Count: 6}, nil)
	b.wantKind("six at once", err, cell.Limited, "may have 5", "has 0")
	var made, refused sync.Map
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			var err error
			name := fmt.Sprintf("n%d", i)
			switch i % 3 {
			case 0:
				_, err = v.Create(b.ctx, api.CreateRequest{Name: name, From: b.src, CallerDir: b.src, CallerEnv: []string{"PATH=/usr/bin:/bin"}})
			case 1:
				_, err = v.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{Name: name}, nil)
			case 2:
				_, err = v.StartRun(b.ctx, b.request(name, "true"))
			}
			switch {
			case err == nil:
				made.Store(name, true)
			case cell.KindOf(err) == cell.Limited:
				refused.Store(name, true)
			default:
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	all.Wait()
	count := func(m *sync.Map) (n int) { m.Range(func(any, any) bool { n++; return true }); return n }
	if count(&made) != 5 || count(&refused) != 19 || v.Made("t-q") != 5 {
		t.Fatalf("%d made, %d refused, %d counted", count(&made), count(&refused), v.Made("t-q"))
	}
	if used := b.reg.InUse(ceiling.Count{Scope: ceiling.Scope{Kind: "token", Name: "t-q"}}); used != 5 {
		t.Errorf("%d cells are in use: claims are left", used)
	}
	b.until("runs have ended", func() bool {
		return !slices.ContainsFunc(b.Runs(""), func(r api.Run) bool { return r.Phase != "ended" })
	})
	b.reopen()
	v = b.caller("t-q", access.Bounds{MaxCells: 5})
	var one string
	made.Range(func(k, _ any) bool { one = k.(string); return false })
	_, err = v.Fork(b.ctx, b.id(one), api.ForkRequest{Count: 1})
	b.wantKind("after a restart", err, cell.Limited)
	_, err = b.Remove(b.ctx, b.id(one), false)
	b.must(err)
	_, err = v.Create(b.ctx, api.CreateRequest{Name: "bad", From: b.src + "/no"})
	if err == nil || v.Made("t-q") != 4 {
		t.Errorf("what failed: %v; %d are counted", err, v.Made("t-q"))
	}
	b.makes(v, "again")
	_, err = v.BuildTemplate(b.ctx, b.spec("own", "x = 1"), nil)
	b.wantKind("a template, which is a cell, too", err, cell.Limited)
	if _, err := b.caller("t-other", access.Bounds{MaxCells: 1}).Fork(b.ctx, b.id("again"), api.ForkRequest{}); err != nil {
		t.Errorf("by another token: %v", err)
	}
}

// F31: what is made with a token that says how long has a lease of at most that,
// which nothing makes longer at a time; it is paused at its end, and not removed.
func TestTimeToLive(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 41")
	v := b.caller("t-t", access.Bounds{TTL: time.Hour})
	within := func(what string, c api.Cell, most time.Duration) {
		t.Helper()
		if now, err := b.Cell(cell.ID(c.ID)); err != nil || now.Lease == nil || now.Lease.Until.IsZero() || time.Until(now.Lease.Until) > most || time.Until(now.Lease.Until) < most-time.Minute || now.Lease.Then != api.LeasePause {
			t.Errorf("%s: %+v, %v", what, now.Lease, err)
		}
	}
	mine := b.makes(v, "mine")
	within("a new cell", mine, time.Hour)
	for what, req := range map[string]api.LeaseRequest{"asked for more": {For: "100h"}, "extended": {For: "100h", Extend: true}} {
		_, err := v.Lease(b.ctx, cell.ID(mine.ID), req)
		b.must(err)
		within(what, mine, time.Hour)
	}
	_, err := v.Lease(b.ctx, cell.ID(mine.ID), api.LeaseRequest{For: "10m"})
	b.must(err)
	within("asked for less", mine, 10*time.Minute)
	fork, err := v.Fork(b.ctx, cell.ID(mine.ID), api.ForkRequest{})
	b.must(err)
	within("a fork", fork.Cells[0], time.Hour)
	warm, err := v.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{}, nil)
	b.must(err)
	within("a fork of a template", warm.Forks[0].Cell, time.Hour)
	r, err := v.StartRun(b.ctx, b.request("ran", "true"))
	b.must(err)
	within("the cell of a run", api.Cell{ID: r.Cell}, time.Hour)
	if _, err := v.WaitRun(b.ctx, cell.RunID(r.ID)); err != nil {
		t.Fatal(err)
	}

	short := b.caller("t-s", access.Bounds{TTL: time.Second})
	c := b.makes(short, "short")
	b.until("its time is over", func() bool {
		now, err := b.Cell(cell.ID(c.ID))
		return err == nil && now.Lease.Paused
	})
	_, err = short.StartExec(b.ctx, cell.ID(c.ID), api.ExecRequest{Command: []string{"true"}, Wait: true})
	b.wantKind("a command in it", err, cell.Conflict, "paused")
}

// What grows has an end: nothing new is made beyond the number of cells, nor when
// less of the disk is free than should be; what there is can be used and removed.
func TestNothingGrowsForEver(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	v := b.All()
	b.template("warm", "x = 1")
	b.makes(v, "one")
	b.Engine.cfg.MaxCells = 3 // the template is one
	_, err := v.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{Count: 2}, nil)
	b.wantKind("two more", err, cell.Limited, "may be 3 in all", "are 2")
	b.makes(v, "two")
	_, err = v.StartRun(b.ctx, b.request("three", "true"))
	b.wantKind("a run with a cell of its own", err, cell.Limited)
	r, err := v.StartRun(b.ctx, b.request("one", "echo 1 > f"))
	if b.must(err); err == nil {
		_, err = v.WaitRun(b.ctx, cell.RunID(r.ID))
		b.must(err)
	}
	_, err = v.Remove(b.ctx, b.id("two"), false)
	b.must(err)
	b.makes(v, "three")
	b.reopen()
	b.Engine.cfg.MaxCells, v = 3, b.All()
	_, err = v.Fork(b.ctx, b.id("one"), api.ForkRequest{})
	b.wantKind("after a restart", err, cell.Limited)

	b.minFree = 1 << 62
	b.reopen()
	v = b.All()
	for what, do := range map[string]func() error{
		"create":     func() error { _, err := v.Create(b.ctx, api.CreateRequest{Name: "x"}); return err },
		"fork":       func() error { _, err := v.Fork(b.ctx, b.id("one"), api.ForkRequest{}); return err },
		"template":   func() error { _, err := v.BuildTemplate(b.ctx, b.spec("new", "x = 1"), nil); return err },
		"run":        func() error { _, err := v.StartRun(b.ctx, b.request("one", "true")); return err },
		"checkpoint": func() error { _, err := v.Checkpoint(b.ctx, b.id("one"), api.CheckpointRequest{}); return err },
		"upload":     func() error { return v.WriteFiles(b.ctx, b.id("one"), "", strings.NewReader("")) },
	} {
		b.wantKind(what, do(), cell.Unavailable, "are kept: no space left")
	}
	_, err = v.ForkTemplate(b.ctx, "warm", api.WarmForkRequest{}, nil) // which say how much they would take
	b.wantKind("a fork of a template", err, cell.Unavailable, "of disk, and 0 B may be used")
	if n := len(listOf(v)); n != 2 {
		t.Errorf("there are %d cells", n)
	}
	b.has("one", "f: 1")
	if _, err := v.Remove(b.ctx, b.id("one"), false); err != nil {
		t.Errorf("what is there can't be removed: %v", err)
	}
}

// called calls a method of a View with a cell and a run, where it takes one.
func called(ctx context.Context, m reflect.Value, id cell.ID, r cell.RunID) (named bool, out []reflect.Value) {
	args := []reflect.Value{}
	n := m.Type().NumIn()
	if m.Type().IsVariadic() { // which may be left out
		n--
	}
	for j := range n {
		switch in := m.Type().In(j); in {
		case reflect.TypeFor[context.Context]():
			args = append(args, reflect.ValueOf(ctx))
		case reflect.TypeFor[cell.ID]():
			named = true
			args = append(args, reflect.ValueOf(id))
		case reflect.TypeFor[cell.RunID]():
			named = true
			args = append(args, reflect.ValueOf(r))
		case reflect.TypeFor[result.DiffRequest]():
			named = true
			args = append(args, reflect.ValueOf(result.DiffRequest{Target: result.Target{Run: r}}))
		case reflect.TypeFor[result.Target]():
			named = true
			args = append(args, reflect.ValueOf(result.Target{Cell: id, Run: r}))
		case reflect.TypeFor[io.Writer]():
			args = append(args, reflect.ValueOf(io.Discard))
		case reflect.TypeFor[io.Reader]():
			args = append(args, reflect.ValueOf(io.Reader(strings.NewReader(""))))
		default:
			args = append(args, reflect.Zero(in))
		}
	}
	if !named {
		return false, nil
	}
	return true, m.Call(args)
}

// harmlessOnHost are the methods of a View that do nothing on the host in a cell without
// isolation: they look at what pando keeps, or end and remove.
var harmlessOnHost = map[string]bool{
	"Cell": true, "Record": true, "Limits": true, "LeasedEnv": true, "CellTag": true, "RunTag": true, "Own": true, "Tree": true, "History": true, "Steps": true, "Diff": true, "WatchDiff": true,
	"Processes": true, "Stats": true, "Execs": true, "Run": true, "Runs": true, "WaitRun": true, "Log": true, "ServiceOutput": true, "Events": true, "Export": true, "Report": true, "CellReport": true, "Compare": true, "ReplayPolicy": true,
	"NameCheckpoint": true, "RemoveCheckpoint": true, "Park": true, "Pause": true, "Stop": true, "StopWithin": true, "Remove": true, "Interrupt": true, "Discard": true, "Accept": true, "Revert": true, "SignOff": true, "SignOffs": true,
}

// TestX53GuestsDoNothingOnTheHost: a caller that may not name what is the host's may
// do nothing in a cell that is the host: each method of a View is refused, or is one
// that looks. A method that is added is tried without being named here.
func TestX53GuestsDoNothingOnTheHost(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	run := b.run("open", "echo 1 > f")
	id := b.id("open")
	c, err := b.reg.Cell(id)
	b.must(err)
	c.Backend = "none"
	b.must(b.reg.Commit(&c))
	for _, p := range []access.Principal{
		{Name: "ci", Token: "t-1", Level: access.Run},
		{Name: "looker", Token: "t-2", Level: access.Read},
		{Name: "team", Token: "t-3", Level: access.Admin, Bounds: &access.Bounds{Labels: map[string]string{}}},
	} {
		if p.Bounds != nil { // an admin of some cells is none of the host
			p.Bounds.Labels["team"] = "a"
			b.must(b.reg.Commit(&state.Lease{Cell: id, Labels: map[string]string{"team": "a"}}))
		}
		v := b.All().As(p)
		refused := func(name string, err error) {
			t.Helper()
			if cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), p.Name) {
				t.Errorf("%s, as %s: %v", name, p.Name, err)
			}
		}
		tried := 0
		for m, f := range reflect.ValueOf(v).Methods() {
			if harmlessOnHost[m.Name] {
				continue
			}
			named, out := called(b.ctx, f, id, cell.RunID(run.ID))
			if !named {
				continue
			}
			tried++
			err, _ := out[len(out)-1].Interface().(error)
			refused(m.Name, err)
		}
		if tried < 18 {
			t.Errorf("only %d methods were tried", tried)
		}
		_, err := v.StartRun(b.ctx, b.request("open", "true"))
		refused("StartRun", err)
		_, err = v.Plan(b.ctx, b.request("open", "true"))
		refused("Plan", err)
	}
	b.wantKind("a caller of which nothing is known", b.All().As(access.Principal{}).Enter(id), cell.Denied, "no token")
	for _, p := range []access.Principal{access.Local, {Name: "root", Token: "t-4", Level: access.Admin}} {
		b.must(b.All().As(p).Enter(id))
	}
}
