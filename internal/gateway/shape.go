package gateway

import (
	"math"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Names under a wildcard can carry data to the name servers of their domain. These bounds leave
// room for the names of real hosts, and little for data.
const (
	maxLabel    = 40
	maxUnder    = 80  // characters below the wildcard
	randomFrom  = 24  // from this length on, a label must not look random
	maxEntropy  = 4.0 // bits per character: a UUID has less, base32 more
	newPerMin   = 60  // under one domain, per minute
	maxDomains  = 1024
	siblingName = "pando-sibling-0"
)

// shapes remembers the names looked up under wildcards.
type shapes struct {
	mu      sync.Mutex
	domains map[string]*domain
	known   map[string]bool
}

type domain struct {
	count int
	since time.Time
}

// judge returns why an allowed name is not answered, or "".
func (s *shapes) judge(l *compiledPolicy, host string, count bool) string {
	apex, wild := wildcard(l, host)
	if !wild {
		return ""
	}
	under := strings.TrimSuffix(strings.TrimSuffix(host, apex), ".")
	if len(under) > maxUnder {
		return "the name is too long for one under a wildcard"
	}
	for label := range strings.SplitSeq(under, ".") {
		if len(label) > maxLabel {
			return "a part of the name is too long for one under a wildcard"
		}
		if len(label) >= randomFrom && entropy(label) > maxEntropy {
			return "a part of the name looks like data and not like a name"
		}
	}
	if !count {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[host] {
		return ""
	}
	if s.known == nil {
		s.known, s.domains = map[string]bool{}, map[string]*domain{}
	}
	now := time.Now()
	d := s.domains[apex]
	if d == nil {
		if len(s.domains) >= maxDomains {
			for k, d := range s.domains {
				if now.Sub(d.since) > time.Minute {
					delete(s.domains, k)
				}
			}
			if len(s.domains) >= maxDomains {
				return "too many domains were looked up within a minute"
			}
		}
		d = &domain{since: now}
		s.domains[apex] = d
	}
	if now.Sub(d.since) > time.Minute {
		d.count, d.since = 0, now
	}
	if d.count++; d.count > newPerMin {
		return "too many names of one domain were looked up within a minute"
	}
	if len(s.known) < maxNames {
		s.known[host] = true
	}
	return ""
}

// wildcard finds the domain below which the policy allows any name, by deciding on random
// sibling names. Where the policy allows everything, it is the last two labels.
func wildcard(l *compiledPolicy, host string) (apex string, wild bool) {
	allowed := func(host string) bool {
		return l.decide(cell.Access{Act: cell.Resolve, Host: host}).Effect != cell.Deny
	}
	parent := host
	for {
		_, up, ok := strings.Cut(parent, ".")
		if !ok || !allowed(siblingName+"."+up) {
			break
		}
		parent, apex, wild = up, up, true
	}
	if wild && !strings.Contains(apex, ".") {
		labels := strings.Split(host, ".")
		apex = strings.Join(labels[max(len(labels)-2, 0):], ".")
	}
	return apex, wild
}

// entropy is the entropy of a label's characters, in bits per character.
func entropy(s string) (bits float64) {
	var n [256]int
	for _, b := range []byte(s) {
		n[b]++
	}
	for _, k := range n {
		if k > 0 {
			p := float64(k) / float64(len(s))
			bits -= p * math.Log2(p)
		}
	}
	return bits
}
