package gateway

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	gatherFor  = time.Second // equal decisions within this time are one event
	maxGather  = 1024        // kinds of gathered decisions; further ones are one event
	maxFailing = 32          // recent names that could not be looked up
	eachTold   = 32          // the first of these allowed decisions get an event each
)

// events emits decisions, so that a flood makes few events and no decision is missing.
type events struct {
	emit func(kind string, fields any)
	deny func(cell.Access, cell.Decision) // called for each denial of a request of the cell

	mu     sync.Mutex // guards the fields below
	gather map[cell.Access]*gathered
	rest   map[restKey]*gathered // beyond maxGather
	trials []*Trial
	timer  *time.Timer
	closed bool

	failing map[string]bool // recent names that could not be looked up
}

// unresolved reports a failed lookup of an allowed name, each name once in gatherFor, since
// programs retry.
func (e *events) unresolved(host string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || len(e.failing) >= maxFailing && !e.failing[host] {
		return
	}
	if len(e.failing) == 0 {
		e.failing = map[string]bool{}
		time.AfterFunc(gatherFor, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.failing = nil
		})
	}
	if !e.failing[host] {
		e.failing[host] = true
		e.emit("network.unresolved", cell.Unresolved{Host: host, Error: err.Error()})
	}
}

// restKey separates allowed from denied decisions.
type restKey struct {
	act    cell.Act
	effect cell.Effect
}

// gathered counts equal decisions after the first, which has its own event.
type gathered struct {
	last  cell.Decided
	told  int   // with an event each
	extra int64 // without an event yet
}

func newEvents(emit func(string, any), deny func(cell.Access, cell.Decision)) *events {
	return &events{emit: emit, deny: deny, gather: map[cell.Access]*gathered{}, rest: map[restKey]*gathered{}}
}

// connID makes the id of a connection.
func connID() string {
	var b [8]byte
	rand.Read(b[:])
	return "n-" + hex.EncodeToString(b[:])
}

// decided emits or counts a decision.
func (e *events) decided(d cell.Decided) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.tried(d) {
		return
	}
	if d.Decision.Effect == cell.Deny {
		e.deny(d.Access, d.Decision)
	}
	each := 1
	if d.Decision.Effect != cell.Deny {
		each = eachTold
	}
	k, rest := e.gather[d.Access], false
	switch {
	case k == nil && len(e.gather) < maxGather:
		k = &gathered{}
		e.gather[d.Access] = k
	case k == nil:
		rest = true
		by := restKey{d.Access.Act, d.Decision.Effect}
		if k = e.rest[by]; k == nil {
			k = &gathered{}
			e.rest[by] = k
		}
	}
	if e.timer == nil {
		e.timer = time.AfterFunc(gatherFor, e.flush)
	}
	differs := k.told > 0 && k.last.Decision != d.Decision && !rest
	k.last = d
	if k.told >= each && !differs {
		k.extra++
		return
	}
	k.told++
	e.emit("decision", d)
}

// flush emits the counted decisions.
func (e *events) flush() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tell()
	e.timer = nil
}

func (e *events) tell() {
	for a, k := range e.gather {
		if k.extra > 0 {
			k.last.Count = k.extra
			e.emit("decision", k.last)
		}
		delete(e.gather, a)
	}
	for by, k := range e.rest {
		if k.extra > 0 {
			k.last.Count = k.extra
			k.last.Access = cell.Access{Act: by.act}
			k.last.Decision = cell.Decision{Effect: by.effect, Rule: "rest", Origin: "gateway", By: k.last.Decision.By, Reason: "there were too many requests to list each"}
			e.emit("decision", k.last)
		}
		delete(e.rest, by)
	}
}

// maxError bounds an error in an event: hosts can make it long, and an event that is too long is
// dropped.
const maxError = 1 << 10

func (e *events) flow(f cell.Flow) {
	if len(f.Error) > maxError {
		f.Error = strings.ToValidUTF8(f.Error[:maxError], "") + "…"
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.emit("flow", f)
	}
}

// budget emits what the daemon has told of a budget.
func (e *events) budget(n cell.BudgetNote) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.emit("budget", n)
	}
}

func (e *events) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer != nil {
		e.timer.Stop()
	}
	e.tell()
	e.closed = true
}

// tell emits a decision, and returns the event's id.
func (g *Gateway) tell(l *compiledPolicy, a cell.Access, d cell.Decision, conn string) string {
	id := cell.NewRequestID()
	g.events.decided(cell.Decided{ID: id, Access: a, Decision: d, Policy: l.policy, Conn: conn})
	return id
}
