package engine

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/state"
)

// ceil puts ceilings in force.
func (b *bed) ceil(text string) {
	b.Helper()
	s, err := ceiling.Parse("c.yaml", []byte("{version: 1, "+text+"}"), policy.Host{CPUs: 2, Memory: 24 << 30})
	b.must(err)
	b.SetCeilings(s)
}

func (b *bed) asks(v *View, name string, labels map[string]string) (api.Cell, error) {
	return v.Create(b.ctx, api.CreateRequest{Name: name, Labels: labels, CallerEnv: []string{"PATH=/usr/bin:/bin"}})
}

// X56: a caller at a program's door gets a part of the host, and no more when it asks.
func TestX56LimitsOfADoor(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.ceil(`doors: {e2b: {max: {memory: 3G, egress: 5M}}}`)
	e2b := b.All().At(ceiling.E2B)
	c, err := b.asks(e2b, "mine", nil)
	b.must(err)
	rec, err := b.reg.Cell(cell.ID(c.ID))
	b.must(err)
	if l := rec.Limits(); l.Memory != 2<<30 || l.PIDs != 2048 || l.Disk != 10<<30 || rec.Setup.Budgets != (state.Budgets{}) {
		t.Errorf("limits %+v", l)
	}
	if o := rec.Setup.Origins.Lines["limits.memory"]; o != "door e2b, built in" {
		t.Errorf("memory is of %q", o)
	}
	if !strings.Contains(rec.Setup.PolicyText, `"egress":5242880`) {
		t.Errorf("the policy has no ceiling of egress: %s", rec.Setup.PolicyText)
	}
	big, err := e2b.Create(b.ctx, api.CreateRequest{Name: "big", Limits: api.Limits{Memory: "3G"}, CallerEnv: []string{"PATH=/usr/bin:/bin"}})
	b.must(err)
	if l := b.Limits(cell.ID(big.ID)); l.Memory != 3<<30 {
		t.Errorf("asked for 3G: %+v", l)
	}
	_, err = e2b.Create(b.ctx, api.CreateRequest{Name: "bigger", Limits: api.Limits{Memory: "4G"}, CallerEnv: []string{"PATH=/usr/bin:/bin"}})
	b.wantKind("4G", err, cell.Denied, "3 GiB", "door e2b, c.yaml")
	// What is forked from a cell of the host's user is no more than the door allows.
	own, err := b.asks(b.All().At(ceiling.Local), "own", nil)
	b.must(err)
	if l := b.Limits(cell.ID(own.ID)); l.Memory != 3<<30 { // three quarters of the bed's 4 GiB
		t.Fatalf("own: %+v", l)
	}
	b.ceil(`doors: {e2b: {default: {memory: 1G}, max: {memory: 1G}}}`)
	f, err := e2b.Fork(b.ctx, cell.ID(own.ID), api.ForkRequest{})
	b.must(err)
	kid := cell.ID(f.Cells[0].ID)
	if l := b.Limits(kid); l.Memory != 1<<30 {
		t.Errorf("a fork by the door: %+v", l)
	}
	b.close()
	b.open()
	if l := b.Limits(kid); l.Memory != 1<<30 {
		t.Errorf("to the next daemon: %+v", l)
	}
}

// X56: how many there are at once, by door, token and label; what is refused says where
// the ceiling comes from, what is in use, and when to come again.
func TestX56CellsAtOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.ceil(`queue: {length: none}, doors: {e2b: {cells: 2}}, tokens: {t-1: {cells: 1}}, labels: {team=a: {cells: 1}}`)
	e2b := b.All().At(ceiling.E2B)
	one, err := b.asks(e2b, "one", nil)
	b.must(err)
	_, err = b.asks(e2b, "two", map[string]string{"team": "a"})
	b.must(err)
	_, err = b.asks(e2b, "three", nil)
	b.wantKind("the third", err, cell.Limited, "2 at once", "door e2b, c.yaml", "there are 2")
	if cell.RetryAfter(err) < 2 || !strings.Contains(cell.HintOf(err), "door e2b") {
		t.Errorf("try again in %d s; %s", cell.RetryAfter(err), cell.HintOf(err))
	}
	_, err = b.asks(b.All().At(ceiling.REST), "other", map[string]string{"team": "a"})
	b.wantKind("another of the team", err, cell.Limited, "label team=a")
	_, err = b.alive.Park(b.ctx, cell.ID(one.ID))
	b.must(err)
	three, err := b.asks(e2b, "three", nil)
	b.must(err)
	if _, err := e2b.Unpark(b.ctx, cell.ID(one.ID)); cell.KindOf(err) != cell.Limited {
		t.Errorf("resumed beyond the ceiling: %v", err)
	}
	_, err = b.Remove(b.ctx, cell.ID(three.ID), false)
	b.must(err)
	if was, err := e2b.Unpark(b.ctx, cell.ID(one.ID)); err != nil || !was {
		t.Errorf("resumed: %v %v", was, err)
	}
	// Whatever else ends a pause claims room, too.
	_, err = b.alive.Park(b.ctx, cell.ID(one.ID))
	b.must(err)
	four, err := b.asks(e2b, "four", nil)
	b.must(err)
	guest := b.caller("t-9", access.Bounds{}).At(ceiling.E2B)
	for what, do := range map[string]func(*View) error{
		"restore": func(v *View) error { _, err := v.Restore(b.ctx, cell.ID(one.ID), api.RestoreRequest{}); return err },
		"undo":    func(v *View) error { _, err := v.Undo(b.ctx, cell.ID(one.ID), api.UndoRequest{}); return err },
		"discard": func(v *View) error {
			_, err := v.Discard(b.ctx, result.Target{Cell: cell.ID(one.ID)}, api.DiscardRequest{})
			return err
		},
		"stop": func(v *View) error { _, err := v.Stop(b.ctx, cell.ID(one.ID)); return err },
	} {
		b.wantKind(what+" of a paused one", do(guest), cell.Limited, "door e2b")
	}
	_, err = b.Remove(b.ctx, cell.ID(four.ID), false)
	b.must(err)
	_, err = b.alive.Unpark(b.ctx, cell.ID(one.ID))
	b.must(err)
	token := b.caller("t-1", access.Bounds{})
	_, err = b.asks(token, "t1", nil)
	b.must(err)
	_, err = b.asks(token, "t2", nil)
	b.wantKind("another of the token", err, cell.Limited, "token t-1")
	// What was built to be forked from is not one of those there are at once.
	built, err := b.asks(e2b, "built", map[string]string{state.LabelBuild: state.BuildWaiting})
	b.wantKind("a template while it is built", err, cell.Limited, "door e2b")
	_, err = b.Remove(b.ctx, cell.ID(one.ID), false)
	b.must(err)
	built, err = b.asks(e2b, "built", map[string]string{state.LabelBuild: state.BuildWaiting})
	b.must(err)
	_, err = b.Lease(b.ctx, cell.ID(built.ID), api.LeaseRequest{Labels: map[string]string{state.LabelBuild: "ready"}})
	b.must(err)
	_, err = b.asks(e2b, "four", nil)
	b.must(err)
	list, waiting := b.All().Ceilings()
	byName := map[string]api.Ceiling{}
	for _, c := range list {
		byName[c.For] = c
	}
	if c := byName["door e2b"]; c.Cells != 2 || c.MaxCells != 2 || c.Refused != 7 || waiting != 0 || c.Max.Memory != 12<<30 {
		t.Errorf("%+v, %d wait", c, waiting)
	}
	if c := byName["label team=a"]; c.Cells != 1 || c.Refused != 1 {
		t.Errorf("%+v", c)
	}
}

// X56: a request that finds no room waits for it, in order, as many as may.
func TestX56Queue(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.ceil(`queue: {length: 2, wait: 1h}, doors: {e2b: {cells: 1}}`)
	e2b := b.All().At(ceiling.E2B)
	first, err := b.asks(e2b, "w-0", nil)
	b.must(err)
	type made struct {
		c   api.Cell
		err error
	}
	got := make(chan made, 2)
	waiting := func(n int) {
		b.until("they wait", func() bool { _, w := b.All().Ceilings(); return w == n })
	}
	for i, name := range []string{"w-1", "w-2"} {
		go func() {
			c, err := b.asks(e2b, name, nil)
			got <- made{c, err}
		}()
		waiting(i + 1)
	}
	_, err = b.asks(e2b, "w-3", nil)
	b.wantKind("one too many", err, cell.Limited, "2 requests for their turn")
	_, err = b.asks(b.All().At(ceiling.MCP), "elsewhere", nil)
	b.must(err) // another door does not wait
	last := first
	for _, want := range []string{"w-1", "w-2"} {
		_, err = b.Remove(b.ctx, cell.ID(last.ID), false)
		b.must(err)
		m := <-got
		b.must(m.err)
		if last = m.c; m.c.Name != want {
			t.Errorf("%s came before %s", m.c.Name, want)
		}
	}
	ctx, stop := context.WithCancel(b.ctx)
	gone := make(chan error, 1)
	go func() {
		_, err := e2b.Create(ctx, api.CreateRequest{Name: "w-4", CallerEnv: []string{"PATH=/usr/bin:/bin"}})
		gone <- err
	}()
	waiting(1)
	stop()
	if err := <-gone; err == nil {
		t.Error("who went away got a cell")
	}
	waiting(0)
	go func() {
		_, err := b.asks(e2b, "w-5", nil)
		gone <- err
	}()
	waiting(1)
	e2b.Drain(true)
	b.wantKind("who waits when the daemon drains", <-gone, cell.Unavailable, "no new work")
	_, err = b.asks(b.All().At(ceiling.REST), "drained", nil)
	b.wantKind("by another door", err, cell.Unavailable, "no new work")
	e2b.Drain(false)
}

// X56: a paused cell is removed when it was kept for as long as holds for it; gc says which
// and why.
func TestX56PausedOnesAreKeptForATime(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.ceil(`doors: {e2b: {keep: 1h}, rest: {keep: none}}`)
	long := func(id string) {
		b.must(b.alive.ChangeLease(cell.ID(id), func(l *state.Lease) error {
			if l.ParkedAt.IsZero() {
				t.Errorf("%s is not known to be paused", id)
			}
			l.ParkedAt = l.ParkedAt.Add(-2 * time.Hour)
			return nil
		}))
	}
	var ids []string
	for _, x := range []struct{ door, name string }{{ceiling.E2B, "a"}, {ceiling.REST, "b"}, {ceiling.E2B, "c"}, {ceiling.E2B, "d"}} {
		c, err := b.asks(b.All().At(x.door), x.name, nil)
		b.must(err)
		ids = append(ids, c.ID)
		if x.name == "d" {
			continue
		}
		_, err = b.alive.Park(b.ctx, cell.ID(c.ID))
		b.must(err)
	}
	now, err := b.Cell(cell.ID(ids[0]))
	b.must(err)
	if d := time.Until(now.Lease.Kept); d < 50*time.Minute || d > time.Hour {
		t.Errorf("kept for %s", d)
	}
	_, err = b.alive.Unpark(b.ctx, cell.ID(ids[2])) // and paused no more
	b.must(err)
	if now, err = b.Cell(cell.ID(ids[2])); err != nil || !now.Lease.Kept.IsZero() {
		t.Errorf("one that goes on is kept until %s", now.Lease.Kept)
	}
	long(ids[1])
	long(ids[0])
	b.until("the one that was kept for an hour is gone", func() bool { _, ok := b.findCell("a"); return !ok })
	for _, name := range []string{"b", "c", "d"} {
		if _, ok := b.findCell(name); !ok {
			t.Errorf("%s is gone", name)
		}
	}
	// A file that says otherwise holds for those that are paused already; gc has the same rule.
	s, err := ceiling.Parse("c.yaml", []byte(`{version: 1, doors: {rest: {keep: 1h}}}`), policy.Host{Memory: 1 << 30})
	b.must(err)
	b.govern.SetCeilings(s)
	res, err := b.GC(b.ctx, true)
	b.must(err)
	if len(res.Items) != 1 || res.Items[0].Name != "b" || !strings.Contains(res.Items[0].Why, "kept for 1h0m0s (door rest, c.yaml)") {
		t.Errorf("gc would remove %+v", res.Items)
	}
	if _, err = b.GC(b.ctx, false); err != nil {
		t.Error(err)
	}
	if _, ok := b.findCell("b"); ok {
		t.Error("gc left one that is kept no longer")
	}
}

// limitsIn are what the backend was told of a cell.
func (b *bed) limitsIn(id string) cell.Limits {
	b.toys.mu.Lock()
	defer b.toys.mu.Unlock()
	return b.toys.cells[cell.ID(id)].spec.Limits
}

// X56: a fork of a template, from the pool or not, has no more than the ceilings of its new owner.
func TestX56ForksOfTemplates(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.template("warm", "x = 1")
	for _, want := range []bool{true, false} { // the second file has less disk, which no fork that was made ahead can have
		text := `doors: {e2b: {default: {memory: 1G}, max: {memory: 1G, disk: 20G}}}`
		if !want {
			text = `doors: {e2b: {default: {memory: 1G, disk: 1G}, max: {memory: 1G, disk: 1G}}}`
		}
		b.ceil(text)
		b.ready("warm", minPooled)
		res, err := b.All().At(ceiling.E2B).ForkTemplate(b.ctx, "warm", api.WarmForkRequest{Count: 1}, nil)
		b.must(err)
		id := res.Forks[0].Cell.ID
		if hit := res.Hits == 1; hit != want {
			t.Errorf("from the pool: %v, want %v", hit, want)
		}
		if l := b.limitsIn(id); l.Memory != 1<<30 {
			t.Errorf("the backend was told %+v", l)
		}
		if l := b.Limits(cell.ID(id)); l.Memory != 1<<30 {
			t.Errorf("it may use %+v", l)
		}
	}
	res, err := b.All().ForkTemplate(b.ctx, "warm", api.WarmForkRequest{Count: 1}, nil)
	b.must(err)
	if l := b.limitsIn(res.Forks[0].Cell.ID); l.Memory != 3<<30 {
		t.Errorf("the host's own user has %+v", l)
	}
}
