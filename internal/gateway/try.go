package gateway

import (
	"slices"

	"github.com/pando-dev/pando/internal/cell"
)

// maxTrials bounds the trials at once.
const maxTrials = 256

// Trial observes what canaries try. A canary counts only when its attempt was seen from outside.
type Trial struct {
	g        *Gateway
	accesses []cell.Access
	denied   []bool
	seen     []bool
}

// Try announces accesses that canaries will attempt. For each the trial reports whether it is
// denied now (an allowed one must not be attempted), and later whether it arrived here and was
// denied. During the trial these denials make no events, since they are not the cell's own.
//
// The lookup of a name is {Act: Resolve, Host}; a connection to an address {Act: Connect, Addr,
// Port, Transport}, with Transport "tcp", "udp", or "icmp" without a port.
func (g *Gateway) Try(accesses []cell.Access) (*Trial, error) {
	t := &Trial{g: g, accesses: slices.Clone(accesses), denied: make([]bool, len(accesses)), seen: make([]bool, len(accesses))}
	l := g.inForce.Load()
	for i, a := range accesses {
		t.denied[i] = g.decideAny(l, a).Effect == cell.Deny
	}
	g.events.mu.Lock()
	defer g.events.mu.Unlock()
	if len(g.events.trials) >= maxTrials {
		return nil, cell.Errorf(cell.Unavailable, "gateway.Try", "start fewer commands at once", "cannot prove the network of cell %s: too many canaries are running", g.cfg.Cell)
	}
	g.events.trials = append(g.events.trials, t)
	return t, nil
}

// decideAny decides on an access that arrives from the cell.
func (g *Gateway) decideAny(l *compiledPolicy, a cell.Access) cell.Decision {
	switch a.Act {
	case cell.Resolve:
		return g.decideName(l, a, false)
	case cell.Connect:
		return g.decideConnect(l, a)
	}
	return l.decide(a)
}

// Denied reports, for each access, whether it was denied when it was announced.
func (t *Trial) Denied() []bool { return t.denied }

// Seen reports, for each access, whether it has arrived and was denied.
func (t *Trial) Seen() []bool {
	t.g.events.mu.Lock()
	defer t.g.events.mu.Unlock()
	return slices.Clone(t.seen)
}

// End ends the trial.
func (t *Trial) End() {
	e := t.g.events
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trials = slices.DeleteFunc(e.trials, func(o *Trial) bool { return o == t })
}

// tried records an announced denial. Each announced access is matched once: a second equal one
// of the cell makes an event. e.mu is held.
func (e *events) tried(d cell.Decided) (announced bool) {
	if d.Decision.Effect != cell.Deny {
		return false
	}
	for _, t := range e.trials {
		for i, a := range t.accesses {
			if a == d.Access && !t.seen[i] {
				t.seen[i] = true
				return true
			}
		}
	}
	return false
}
