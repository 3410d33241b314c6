package govern

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent/price"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// This file counts what cells use of their budgets. A gateway tells the sum of what its cell has used of
// models; the difference to the sum that was counted before is recorded with the budget, in one commit,
// so that no daemon counts twice. When a part is used up, the cells of the budget are paused, and a
// person is asked; a grant gives as much again.

const (
	budgetTick = time.Second      // how often time is counted
	budgetKept = 10 * time.Second // how much counted time may be in no record
	houseTick  = 600              // ticks between two looks for budgets without cells
	lastCount  = 2 * time.Second  // how long a gateway that ends may take to tell its sum
)

// Why budgets are reached besides their parts.
const (
	noPrice = "price"
	noUsage = "usage"
)

// budgets is the part of a Manager that counts.
type budgets struct {
	pausing sync.Mutex // held while the cells of a budget are paused or resumed

	mu     sync.Mutex                // budgeting: guards the records of budgets, and what follows
	latest map[cell.ID]state.Counted // what gateways have told
	time   map[cell.ID]time.Duration // that is in no record yet, by budget
	last   time.Time                 // when time was last counted
	ticks  int
}

// Budgets are the budgets of a cell under a policy: that which it shares with its forks is taken on, made,
// or changed if the policy says another one.
func (m *Manager) Budgets(c *state.Cell, pol *policy.Result) (state.Budgets, error) {
	out := BudgetsOf(pol.Limits)
	asked := pol.Limits.Budget
	if asked == (policy.Budget{}) {
		return out, nil
	}
	m.budgets.mu.Lock()
	defer m.budgets.mu.Unlock()
	var recs []any
	again := false // what was paused goes on
	b, ok := m.cfg.Records.Budget(c.Setup.Budgets.Of)
	if !ok {
		b, ok = m.cfg.Records.Budget(c.ID)
	}
	switch {
	case !ok:
		b = state.Budget{ID: c.ID, Asked: asked, Granted: asked}
	case b.Asked != asked:
		if b.Reached != "" {
			if a, ok := m.cfg.Records.Approval(b.Asks); ok && a.State == state.ApprovalWaiting {
				a.State = state.Expired
				recs = append(recs, &a)
			}
		}
		again = len(b.Paused) > 0
		b.Asked, b.Granted, b.Near, b.Reached, b.Waives, b.Asks = asked, asked, nil, "", "", "" // what is used already is judged with the next use
	}
	out.Of = b.ID
	recs = append(recs, &b)
	if seen, told := m.budgets.latest[c.ID]; told && c.Setup.Budgets.Of != b.ID { // what it has used before does not count
		recs = append(recs, &seen)
	}
	if err := m.cfg.Records.Commit(recs...); err != nil {
		return out, err
	}
	if again {
		m.cfg.Background(func(ctx context.Context) { m.resumeAll(ctx, b.ID) })
	}
	return out, nil
}

// withinBudget refuses to start something in a cell of which the budget is used up.
func (m *Manager) withinBudget(c *state.Cell) error {
	b, ok := m.cfg.Records.Budget(c.Setup.Budgets.Of)
	if !ok || b.Reached == "" {
		return nil
	}
	a, _ := m.cfg.Records.Approval(b.Asks)
	return cell.Errorf(cell.Denied, "govern.budget", "run `pando approvals approve "+b.Asks+"`, or give it another --budget", "cannot start anything in cell %s: %s", c.Title(), a.Ask.Reason)
}

// count takes what a gateway has told.
func (m *Manager) count(ctx context.Context, told cell.Asked) {
	now := state.Counted{Cell: told.Cell, Source: told.ID, Used: told.Used}
	m.budgets.mu.Lock()
	m.budgets.latest[told.Cell] = now
	c, err := m.cfg.Records.Cell(told.Cell)
	if err != nil {
		m.budgets.mu.Unlock()
		return
	}
	b, ok := m.cfg.Records.Budget(c.Setup.Budgets.Of)
	seen := m.cfg.Records.Counted(c.ID)
	if !ok || seen.Source == now.Source && answers(now) <= answers(seen) {
		m.budgets.mu.Unlock()
		return
	}
	if seen.Source != now.Source {
		seen.Used = nil
	}
	open, own := "", c.Setup.Prices()
	for _, u := range now.Used {
		if i := slices.IndexFunc(seen.Used, func(o cell.ModelUse) bool { return o.Model == u.Model }); i >= 0 {
			u = less(u, seen.Used[i])
		}
		cost := price.Of(u, own)
		b.Used.Requests += u.Requests
		b.Used.Tokens += u.Tokens()
		b.Used.MicroUSD += cost.MicroUSD
		switch {
		case !cost.Known && b.Granted.MicroUSD > 0 && !slices.Contains(b.Waived, noPrice+" "+u.Model):
			open = noPrice + " " + u.Model
		case u.Unseen > 0 && b.Granted.MicroUSD+b.Granted.Tokens > 0 && !slices.Contains(b.Waived, noUsage):
			open = noUsage
		}
	}
	m.judge(ctx, &c, b, open, &now)
}

// answers is how many of them were counted.
func answers(c state.Counted) (n int64) {
	for _, u := range c.Used {
		n += u.Requests
	}
	return n
}

// less is what of a sum came after an earlier one.
func less(u, o cell.ModelUse) cell.ModelUse {
	return cell.ModelUse{Model: u.Model, Requests: u.Requests - o.Requests, Input: u.Input - o.Input, Output: u.Output - o.Output,
		CacheRead: u.CacheRead - o.CacheRead, CacheWrite: u.CacheWrite - o.CacheWrite, Unseen: u.Unseen - o.Unseen, Calls: u.Calls - o.Calls}
}

// judge records a budget, and pauses its cells when it is used up. c is the cell that has used of it; open
// says what could not be counted, "" for nothing. budgets.mu is held, and given back. An error says that
// nothing was recorded.
func (m *Manager) judge(ctx context.Context, c *state.Cell, b state.Budget, open string, with ...any) error {
	var notes []cell.BudgetNote
	var asks *state.Approval
	if b.Reached == "" {
		notes = near(&b)
		if n := reached(&b, open); n != nil {
			notes = append(notes, *n)
			now := time.Now().UTC()
			asks = &state.Approval{State: state.ApprovalWaiting, Ask: cell.Asked{ID: cell.NewRequestID(), Cell: c.ID, Run: m.cfg.RunIn(c.ID), Budget: n, Want: want(&b),
				Reason: n.Text, Rule: "budget " + n.Budget, Origin: c.Setup.Origins.Lines["limits.budget."+n.Budget], Policy: c.Setup.Policy, At: now}}
			b.Asks = asks.Ask.ID
			with = append(with, asks)
		}
	}
	err := m.cfg.Records.Commit(append([]any{&b}, with...)...)
	m.budgets.mu.Unlock()
	if err != nil {
		m.cfg.Log.Error("cannot record a budget", "cell", c.ID, "error", err)
		return err
	}
	for _, n := range notes {
		m.tell(ctx, b.ID, n, b.Asks)
	}
	if asks != nil {
		m.announce(ctx, asks)
		m.cfg.Background(func(ctx context.Context) { m.pauseAll(ctx, b.ID) })
	}
	return nil
}

// near notes the parts of which a fifth of what was asked is left.
func near(b *state.Budget) (notes []cell.BudgetNote) {
	for name, n := range b.Granted.Each {
		used := b.Used.Part(name)
		if used >= n || used < n-b.Asked.Part(name)/5 || slices.Contains(b.Near, name) {
			continue
		}
		b.Near = append(slices.Clone(b.Near), name)
		notes = append(notes, cell.BudgetNote{What: "near", Budget: name, Text: fmt.Sprintf("%s of %s are used; then the cell and its forks are paused", policy.Amount(name, used), policy.Amount(name, n))})
	}
	return notes
}

// reached notes why a budget is used up; nil: it isn't.
func reached(b *state.Budget, open string) *cell.BudgetNote {
	for name, n := range b.Granted.Each {
		if used := b.Used.Part(name); used >= n {
			b.Reached, b.Waives = name, ""
			return &cell.BudgetNote{What: "reached", Budget: name, Text: fmt.Sprintf("its budget of %s is used up (%s)", policy.Amount(name, n), policy.Amount(name, used))}
		}
	}
	switch {
	case open == noUsage:
		b.Reached, b.Waives = noUsage, noUsage
		return &cell.BudgetNote{What: "reached", Budget: noUsage, Text: "an answer of a model did not say its use, so that its budget can't be counted"}
	case open != "":
		b.Reached, b.Waives = noPrice, open
		return &cell.BudgetNote{What: "reached", Budget: noPrice, Text: fmt.Sprintf("no price is known for the model %q in the table of %s, so that its budget of %s can't be counted; prices in your policy can have one",
			open[len(noPrice)+1:], price.Date(), policy.Amount("usd", b.Granted.MicroUSD))}
	}
	return nil
}

// want is what a grant gives.
func want(b *state.Budget) string {
	switch b.Reached {
	case noUsage:
		return "go on without counting such answers"
	case noPrice:
		return "go on without counting the price of " + b.Waives[len(noPrice)+1:]
	}
	return "use " + policy.Amount(b.Reached, b.Asked.Part(b.Reached)) + " more, with its forks"
}

// tell tells what happens to a budget: the clients of its runs, and their records.
func (m *Manager) tell(ctx context.Context, of cell.ID, n cell.BudgetNote, asks string) {
	for _, c := range m.sharing(of) {
		note := "budget: " + n.Text
		if n.What == "reached" {
			note += "; it is paused. pando approvals approve " + asks + " lets it go on (or deny)"
		}
		m.cfg.Report(c.ID, api.Progress{Step: api.StepAsking, Note: note})
		if inst := m.cfg.Instances().Instance(c.ID); inst != nil && c.Talks() {
			if err := inst.Answer(ctx, cell.Answered{Ask: cell.Asked{Cell: c.ID, Budget: &n}}); err != nil && ctx.Err() == nil {
				m.cfg.Log.Warn("cannot record what happens to a budget", "cell", c.ID, "error", err)
			}
		}
	}
}

// sharing are the living cells of a budget.
func (m *Manager) sharing(of cell.ID) (list []state.Cell) {
	for _, id := range m.cfg.Alive() {
		if c, err := m.cfg.Records.Cell(id); err == nil && c.Setup.Budgets.Of == of {
			list = append(list, c)
		}
	}
	return list
}

// pauseAll pauses the cells of a budget that is used up.
func (m *Manager) pauseAll(ctx context.Context, of cell.ID) {
	m.budgets.pausing.Lock()
	defer m.budgets.pausing.Unlock()
	for _, c := range m.sharing(of) {
		if b, ok := m.cfg.Records.Budget(of); !ok || b.Reached == "" {
			return
		}
		if c.State != cell.Running {
			continue
		}
		if err := m.cfg.Pause(ctx, c.ID); err != nil {
			if ctx.Err() == nil && !m.cfg.Instances().AtRest(c.ID) {
				m.cfg.Log.Warn("cannot pause a cell that has used up its budget; it is tried again", "cell", c.ID, "error", err)
			}
			continue
		}
		m.change(of, func(b *state.Budget) {
			if !slices.Contains(b.Paused, c.ID) {
				b.Paused = append(slices.Clone(b.Paused), c.ID)
			}
		})
	}
}

// resumeAll lets the cells go on that were paused for a budget.
func (m *Manager) resumeAll(ctx context.Context, of cell.ID) {
	m.budgets.pausing.Lock()
	defer m.budgets.pausing.Unlock()
	b, ok := m.cfg.Records.Budget(of)
	if !ok || b.Reached != "" {
		return
	}
	for _, id := range b.Paused {
		if c, err := m.cfg.Records.Cell(id); err != nil || c.State != cell.Paused {
			continue
		}
		if err := m.cfg.Resume(ctx, id); err != nil && ctx.Err() == nil && !m.cfg.Instances().AtRest(id) {
			m.cfg.Log.Warn("cannot let a cell go on; pando resume does", "cell", id, "error", err)
		}
	}
	m.change(of, func(b *state.Budget) { b.Paused = nil })
}

// change changes the record of a budget.
func (m *Manager) change(of cell.ID, f func(*state.Budget)) {
	m.budgets.mu.Lock()
	defer m.budgets.mu.Unlock()
	b, ok := m.cfg.Records.Budget(of)
	if !ok {
		return
	}
	f(&b)
	if err := m.cfg.Records.Commit(&b); err != nil {
		m.cfg.Log.Error("cannot record a budget", "cell", of, "error", err)
	}
}

// answerBudget grants as much again of what a budget was reached of, or lets it stay paused. What was
// denied can still be granted.
func (m *Manager) answerBudget(ctx context.Context, a state.Approval, allow bool, scope string) (api.Approval, error) {
	const opName = "govern.Answer"
	if scope != "" && scope != scopeOnce {
		return api.Approval{}, cell.Errorf(cell.Invalid, opName, "approve it once: it asks again when that is used", "%q is no scope of a budget", scope)
	}
	c, err := m.cfg.Records.Cell(a.Ask.Cell)
	if err != nil {
		return api.Approval{}, err
	}
	m.budgets.mu.Lock()
	b, ok := m.cfg.Records.Budget(c.Setup.Budgets.Of)
	if !ok || b.Asks != a.Ask.ID || a.State == state.Approved || a.State == state.Denied && !allow {
		m.budgets.mu.Unlock()
		return m.approvalView(&a), cell.Errorf(cell.Conflict, opName, "run `pando approvals` to see what waits", "nothing asks for %s any more", a.Ask.ID)
	}
	a.At = time.Now().UTC()
	a.State, a.Answer = state.Denied, &cell.Answered{Ask: a.Ask, Effect: cell.Deny, Scope: scopeOnce, By: "user"}
	n := cell.BudgetNote{What: "refused", Budget: b.Reached, Text: "it stays paused: it was refused more of its budget", By: "user"}
	if allow {
		a.State, a.Answer.Effect = state.Approved, cell.Allow
		n.What, n.Text = "granted", "it was allowed to "+a.Ask.Want
		if b.Waives != "" {
			b.Waived = append(slices.Clone(b.Waived), b.Waives)
		} else {
			b.Granted.AddPart(b.Reached, b.Used.Part(b.Reached)-b.Granted.Part(b.Reached)+b.Asked.Part(b.Reached))
		}
		b.Reached, b.Waives, b.Asks, b.Near = "", "", "", nil
	}
	if err := m.judge(ctx, &c, b, "", &a); err != nil {
		return api.Approval{}, err // it still waits
	}
	m.tell(ctx, b.ID, n, "")
	if allow {
		m.cfg.Background(func(ctx context.Context) { m.resumeAll(ctx, b.ID) })
	}
	return m.approvalView(&a), nil
}

// leaves forgets what the gateway of an instance has told.
func (m *Manager) leaves(inst backend.Instance) {
	m.budgets.mu.Lock()
	defer m.budgets.mu.Unlock()
	if m.cfg.Instances().Instance(inst.ID()) == nil {
		delete(m.budgets.latest, inst.ID())
	}
}

// CountLast counts what the gateway of an instance that is about to be gone has to tell.
func (m *Manager) CountLast(ctx context.Context, inst backend.Instance) {
	c, err := m.cfg.Records.Cell(inst.ID())
	if err != nil || c.Setup.Budgets.Of == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lastCount)
	defer cancel()
	list, _, err := inst.Asked(ctx, 0)
	if err != nil {
		return // its keeper is gone
	}
	for _, a := range list {
		if a.Used != nil {
			m.count(ctx, a)
		}
	}
}

// KeepBudgets counts time, and pauses what was missed, until ctx ends.
func (m *Manager) KeepBudgets(ctx context.Context) {
	tick := time.NewTicker(budgetTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			m.TickBudgets(ctx, now)
		}
	}
}

// TickBudgets counts the time since the last tick in the cells that run, and pauses those that run although
// their budget is used up, since they were about to start when it was.
func (m *Manager) TickBudgets(ctx context.Context, now time.Time) {
	m.budgets.mu.Lock()
	since := max(0, min(now.Sub(m.budgets.last), 2*budgetTick)) // a host that slept has not worked
	if m.budgets.last.IsZero() {
		since = 0
	}
	m.budgets.last = now
	m.budgets.ticks++
	house := m.budgets.ticks%houseTick == 0
	m.budgets.mu.Unlock()
	list := m.cfg.Records.Budgets()
	if len(list) == 0 {
		return
	}
	if house {
		m.dropBudgets(list)
	}
	running := map[cell.ID][]state.Cell{}
	for _, id := range m.cfg.Alive() {
		if c, err := m.cfg.Records.Cell(id); err == nil && c.State == cell.Running && c.Setup.Budgets.Of != "" {
			running[c.Setup.Budgets.Of] = append(running[c.Setup.Budgets.Of], c)
		}
	}
	for of, cells := range running {
		m.budgets.mu.Lock()
		b, ok := m.cfg.Records.Budget(of)
		if !ok {
			m.budgets.mu.Unlock()
			continue
		}
		limit := b.Granted.Time
		if limit > 0 {
			m.budgets.time[of] += since * time.Duration(len(cells))
			b.Used.Time += m.budgets.time[of].Milliseconds()
		}
		if limit == 0 || b.Reached == "" && m.budgets.time[of] < budgetKept && b.Used.Time < limit && (b.Used.Time < limit-b.Asked.Time/5 || slices.Contains(b.Near, "time")) {
			m.budgets.mu.Unlock()
		} else {
			delete(m.budgets.time, of)
			m.judge(ctx, &cells[0], b, "")
		}
		if b.Reached != "" {
			m.pauseAll(ctx, of)
		}
	}
}

// dropBudgets forgets budgets without a cell.
func (m *Manager) dropBudgets(list []state.Budget) {
	used := map[cell.ID]bool{}
	for _, c := range m.cfg.Records.Cells() {
		if c.State != cell.Removed {
			used[c.Setup.Budgets.Of], used[c.ID] = true, true
		}
	}
	for _, b := range list {
		if used[b.ID] {
			continue
		}
		recs := []any{state.Forget(state.ForgetBudget + string(b.ID))}
		if a, ok := m.cfg.Records.Approval(b.Asks); ok && a.State == state.ApprovalWaiting {
			a.State = state.Expired
			recs = append(recs, &a)
		}
		if err := m.cfg.Records.Commit(recs...); err != nil {
			m.cfg.Log.Error("cannot forget a budget", "cell", b.ID, "error", err)
		}
	}
}

// BudgetView is what callers see of a cell's budget; nil: it has none.
func (m *Manager) BudgetView(c *state.Cell) *api.Budget {
	b, ok := m.cfg.Records.Budget(c.Setup.Budgets.Of)
	if !ok {
		return nil
	}
	out := &api.Budget{Cell: string(b.ID), Reached: b.Reached, Approval: b.Asks, Parts: []api.BudgetPart{}}
	for name, n := range b.Granted.Each {
		out.Parts = append(out.Parts, api.BudgetPart{Name: name, Used: b.Used.Part(name), Granted: n})
	}
	if b.Granted.MicroUSD > 0 {
		out.Prices, out.OwnPrices = price.Date(), len(c.Setup.Prices()) > 0
	}
	return out
}

// budgetAsks reports whether a budget is reached, and an approval decides on it.
func (m *Manager) budgetAsks(id string) bool {
	return slices.ContainsFunc(m.cfg.Records.Budgets(), func(b state.Budget) bool { return b.Asks == id })
}
