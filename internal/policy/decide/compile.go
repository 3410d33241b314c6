// Package decide answers what a policy says of a request. It is pure: a request and rules go in; the
// decision and its reason come out. Rules are asked by way of Cedar (cedar.go).
package decide

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cedar-policy/cedar-go"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

// Rules is a policy, ready to decide. It is never changed: all methods are
// safe for concurrent use.
type Rules struct {
	policy  policy.Effective
	digest  cell.Digest
	origins policy.Origins
	rules   []*compiled // deny, then ask, then allow

	// Which rules can speak of a name: those that have it, those that have
	// *.NAME for something it lies below, and those that have "*". And which
	// have ranges of addresses.
	names  map[string][]*compiled
	below  map[string][]*compiled
	any    []*compiled
	ranges []*compiled
	// Whether a rule, or an exception, has ranges.
	usesAddrs bool
	// What the layers above allow at most.
	bounds []*Rules

	lent     []lentFor // of the section credentials
	unpinned map[string]bool
	programs []program // of processes.deny
	builtin  map[cell.Act]fixed
}

// compiled is a rule with what it takes to ask Cedar about it.
type compiled struct {
	name   string // "allow 2"
	effect cell.Effect
	rule   policy.Rule
	exact  map[string]bool
	suffix []string // ".example.com"
	all    bool
	nets   []netip.Prefix
	spans  []policy.Span
	paths  []pathValue // its own and those of its exceptions
	// For each act the Cedar policy that the rule is then; nil: it does not
	// speak of such acts.
	policies [5]*cedar.Policy // by number of the act
	except   []*compiled
	// Whether it, or one of its exceptions, looks at these.
	usesPorts, usesMethods bool
}

// Compile reads the canonical form of a policy. It accepts exactly what
// Canonical gives: the digest of the bytes is the policy's.
func Compile(canonical []byte) (*Rules, error) { return compile(canonical, policy.Origins{}) }

// Govern compiles what a cell's gateway goes by, with the origins of its rules
// for the explanations.
func Govern(g cell.Governance) (*Rules, error) {
	var o policy.Origins
	if len(g.Origins) > 0 {
		if err := json.Unmarshal(g.Origins, &o); err != nil {
			return nil, cell.Errorf(cell.Corrupt, "decide.Govern", "", "cannot read the origins of a policy: %w", err)
		}
	}
	return compile(g.Policy, o)
}

func compile(canonical []byte, origins policy.Origins) (*Rules, error) {
	const op = "decide.Compile"
	var e policy.Effective
	dec := json.NewDecoder(bytes.NewReader(canonical))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		return nil, cell.Errorf(cell.Corrupt, op, "", "cannot read the policy: %w", err)
	}
	if !bytes.Equal(e.Canonical(), canonical) {
		return nil, cell.Errorf(cell.Corrupt, op, "", "cannot use the policy: it is not in its canonical form")
	}
	return compileAll(e, origins)
}

// Of compiles an effective policy, with its origins.
func Of(r policy.Result) (*Rules, error) { return compile(r.Canonical(), r.Origins) }

func compileAll(e policy.Effective, origins policy.Origins) (*Rules, error) {
	if err := errors.Join(policy.CheckStrength(e.Isolation.Least), policy.CheckSecrets(string(e.Secrets))); err != nil {
		return nil, cell.Errorf(cell.Corrupt, "decide.Compile", "", "cannot use the policy: %w", err)
	}
	p, err := compileNetwork(e.Network, "")
	if err != nil {
		return nil, err
	}
	p.policy, p.digest, p.origins = e, e.Digest(), origins
	for i, b := range e.Network.Bounds {
		q, err := compileNetwork(policy.Network{Allow: b.Allow, Ask: b.Ask}, policy.BoundName(i, "", -1)+" ")
		if err != nil {
			return nil, err
		}
		q.origins = origins
		p.bounds = append(p.bounds, q)
	}
	p.unpinned = map[string]bool{} // what a rule names alone is pinned
	for _, c := range e.Credentials {
		p.unpinned[c.Handle] = c.Unpinned
	}
	if p.lent, err = compileLent(e.Credentials); err != nil {
		return nil, err
	}
	if p.programs, err = compilePrograms(e.Processes.Deny); err != nil {
		return nil, err
	}
	return p, err
}

// compileNetwork compiles the rules of one layer.
func compileNetwork(n policy.Network, prefix string) (*Rules, error) {
	p := &Rules{names: map[string][]*compiled{}, below: map[string][]*compiled{}}
	for _, list := range []struct {
		effect cell.Effect
		rules  []policy.Rule
	}{{cell.Deny, n.Deny}, {cell.Ask, n.Ask}, {cell.Allow, n.Allow}} {
		for i, r := range list.rules {
			c, err := compileRule(prefix+string(list.effect)+" "+strconv.Itoa(i+1), list.effect, r)
			if err != nil {
				return nil, err
			}
			c.toCedar()
			p.rules = append(p.rules, c)
			p.index(c)
		}
	}
	var err error
	p.builtin, err = fixedPolicies()
	return p, err
}

// index files a rule under the names and addresses that it covers.
func (p *Rules) index(c *compiled) {
	for h := range c.exact {
		p.names[h] = append(p.names[h], c)
	}
	for _, s := range c.suffix {
		p.below[s[1:]] = append(p.below[s[1:]], c)
	}
	if c.all {
		p.any = append(p.any, c)
	}
	if len(c.nets) > 0 {
		p.ranges = append(p.ranges, c)
	}
	p.usesAddrs = p.usesAddrs || len(c.nets) > 0 || slices.ContainsFunc(c.except, func(x *compiled) bool { return len(x.nets) > 0 })
}

// compileRule checks one rule of a canonical policy.
func compileRule(name string, effect cell.Effect, r policy.Rule) (*compiled, error) {
	const op = "decide.Compile"
	c := &compiled{name: name, effect: effect, rule: r, exact: map[string]bool{}}
	for _, h := range r.Hosts {
		canonical, err := policy.CanonicalHost(h)
		if err == nil && canonical != h {
			err = policy.BadTarget(h, "it is not in its one form")
		}
		if err != nil {
			return nil, cell.Errorf(cell.Corrupt, op, "", "cannot use rule %s: %w", name, err)
		}
		if n, ok := policy.ParseRange(h); ok {
			c.nets = append(c.nets, n)
		} else if h == "*" {
			c.all = true
		} else if s, ok := strings.CutPrefix(h, "*"); ok {
			c.suffix = append(c.suffix, s)
		} else {
			c.exact[h] = true
		}
	}
	var err error
	if c.spans, err = policy.ParseSpans(r.Ports); err != nil {
		return nil, cell.Errorf(cell.Corrupt, op, "", "cannot use rule %s: %w", name, err)
	}
	if effect != cell.Deny && c.exact[cell.HostName] && len(c.spans) == 0 {
		return nil, cell.Errorf(cell.Corrupt, op, "", "cannot use rule %s: it is about all of the user's machine", name)
	}
	c.usesPorts, c.usesMethods = len(r.Ports) > 0, len(r.Methods) > 0
	for _, m := range r.Methods {
		if !policy.IsMethod(m) {
			return nil, cell.Errorf(cell.Corrupt, op, "", "cannot use rule %s: %q is no method", name, m)
		}
	}
	for _, t := range r.Paths {
		canonical, err := policy.ParsePathPattern(t)
		if err != nil || canonical != t {
			return nil, cell.Errorf(cell.Corrupt, op, "", "cannot use rule %s: %q is no pattern of paths", name, t)
		}
		c.paths = append(c.paths, newPathValue(t))
	}
	for i, x := range r.Except {
		if len(x.Except) > 0 || x.Credential != "" {
			return nil, cell.Errorf(cell.Corrupt, op, "", "cannot use rule %s: an exception has no exceptions and no credential", name)
		}
		e, err := compileRule(name+" except "+strconv.Itoa(i+1), effect, x)
		if err != nil {
			return nil, err
		}
		c.except = append(c.except, e)
		c.paths = append(c.paths, e.paths...)
		c.usesPorts, c.usesMethods = c.usesPorts || e.usesPorts, c.usesMethods || e.usesMethods
	}
	if len(r.Hosts) == 0 && !strings.Contains(name, " except ") {
		return nil, cell.Errorf(cell.Corrupt, op, "", "cannot use rule %s: it names no host", name)
	}
	return c, nil
}

// Digest is that of the canonical form.
func (p *Rules) Digest() cell.Digest { return p.digest }

// Policy is the policy itself.
func (p *Rules) Policy() policy.Effective { return p.policy }

// AskFor is how long a question waits for a person.
func (p *Rules) AskFor() time.Duration {
	return time.Duration(p.policy.Approvals.Timeout) * time.Millisecond
}

// Egress is how many bytes may leave the cell; 0: any number.
func (p *Rules) Egress() int64 { return p.policy.Limits.Egress }

// named reports whether a rule of allow or ask names a special address: the
// address itself, or a range that lies within the special one.
func (p *Rules) named(a netip.Addr, b policy.Block, port uint16) bool {
	bits := b.Prefix.Bits()
	if !b.Prefix.Contains(a) { // what a tunnelling address leads to: only it itself will do
		bits = a.BitLen()
	}
	for _, c := range p.ranges {
		if c.effect == cell.Deny || !policy.InSpans(c.spans, port) {
			continue
		}
		if slices.ContainsFunc(c.nets, func(n netip.Prefix) bool { return n.Bits() >= bits && n.Contains(a) }) {
			return true
		}
	}
	return false
}

// hasName reports whether the rule has a name.
func (c *compiled) hasName(host string) bool {
	if host == "" {
		return false
	}
	if c.all || c.exact[host] {
		return true
	}
	return slices.ContainsFunc(c.suffix, func(s string) bool { return len(host) > len(s) && strings.HasSuffix(host, s) })
}

// hasAddr reports whether the rule has a range with the address.
func (c *compiled) hasAddr(a netip.Addr) bool {
	return a.IsValid() && slices.ContainsFunc(c.nets, func(n netip.Prefix) bool { return n.Contains(a) })
}

// speaksOf reports whether the rule covers the destination of an access. A name that
// resolves to an address is allowed by its name; it is denied, or asked about, by either.
func (c *compiled) speaksOf(host string, a netip.Addr) bool {
	if host != "" && c.effect == cell.Allow {
		return c.hasName(host)
	}
	return c.hasName(host) || c.hasAddr(a)
}
