package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	askFor     = 10 * time.Minute // unless the policy sets another time
	maxAsked   = 64               // questions that wait for a person
	maxHeld    = 256              // connections and requests that wait for an answer
	maxAnswers = 1024
	maxNew     = 128 // questions within a minute: each is recorded, and shown to the person
)

// Bind returns the digest that an answer is bound to: that of the request and of the policy that
// asks.
func Bind(a cell.Access, policy cell.Digest) cell.Digest {
	b, err := json.Marshal(struct {
		Access cell.Access `json:"access"`
		Policy cell.Digest `json:"policy"`
	}{a, policy})
	if err != nil {
		panic(err) // these types can be marshalled
	}
	return cell.Sum(b)
}

// asks are the questions that wait for a person, and the answers that are still valid.
type asks struct {
	g *Gateway

	mu      sync.Mutex // guards the fields below
	waiting []*question
	held    int
	answers []cell.Answered
	spent   map[string]bool // answers for one request that were used, by the id of the question
	changed chan struct{}   // closed and replaced when waiting has changed
	closed  bool
	minute  time.Time // start of the minute in which questions are counted
	fresh   int

	turns      []*turnWait
	turnMinute time.Time
	freshTurns int

	id   string          // of what this gateway tells of models
	used []cell.ModelUse // since it was opened
}

// question is one question. All requests for the same wait together.
type question struct {
	cell.Asked
	waiters []chan cell.Answered
}

func newAsks(g *Gateway) *asks {
	return &asks{g: g, changed: make(chan struct{}), spent: map[string]bool{}, id: cell.NewRequestID()}
}

// news wakes watchers. a.mu is held.
func (a *asks) news() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// Asked returns the waiting questions, oldest first, and a channel that is closed at the next
// change.
func (g *Gateway) Asked() (list []cell.Asked, changed <-chan struct{}) {
	g.asks.mu.Lock()
	defer g.asks.mu.Unlock()
	for _, q := range g.asks.waiting {
		list = append(list, q.Asked)
	}
	for _, w := range g.asks.turns {
		list = append(list, w.asked)
	}
	if len(g.asks.used) > 0 {
		list = append(list, cell.Asked{ID: g.asks.id, Cell: g.cfg.Cell, Used: slices.Clone(g.asks.used)})
	}
	return list, g.asks.changed
}

// Answer applies a person's decision. It is valid for exactly the request and the policy that
// asked: "once" for one request, "run" and "time" until it expires or is governed away.
func (g *Gateway) Answer(ans cell.Answered) error {
	if ans.Ask.Turn != nil {
		return g.asks.turnTaken(ans.Ask.ID)
	}
	if note := ans.Ask.Budget; note != nil {
		g.events.budget(*note)
		return nil
	}
	invalid := func(kind cell.Kind, hint, format string, args ...any) error {
		return cell.Errorf(kind, "gateway.Answer", hint, "cannot answer %s: %w", ans.Ask.ID, fmt.Errorf(format, args...))
	}
	if ans.Effect != cell.Allow && ans.Effect != cell.Deny {
		return invalid(cell.Invalid, "answer allow or deny", "%q is no answer", ans.Effect)
	}
	if ans.Scope != "once" && ans.Scope != "run" && ans.Scope != "time" {
		return invalid(cell.Invalid, "choose once, run or time", "%q is no scope", ans.Scope)
	}
	if ans.Scope == "time" && ans.Expires.IsZero() {
		return invalid(cell.Invalid, "say until when", "the answer has no expiry")
	}
	if !ans.Expires.IsZero() && time.Now().After(ans.Expires) {
		return invalid(cell.Conflict, "answer anew", "the answer has expired")
	}
	l := g.inForce.Load()
	if ans.Ask.Policy != l.policy {
		return invalid(cell.Conflict, "look at what is asked now", "another policy is in force than the one that asked")
	}
	if ans.Ask.Digest != Bind(ans.Ask.Access, l.policy) {
		return invalid(cell.Conflict, "look at what is asked now", "the answer is to something else")
	}
	a := g.asks
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.waiting, func(q *question) bool { return q.ID == ans.Ask.ID })
	if i < 0 {
		return invalid(cell.NotFound, "look at what is asked now", "the request does not wait any more")
	}
	q := a.waiting[i]
	if q.Digest != ans.Ask.Digest {
		return invalid(cell.Conflict, "look at what is asked now", "the answer is to something else")
	}
	if ans.Scope == "once" {
		a.spent[ans.Ask.ID] = true
		q.waiters[0] <- ans
		q.waiters = q.waiters[1:]
		if len(q.waiters) > 0 { // the next is a question of its own
			q.ID = cell.NewRequestID()
		} else {
			a.waiting = slices.Delete(a.waiting, i, i+1)
		}
	} else {
		a.keep(ans)
		for _, w := range q.waiters {
			w <- ans
		}
		a.waiting = slices.Delete(a.waiting, i, i+1)
	}
	a.news()
	return nil
}

// keep remembers an answer. a.mu is held.
func (a *asks) keep(ans cell.Answered) {
	a.answers = slices.DeleteFunc(a.answers, func(o cell.Answered) bool { return o.Ask.Digest == ans.Ask.Digest && o.Scope != "once" })
	if len(a.answers) >= maxAnswers {
		a.answers = a.answers[1:]
	}
	a.answers = append(a.answers, ans)
}

// restore replaces the answers by those of a governance.
func (a *asks) restore(list []cell.Answered) {
	l := a.g.inForce.Load()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers = nil
	for _, ans := range list {
		if ans.Ask.Policy == l.policy && ans.Ask.Digest == Bind(ans.Ask.Access, l.policy) {
			a.keep(ans)
		}
	}
	// A request under a policy that is no longer in force gets no answer.
	moved := false
	a.waiting = slices.DeleteFunc(a.waiting, func(q *question) bool {
		if q.Policy == l.policy {
			return false
		}
		for _, w := range q.waiters {
			w <- cell.Answered{Effect: cell.Deny, By: "policy"}
		}
		moved = true
		return true
	})
	if moved {
		a.news()
	}
}

// find returns an earlier valid answer. a.mu is held.
func (a *asks) find(d cell.Digest) (ans cell.Answered, ok bool) {
	now := time.Now()
	for i, o := range a.answers {
		if o.Ask.Digest != d || !o.Expires.IsZero() && now.After(o.Expires) {
			continue
		}
		if o.Scope == "once" {
			if a.spent[o.Ask.ID] {
				continue
			}
			a.spent[o.Ask.ID] = true
			a.answers = slices.Delete(a.answers, i, i+1)
		}
		return o, true
	}
	return ans, false
}

// ask blocks the caller until a person decides, the question expires, or ctx ends. It returns
// the id of the question and the decision, after emitting it.
func (a *asks) ask(ctx context.Context, l *compiledPolicy, acc cell.Access, d cell.Decision, conn string) (id string, out cell.Decision) {
	id = cell.NewRequestID()
	digest := Bind(acc, l.policy)
	told := func(d cell.Decision) (string, cell.Decision) {
		a.g.events.decided(cell.Decided{ID: id, Access: acc, Decision: d, Policy: l.policy, Conn: conn})
		return id, d
	}
	deny := func(reason string) (string, cell.Decision) {
		d.Effect, d.Reason, d.Credential = cell.Deny, reason, ""
		return told(d)
	}
	a.mu.Lock()
	if ans, ok := a.find(digest); ok {
		a.mu.Unlock()
		return told(answered(d, ans))
	}
	switch {
	case a.closed:
		a.mu.Unlock()
		return deny("the cell's network has ended")
	case a.held >= maxHeld:
		a.mu.Unlock()
		return deny("too many requests wait for a person already")
	}
	i := slices.IndexFunc(a.waiting, func(q *question) bool { return q.Digest == digest })
	var q *question
	if i >= 0 {
		q = a.waiting[i]
	} else {
		if len(a.waiting) >= maxAsked {
			a.mu.Unlock()
			return deny("too many requests wait for a person already")
		}
		now := time.Now()
		if now.Sub(a.minute) > time.Minute {
			a.minute, a.fresh = now, 0
		}
		if a.fresh++; a.fresh > maxNew {
			a.mu.Unlock()
			return deny("too many requests were made within a minute")
		}
		q = &question{Asked: cell.Asked{ID: id, Cell: a.g.cfg.Cell, Access: acc, Reason: d.Reason, Rule: d.Rule, Origin: d.Origin,
			Policy: l.policy, Digest: digest, At: now, Expires: now.Add(l.askFor)}}
		a.waiting = append(a.waiting, q)
		a.news()
	}
	w := make(chan cell.Answered, 1)
	q.waiters = append(q.waiters, w)
	a.held++
	expires := q.Expires
	a.mu.Unlock()
	told(d)

	timer := time.NewTimer(time.Until(expires))
	defer timer.Stop()
	reason := ""
	select {
	case ans := <-w:
		a.mu.Lock()
		a.held--
		a.mu.Unlock()
		return told(answered(d, ans))
	case <-timer.C:
		reason = "no decision in time"
	case <-ctx.Done():
		reason = "the caller has given up"
	}
	a.mu.Lock()
	a.held--
	q.waiters = slices.DeleteFunc(q.waiters, func(o chan cell.Answered) bool { return o == w })
	if i := slices.Index(a.waiting, q); i >= 0 && len(q.waiters) == 0 {
		a.waiting = slices.Delete(a.waiting, i, i+1)
		a.news()
	}
	select {
	case ans := <-w: // it came just now, and counts
		a.mu.Unlock()
		return told(answered(d, ans))
	default:
	}
	a.mu.Unlock()
	return deny(reason)
}

// answered returns the decision of a person.
func answered(d cell.Decision, ans cell.Answered) cell.Decision {
	d.Effect, d.By = ans.Effect, "person"
	d.Reason = fmt.Sprintf("%s by %s", map[cell.Effect]string{cell.Allow: "allowed", cell.Deny: "denied"}[ans.Effect], ans.By)
	if ans.Effect != cell.Allow {
		d.Credential = ""
	}
	return d
}

// close denies the waiting questions.
func (a *asks) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, q := range a.waiting {
		for _, w := range q.waiters {
			w <- cell.Answered{Effect: cell.Deny, By: "the end of the cell's network"}
		}
	}
	for _, w := range a.turns {
		close(w.taken)
	}
	a.waiting, a.turns = nil, nil
	a.news()
}
