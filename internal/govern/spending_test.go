package govern

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// purse is a cell that runs, with a gateway that tells what it has used.
type purse struct {
	b     *bed
	id    cell.ID
	gate  string // its gateway
	used  []cell.ModelUse
	noted []string // in its record
}

// purse makes a running cell with a budget, or one that shares that of another.
func (b *bed) purse(name, budget string, from *purse) *purse {
	b.Helper()
	p := &purse{b: b, gate: "q-of-" + name}
	c := &state.Cell{ID: cell.NewID(), Name: name, State: cell.Idle, Created: time.Now().UTC()}
	if from != nil {
		c.Setup = from.cell().Setup
	}
	c.Setup.Talks = true
	b.must(b.reg.Commit(c))
	p.id = c.ID
	p.asks(budget)
	p.runs()
	b.alive[p.id] = &answering{answer: func(a cell.Answered) error {
		p.noted = append(p.noted, a.Ask.Budget.What+" "+a.Ask.Budget.Budget)
		return nil
	}}
	return p
}

func (p *purse) cell() *state.Cell {
	p.b.Helper()
	c, err := p.b.reg.Cell(p.id)
	p.b.must(err)
	return &c
}

func (p *purse) runs() {
	c := p.cell()
	p.b.must(c.To(cell.Running))
	p.b.must(p.b.reg.Commit(c))
}

// asks is what the start of a run with a budget does.
func (p *purse) asks(budget string) {
	p.b.Helper()
	var pol policy.Result
	if budget != "" {
		var err error
		pol.Limits.Budget, err = policy.ParseBudget(budget)
		p.b.must(err)
	}
	c := p.cell()
	var err error
	c.Setup.Budgets, err = p.b.Budgets(c, &pol)
	p.b.must(err)
	p.b.must(p.b.reg.Commit(c))
}

// uses has the gateway tell more.
func (p *purse) uses(u cell.ModelUse) {
	p.used = cell.AddUse(slices.Clone(p.used), u)
	p.tells()
}

func (p *purse) tells() {
	p.b.count(p.b.ctx, cell.Asked{ID: p.gate, Cell: p.id, Used: p.used})
	synctest.Wait()
}

// waiting is the one approval that waits; "" if there is none.
func (b *bed) waiting() string {
	b.Helper()
	list := b.Approvals(false)
	if len(list) > 1 {
		b.Errorf("%d approvals wait: %+v", len(list), list)
	}
	if len(list) == 0 {
		return ""
	}
	return list[0].ID
}

func tokens(n int64) cell.ModelUse {
	return cell.ModelUse{Model: "claude-sonnet-4-5", Requests: 1, Input: n}
}

func (p *purse) want(what string, s cell.State, used int64) {
	p.b.Helper()
	b, _ := p.b.reg.Budget(p.cell().Setup.Budgets.Of)
	if got := p.cell().State; got != s || b.Used.Tokens != used {
		p.b.Errorf("%s: cell %s is %s and not %s, with %d tokens and not %d", what, p.cell().Name, got, s, b.Used.Tokens, used)
	}
}

// A cell and its fork use one budget. When it is nearly used up that is told, and when it is, both are
// paused, and one approval lets both go on; whatever daemon counts.
func TestBudgetIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		a := b.purse("a", "tokens=1000", nil)
		f := b.purse("f", "tokens=1000", a)
		other := b.purse("other", "", nil)
		other.uses(tokens(9999))
		a.uses(tokens(500))
		f.uses(tokens(299))
		a.want("at first", cell.Running, 799)
		if len(a.noted) > 0 {
			t.Errorf("noted: %q", a.noted)
		}
		f.uses(tokens(1))
		a.want("at four fifths", cell.Running, 800)
		b.reopen()
		a.tells() // again, to the next daemon
		f.uses(tokens(199))
		a.want("before its end", cell.Running, 999)
		f.uses(tokens(1))
		a.want("at its end", cell.Paused, 1000)
		f.want("at its end", cell.Paused, 1000)
		if want := []string{"near tokens", "reached tokens"}; !slices.Equal(a.noted, want) || !slices.Equal(f.noted, want) || len(other.noted) > 0 {
			t.Errorf("noted: %q, %q, %q", a.noted, f.noted, other.noted)
		}
		if other.cell().State != cell.Running {
			t.Error("another cell is paused")
		}
		id := b.waiting()
		if !slices.ContainsFunc(b.reported, func(s string) bool { return strings.Contains(s, "pando approvals approve "+id) }) {
			t.Errorf("reported: %q", b.reported)
		}
		b.wantKind("a start", b.MayStart(a.cell()), cell.Denied, "its budget of 1000 tokens is used up")
		b.wantKind("a run", b.MayRun(f.cell(), policy.Limits{Budget: policy.Budget{Tokens: 1000}}), cell.Denied, "used up")
		b.must(b.Isolates(a.cell())) // it can be undone
		_, err := b.Answer(b.ctx, id, true, "run", seesAll)
		b.wantKind("for a run", err, cell.Invalid)
		b.reopen() // it waits, whatever daemon there is
		b.ExpireAsks()
		b.noteAsks(b.ctx, f.id, nil)
		b.wantState(id, state.ApprovalWaiting)
		v, err := b.Answer(b.ctx, id, true, "", seesAll)
		b.must(err)
		if synctest.Wait(); v.Want != "use 1000 tokens more, with its forks" {
			t.Errorf("it wants to %s", v.Want)
		}
		a.want("after the grant", cell.Running, 1000)
		f.want("after the grant", cell.Running, 1000)
		b.must(b.MayStart(a.cell()))
		f.uses(tokens(999))
		a.want("near its next end", cell.Running, 1999)
		f.uses(tokens(5000))
		a.want("far beyond it", cell.Paused, 6999)

		// What was denied stays paused, and can be granted all the same.
		id = b.waiting()
		_, err = b.Answer(b.ctx, id, false, "", seesAll)
		b.must(err)
		synctest.Wait()
		a.want("denied", cell.Paused, 6999)
		b.wantKind("a start", b.MayStart(a.cell()), cell.Denied)
		_, err = b.Answer(b.ctx, id, false, "", seesAll)
		b.wantKind("denied twice", err, cell.Conflict)
		_, err = b.Answer(b.ctx, id, true, "", seesAll)
		b.must(err)
		synctest.Wait()
		a.want("granted after all", cell.Running, 6999)
		f.uses(tokens(999))
		f.want("as much again from then on", cell.Running, 7998)
		_, err = b.Answer(b.ctx, id, true, "", seesAll)
		b.wantKind("granted twice", err, cell.Conflict)
		if n := a.noted[len(a.noted)-3:]; !slices.Equal(n, []string{"refused tokens", "granted tokens", "near tokens"}) {
			t.Errorf("noted at last: %q", n)
		}
	})
}

// A gateway that is opened anew counts from nothing, and what comes late counts nothing.
func TestCountsOfGateways(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		a := b.purse("a", "", nil)
		a.uses(tokens(70)) // before it had a budget
		a.asks("tokens=1000")
		a.want("no use of it", cell.Running, 0)
		a.uses(tokens(10))
		before := a.used
		a.uses(tokens(20))
		a.used = before
		a.tells()
		a.want("one gateway", cell.Running, 30)
		a.gate, a.used = "q-next", nil
		a.uses(tokens(5))
		a.want("the next gateway", cell.Running, 35)
		a.asks("tokens=40,requests=99") // of a later run
		a.want("more asked", cell.Running, 35)
		a.uses(tokens(5))
		a.want("the end of what was asked then", cell.Paused, 40)
		id := b.waiting()
		a.asks("tokens=1000")
		synctest.Wait()
		a.want("another budget", cell.Running, 40)
		b.wantState(id, state.Expired)
	})
}

// The prices of a cell's policy come before the table.
func TestBudgetsByPricesOfThePolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		a := b.purse("a", "usd=1", nil)
		c := a.cell()
		c.Setup.PolicyText = `{"prices":[{"models":"new*","input":500000,"output":0,"cache_read":0,"cache_write":0}]}`
		b.must(b.reg.Commit(c))
		a.uses(cell.ModelUse{Model: "newer", Requests: 1, Input: 1})
		if p, _ := b.reg.Budget(a.id); p.Used.MicroUSD != 500_000 || a.cell().State != cell.Running {
			t.Errorf("%d are used, and it is %s", p.Used.MicroUSD, a.cell().State)
		}
		a.uses(cell.ModelUse{Model: "newer", Requests: 1, Input: 1})
		if a.cell().State != cell.Paused {
			t.Error("it goes on at its end")
		}
	})
}

// What can't be counted is no free use: it asks at once, and once for each reason.
func TestBudgetsThatCannotBeCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		a := b.purse("a", "usd=1", nil)
		grant := func(want string) {
			t.Helper()
			if a.cell().State != cell.Paused {
				t.Errorf("it goes on: %s", want)
			}
			v, err := b.Answer(b.ctx, b.waiting(), true, "", seesAll)
			b.must(err)
			if synctest.Wait(); v.Want != want || a.cell().State != cell.Running {
				t.Errorf("it wants to %s, and not to %s; then it is %s", v.Want, want, a.cell().State)
			}
		}
		a.uses(cell.ModelUse{Model: "new", Requests: 1, Input: 1})
		grant("go on without counting the price of new")
		a.uses(cell.ModelUse{Model: "new", Requests: 1, Input: 1})
		if a.cell().State != cell.Running {
			t.Error("it is asked twice")
		}
		a.uses(cell.ModelUse{Model: "newer", Requests: 1, Input: 1})
		grant("go on without counting the price of newer")
		a.uses(cell.ModelUse{Requests: 1, Unseen: 1})
		grant("go on without counting such answers")
		a.uses(cell.ModelUse{Requests: 1, Unseen: 1})
		a.uses(tokens(333_333)) // 3 dollars a million
		if a.cell().State != cell.Running {
			t.Error("a dollar is reached before its end")
		}
		a.uses(tokens(1))
		grant("use $1.00 more, with its forks")

		r := b.purse("r", "requests=2", nil) // requests can be counted whatever is answered
		r.uses(cell.ModelUse{Requests: 1, Unseen: 1})
		if r.cell().State != cell.Running {
			t.Error("requests were not counted")
		}
		r.uses(cell.ModelUse{Model: "new", Requests: 1, Input: 1})
		if r.cell().State != cell.Paused {
			t.Error("two requests are not reached")
		}
	})
}

// Time is counted in the cells that run, and is recorded now and then.
func TestBudgetOfTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		a := b.purse("a", "time=100s", nil)
		f := b.purse("f", "time=100s", a)
		pass := func(d time.Duration) {
			for range int(d / time.Second) {
				time.Sleep(time.Second)
				b.TickBudgets(b.ctx, time.Now())
				synctest.Wait()
			}
		}
		pass(time.Second) // the first
		pass(30 * time.Second)
		if got, _ := b.reg.Budget(a.id); got.Used.Time != 60_000 {
			t.Errorf("of two cells in 30 seconds: %d ms", got.Used.Time)
		}
		b.must(b.reg.Commit(state.StateChange{Cell: f.id, From: cell.Running, To: cell.Paused})) // by its user
		time.Sleep(time.Hour)                                                                    // the host sleeps
		pass(19 * time.Second)
		if a.cell().State != cell.Running || fmt.Sprint(a.noted) != "[near time]" {
			t.Errorf("after 80 seconds: %s, %q", a.cell().State, a.noted)
		}
		pass(20 * time.Second)
		if a.cell().State != cell.Paused {
			t.Errorf("after 100 seconds: %s", a.cell().State)
		}
		// What was about to start is paused with the next tick.
		late := b.purse("late", "time=100s", a)
		pass(time.Second)
		if late.cell().State != cell.Paused {
			t.Error("a cell that started late goes on")
		}
		_, err := b.Answer(b.ctx, b.waiting(), true, "", seesAll)
		b.must(err)
		if synctest.Wait(); a.cell().State != cell.Running || late.cell().State != cell.Running || f.cell().State != cell.Paused {
			t.Errorf("after the grant: %s, %s, and what its user paused %s", a.cell().State, late.cell().State, f.cell().State)
		}
		// With its cells a budget is forgotten.
		pass(60 * time.Second) // two cells
		id := b.waiting()
		for _, p := range []*purse{a, f, late} {
			c := p.cell()
			b.must(c.To(cell.Removed))
			b.must(b.reg.Commit(c))
			delete(b.alive, p.id)
		}
		pass(houseTick * time.Second)
		if list := b.reg.Budgets(); len(list) > 0 {
			t.Errorf("left: %+v", list)
		}
		b.wantState(id, state.Expired)
	})
}
