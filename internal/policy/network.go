package policy

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// The modes of a network.
const (
	ModeNone    = "none"    // its own loopback only
	ModeGateway = "gateway" // an interface that ends at the cell's gateway
)

// Network says what a cell may reach. Deny wins over ask, ask over allow, and what no rule
// covers is denied. The order of rules does not matter.
type Network struct {
	Mode  string `json:"mode"`
	Allow []Rule `json:"allow"`
	Ask   []Rule `json:"ask"` // a person decides
	Deny  []Rule `json:"deny"`
	// Bounds are what the layers above allow and ask about: each decides too,
	// and the strictest of all answers counts.
	Bounds []Bound `json:"bounds,omitempty"`
}

// Bound is what a layer allows at most.
type Bound struct {
	Allow []Rule `json:"allow"`
	Ask   []Rule `json:"ask"`
}

// Rule matches accesses, in its canonical form: every list sorted, nothing
// twice. Where an access has no such part (a connection has no method), the
// part does not count.
type Rule struct {
	// Hosts are names, "*.name" (every name below it), "*" (every name),
	// addresses and prefixes. Empty, in an exception only: all.
	Hosts []string `json:"hosts,omitempty"`
	// Ports are "443" or "8000-8010". Empty: all.
	Ports []string `json:"ports,omitempty"`
	// Methods are those of HTTP. GET is HEAD too. Empty: all, and what is not
	// HTTP.
	Methods []string `json:"methods,omitempty"`
	// Paths are patterns such as "/repos/me/**". Empty: all.
	Paths []string `json:"paths,omitempty"`
	// Except says what the rule does not match. Exceptions have no exceptions.
	Except []Rule `json:"except,omitempty"`
	// Credential is the handle of what is put into requests that this rule
	// allows.
	Credential string `json:"credential,omitempty"`
}

// Inside reports whether one has to look into a connection to know whether
// the rule matches.
func (r Rule) Inside() bool { return len(r.Methods) > 0 || len(r.Paths) > 0 }

// Canonical is r with every list sorted and without repetition.
func (r Rule) Canonical() Rule {
	r.Hosts, r.Methods, r.Paths = unique(r.Hosts), unique(r.Methods), unique(r.Paths)
	r.Ports = canonicalPorts(r.Ports)
	var except []Rule
	for _, e := range r.Except {
		except = append(except, e.Canonical())
	}
	r.Except = nil
	if len(except) > 0 {
		r.Except = canonicalRules(except)
	}
	return r
}

// key is the canonical text of a rule.
func (r Rule) key() string {
	b, _ := json.Marshal(r.Canonical()) // strings: cannot fail
	return string(b)
}

// canonicalRules sorts rules by their text and drops repetitions. It never
// returns nil: an empty list is written as one.
func canonicalRules(rules []Rule) []Rule {
	byKey := map[string]Rule{}
	var keys []string
	for _, r := range rules {
		k := r.key()
		if _, ok := byKey[k]; !ok {
			keys = append(keys, k)
		}
		byKey[k] = r.Canonical()
	}
	slices.Sort(keys)
	out := make([]Rule, 0, len(keys))
	for _, k := range keys {
		out = append(out, byKey[k])
	}
	return out
}

func (n Network) canonical() Network {
	n.Allow, n.Ask, n.Deny = canonicalRules(n.Allow), canonicalRules(n.Ask), canonicalRules(n.Deny)
	bounds := n.Bounds
	n.Bounds = nil
	for _, b := range bounds {
		n.Bounds = append(n.Bounds, Bound{canonicalRules(b.Allow), canonicalRules(b.Ask)})
	}
	n.Mode = ModeNone
	if len(n.Allow)+len(n.Ask) > 0 {
		n.Mode = ModeGateway
	}
	return n
}

// unique is list sorted and without repetition, nil when it is empty.
func unique(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	out := slices.Clone(list)
	slices.Sort(out)
	return slices.Compact(out)
}

// Span is a range of ports, both ends included.
type Span struct{ From, To uint16 }

func (s Span) String() string {
	if s.From == s.To {
		return strconv.Itoa(int(s.From))
	}
	return strconv.Itoa(int(s.From)) + "-" + strconv.Itoa(int(s.To))
}

// ParseSpan reads "443" or "8000-8010".
func ParseSpan(s string) (Span, error) {
	bad := cell.Errorf(cell.Invalid, "policy.ports", "write a port such as 443, or a range such as 8000-8010", "%q is no port", s)
	one := func(t string) (uint16, bool) {
		n, err := strconv.ParseUint(t, 10, 16)
		return uint16(n), err == nil && n > 0 && t == strconv.FormatUint(n, 10)
	}
	from, to, isRange := strings.Cut(s, "-")
	a, ok := one(from)
	if !ok {
		return Span{}, bad
	}
	if !isRange {
		return Span{a, a}, nil
	}
	b, ok := one(to)
	if !ok || b < a {
		return Span{}, bad
	}
	return Span{a, b}, nil
}

// ParseSpans reads the ports of a rule.
func ParseSpans(ports []string) (out []Span, err error) {
	for _, p := range ports {
		s, err := ParseSpan(p)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// canonicalPorts joins ports that overlap or touch, in order. All ports are
// the empty list.
func canonicalPorts(ports []string) []string {
	spans, err := ParseSpans(ports)
	if err != nil || len(spans) == 0 {
		return unique(ports) // refused when it is compiled
	}
	slices.SortFunc(spans, func(a, b Span) int { return int(a.From) - int(b.From) })
	joined := spans[:1]
	for _, s := range spans[1:] {
		last := &joined[len(joined)-1]
		if int(s.From) <= int(last.To)+1 {
			last.To = max(last.To, s.To)
			continue
		}
		joined = append(joined, s)
	}
	if len(joined) == 1 && joined[0] == (Span{1, 65535}) {
		return nil
	}
	var out []string
	for _, s := range joined {
		if s.To == s.From+1 { // two ports are no range: 80 and 81 read better
			out = append(out, Span{s.From, s.From}.String(), Span{s.To, s.To}.String())
			continue
		}
		out = append(out, s.String())
	}
	return out
}

// InSpans reports whether a port is in one of the spans; no spans are all ports.
func InSpans(spans []Span, port uint16) bool {
	if len(spans) == 0 {
		return true
	}
	for _, s := range spans {
		if port >= s.From && port <= s.To {
			return true
		}
	}
	return false
}

// CoversSpans reports whether all ports of b are in a, span by span.
func CoversSpans(a, b []Span) bool {
	if len(a) == 0 {
		return true
	}
	if len(b) == 0 {
		return len(a) == 1 && a[0] == Span{1, 65535}
	}
	for _, s := range b {
		if !slices.ContainsFunc(a, func(t Span) bool { return t.From <= s.From && s.To <= t.To }) {
			return false
		}
	}
	return true
}

// IsMethod reports whether m is written as an HTTP method.
func IsMethod(m string) bool {
	return m != "" && strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") == "" && len(m) <= 32
}
