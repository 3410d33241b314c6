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
	gatherFor  = time.Second // what is alike within this time is told by one event
	maxGather  = 1024        // kinds of it; what is more is told as one
	maxFailing = 32          // names of a moment that could not be looked up
	eachTold   = 32          // of what is allowed, so many are told one by one first
)

// events tells what was decided, so that a flood makes few events and nothing
// goes untold.
type events struct {
	emit func(kind string, fields any)
	deny func(cell.Access, cell.Decision) // is told of each denial that is the cell's doing

	mu     sync.Mutex // guards what follows
	gather map[cell.Access]*gathered
	rest   map[restKey]*gathered // beyond maxGather
	trials []*Trial
	timer  *time.Timer
	closed bool

	failing map[string]bool // names that could not be looked up a moment ago
}

// unresolved tells that an allowed name could not be looked up: of each once in gatherFor,
// since programs try again.
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

// restKey keeps what was allowed apart from what was denied.
type restKey struct {
	act    cell.Act
	effect cell.Effect
}

// gathered are decisions that are alike. The first was told at once.
type gathered struct {
	last  cell.Decided
	told  int   // one by one
	extra int64 // not told yet
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

// decided tells a decision.
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

// flush tells what has gathered.
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
			k.last.Decision = cell.Decision{Effect: by.effect, Rule: "rest", Origin: "gateway", By: k.last.Decision.By, Reason: "more was asked for than is told one by one"}
			e.emit("decision", k.last)
		}
		delete(e.rest, by)
	}
}

// maxError is how much is told of an error: hosts can make them long, and an
// event that is too long is none.
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

func (e *events) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer != nil {
		e.timer.Stop()
	}
	e.tell()
	e.closed = true
}

// tell makes an event of a decision, and returns its id.
func (g *Gateway) tell(l *law, a cell.Access, d cell.Decision, conn string) string {
	id := cell.NewRequestID()
	g.events.decided(cell.Decided{ID: id, Access: a, Decision: d, Policy: l.policy, Conn: conn})
	return id
}
