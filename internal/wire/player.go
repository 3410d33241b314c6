package wire

import (
	"cmp"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	maxBodies = 20  // findings on bodies that are kept
	maxWant   = 300 // bytes of a request in them
	// maxStrange bounds the names that are counted which were not recorded.
	maxStrange = 10_000
)

// Player answers from a recording: each request by the next exchange of its host, method and path.
type Player struct {
	mu   sync.Mutex // guards the fields below
	left map[string][]*Exchange
	// names are those that were looked up, and the hosts of exchanges. strange are others that were asked for.
	names   map[string]Name
	strange map[string]bool
	done    cell.Replayed
}

// NewPlayer answers by exchanges, in the order of their requests, and by names.
func NewPlayer(list []*Exchange, names []Name) *Player {
	p := &Player{left: map[string][]*Exchange{}, names: map[string]Name{}, strange: map[string]bool{}}
	for _, e := range list { // of one that is known to the cell already there is no lookup
		if host, _, err := net.SplitHostPort(e.Host); err == nil {
			p.names[host] = Name{Host: host}
		}
	}
	for _, n := range names {
		p.names[n.Host] = n
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b *Exchange) int { return cmp.Compare(a.N, b.N) })
	for _, e := range list {
		p.left[e.key()] = append(p.left[e.key()], e)
	}
	return p
}

// Answer returns the recorded exchange for a request, and the reason where there is none. A body that
// differs is noted, and answered.
func (p *Player) Answer(q *Exchange) (e *Exchange, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.left[q.key()]
	if len(list) == 0 {
		why = "was not recorded"
		if _, known := p.left[q.key()]; known {
			why = "was not recorded as many times"
		}
		p.unanswered(q.Want(), why)
		return nil, why
	}
	e, p.left[q.key()] = list[0], list[1:]
	if e.Answer.Cut {
		why = "has a recorded answer that was cut, which cannot be replayed"
		p.unanswered(q.Want(), why)
		return nil, why
	}
	p.done.Answered++
	if d := differ(&e.Request, &q.Request); d != "" {
		if p.done.Differing++; len(p.done.Bodies) < maxBodies {
			p.done.Bodies = append(p.done.Bodies, shown(q.Want())+": "+d)
		}
	}
	return e, ""
}

// Resolve says what came of the lookup of a name. It is false, and that is noted, where there was none: there is no such name then.
func (p *Player) Resolve(host string) (Name, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, ok := p.names[host]
	if !ok && !p.strange[host] && len(p.strange) < maxStrange { // programs ask more than once
		p.strange[host] = true
		p.unanswered("resolve "+host, "was not recorded")
	}
	return n, ok
}

// Unanswerable notes a connection that no recording can answer.
func (p *Player) Unanswerable(want, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unanswered(want, why)
}

func (p *Player) unanswered(want, why string) {
	if p.done.Unanswered++; p.done.First == "" {
		p.done.First = shown(want) + " " + why
	}
}

// Done says what became of the requests.
func (p *Player) Done() cell.Replayed {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.done
	out.Bodies = slices.Clone(out.Bodies)
	var first *Exchange
	for _, list := range p.left {
		out.Unasked += int64(len(list))
		if len(list) > 0 && (first == nil || list[0].N < first.N) {
			first = list[0]
		}
	}
	if first != nil {
		out.FirstUnasked = shown(first.Want())
	}
	return out
}

// shown is a request, short and in valid UTF-8.
func shown(s string) string {
	if len(s) > maxWant {
		s = s[:maxWant] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}
