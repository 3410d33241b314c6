package decide

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/types"
	xast "github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/schema"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"
	"pgregory.net/rapid"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

// What drawn policies and accesses are made of: few words, so that they meet.
func drawHost(t *rapid.T) string {
	return rapid.SampledFrom([]string{"a.example", "b.a.example", "c.b.a.example", "*.a.example", "*.example", "*", "10.0.0.0/8", "10.1.2.3", "127.0.0.1", "8.8.0.0/16", "0.0.0.0/0", "fd00::/8", "2606::/16"}).Draw(t, "host")
}

func drawSome[T any](t *rapid.T, name string, least, most int, one func(*rapid.T) T) []T {
	var out []T
	for range rapid.IntRange(least, most).Draw(t, name) {
		out = append(out, one(t))
	}
	return out
}

func drawPort(t *rapid.T) string {
	return rapid.SampledFrom([]string{"22", "80", "443", "440-450", "8000-9000"}).Draw(t, "port")
}

func drawMethod(t *rapid.T) string {
	return rapid.SampledFrom([]string{"GET", "POST", "DELETE"}).Draw(t, "method")
}

func drawPath(t *rapid.T) string {
	return rapid.SampledFrom([]string{"/", "/**", "/x", "/x/*", "/x/**", "/*/y", "/**/y", "/x*/y", "/x/**/z"}).Draw(t, "path")
}

func drawRule(t *rapid.T, inner bool) policy.Rule {
	r := policy.Rule{Hosts: drawSome(t, "hosts", 1, 2, drawHost), Ports: drawSome(t, "ports", 0, 2, drawPort),
		Methods: drawSome(t, "methods", 0, 1, drawMethod), Paths: drawSome(t, "paths", 0, 2, drawPath)}
	if inner && rapid.Bool().Draw(t, "all hosts") {
		r.Hosts = nil
	}
	if !inner {
		r.Except = drawSome(t, "except", 0, 2, func(t *rapid.T) policy.Rule { return drawRule(t, true) })
	}
	return r.Canonical()
}

func drawRules(t *rapid.T) []policy.Rule {
	return drawSome(t, "rules", 0, 3, func(t *rapid.T) policy.Rule { return drawRule(t, false) })
}

func drawAccess(t *rapid.T) cell.Access {
	a := cell.Access{Act: rapid.SampledFrom([]cell.Act{cell.Resolve, cell.Connect, cell.Request}).Draw(t, "act")}
	a.Host = rapid.SampledFrom([]string{"", "a.example", "b.a.example", "c.b.a.example", "other.net"}).Draw(t, "name")
	if addr := rapid.SampledFrom([]string{"", "10.1.2.3", "10.9.9.9", "127.0.0.1", "8.8.8.8", "169.254.169.254", "::1", "2606:4700::1", "::ffff:10.1.2.3"}).Draw(t, "addr"); addr != "" && a.Act != cell.Resolve {
		a.Addr = netip.MustParseAddr(addr)
	}
	if a.Act != cell.Resolve {
		a.Port = rapid.SampledFrom([]uint16{22, 80, 443, 445, 8080}).Draw(t, "port")
	}
	if a.Act == cell.Request {
		a.Scheme = "https"
		a.Method = rapid.SampledFrom([]string{"GET", "HEAD", "POST", "PUT"}).Draw(t, "method")
		a.Path = rapid.SampledFrom([]string{"/", "/x", "/x/", "/x/y", "/x/y/z", "/q/y", "/xx/y", "/x/%79", "//", "/x/../y", "/x%2fy"}).Draw(t, "path")
	}
	return a
}

// reference is what a policy means, written as plainly as can be, without
// Cedar and without an index.
func reference(n policy.Network, a cell.Access) cell.Effect {
	if a.Host == "" && (!a.Addr.IsValid() || a.Act == cell.Resolve) {
		return cell.Deny
	}
	if a.Addr.IsValid() {
		a.Addr = policy.PlainAddr(a.Addr)
	}
	name := func(h string) bool {
		if a.Host == "" {
			return false
		}
		if below, ok := strings.CutPrefix(h, "*."); ok {
			return strings.HasSuffix(a.Host, "."+below)
		}
		return h == "*" || h == a.Host
	}
	addr := func(h string) bool {
		p, ok := policy.ParseRange(h)
		return ok && a.Addr.IsValid() && p.Contains(a.Addr)
	}
	reaches := func(r policy.Rule, literal bool) bool {
		return slices.ContainsFunc(r.Hosts, func(h string) bool { return name(h) || addr(h) && (!literal || a.Host == "") })
	}
	port := func(r policy.Rule) bool {
		s, _ := policy.ParseSpans(r.Ports)
		return a.Act == cell.Resolve || policy.InSpans(s, a.Port)
	}
	path, onePath := policy.CanonicalPath(a.Path)
	method := a.Method
	if method == "HEAD" {
		method = "GET"
	}
	within := func(r policy.Rule) bool {
		return (len(r.Methods) == 0 || slices.Contains(r.Methods, method)) &&
			(len(r.Paths) == 0 || slices.ContainsFunc(r.Paths, func(s string) bool { p := policy.NewPathPattern(s); return p.Match(path) }))
	}
	exceptAll := func(r policy.Rule, literal bool) bool { // everything that may come is excepted
		return slices.ContainsFunc(r.Except, func(x policy.Rule) bool {
			ports, _ := policy.ParseSpans(x.Ports)
			of, _ := policy.ParseSpans(r.Ports)
			return (len(x.Hosts) == 0 || reaches(x, literal)) && port(x) && (a.Act == cell.Request && within(x) || a.Act != cell.Request && !x.Inside()) &&
				(a.Act != cell.Resolve || policy.CoversSpans(ports, of))
		})
	}
	exceptAny := func(r policy.Rule) bool {
		return slices.ContainsFunc(r.Except, func(x policy.Rule) bool {
			return (len(x.Hosts) == 0 || reaches(x, true)) && port(x) && (a.Act != cell.Request || within(x))
		})
	}
	usesPaths := func(r policy.Rule) bool {
		return len(r.Paths) > 0 || slices.ContainsFunc(r.Except, func(x policy.Rule) bool { return len(x.Paths) > 0 })
	}
	// Too late to ask, and to look into the connection.
	if a.Act != cell.Resolve && a.Host != "" && a.Addr.IsValid() {
		for _, r := range n.Ask {
			if slices.ContainsFunc(r.Hosts, addr) && !slices.ContainsFunc(r.Hosts, name) && port(r) {
				return cell.Deny
			}
		}
		for _, r := range n.Deny {
			if slices.ContainsFunc(r.Hosts, addr) && !slices.ContainsFunc(r.Hosts, name) && port(r) && (r.Inside() || slices.ContainsFunc(r.Except, policy.Rule.Inside)) {
				return cell.Deny
			}
		}
	}
	many := a.Act == cell.Request && !onePath
	for _, r := range slices.Concat(n.Ask, n.Deny) {
		if many && reaches(r, false) && port(r) && usesPaths(r) {
			return cell.Deny
		}
	}
	if b, ok := policy.Special(a.Addr); a.Addr.IsValid() && ok && a.Act != cell.Resolve {
		named := slices.ContainsFunc(slices.Concat(n.Allow, n.Ask), func(r policy.Rule) bool {
			return port(r) && slices.ContainsFunc(r.Hosts, func(h string) bool {
				p, ok := policy.ParseRange(h)
				return ok && p.Contains(a.Addr) && p.Bits() >= b.Prefix.Bits()
			})
		})
		if !named {
			return cell.Deny
		}
	}
	for _, r := range n.Deny {
		if reaches(r, false) && port(r) && !exceptAny(r) {
			switch {
			case a.Act == cell.Request && within(r), a.Act == cell.Connect && !r.Inside(), a.Act == cell.Resolve && !r.Inside() && len(r.Ports) == 0:
				return cell.Deny
			}
		}
	}
	// Literal: an address counts only where no name was asked for. So it is in
	// an allow, and in exceptions from what is not one.
	may := func(r policy.Rule, literal bool) bool {
		return !(many && usesPaths(r)) && reaches(r, literal) && port(r) && (a.Act != cell.Request || within(r)) && !exceptAll(r, !literal)
	}
	// A name must be allowed, or asked about, by name.
	if a.Host != "" && !slices.ContainsFunc(n.Allow, func(r policy.Rule) bool { return may(r, true) }) &&
		!slices.ContainsFunc(n.Ask, func(r policy.Rule) bool { return may(r, false) && slices.ContainsFunc(r.Hosts, name) }) {
		return cell.Deny
	}
	effect := cell.Deny
	for _, r := range n.Ask {
		if !may(r, false) {
			continue
		}
		looks := r.Inside() || slices.ContainsFunc(r.Except, policy.Rule.Inside)
		switch {
		case a.Act == cell.Request && looks:
			return cell.Ask
		case a.Act == cell.Connect && !looks:
			if a.Host == "" || !a.Addr.IsValid() {
				return cell.Ask
			}
		}
		effect = cell.Allow
	}
	for _, r := range n.Allow {
		if may(r, true) {
			effect = cell.Allow
		}
	}
	return effect
}

func TestCedarSaysWhatThePolicyMeans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := policy.Network{Allow: drawRules(t), Ask: drawRules(t), Deny: drawRules(t)}
		e := policy.Defaults(machine)
		e.Network = n
		p, err := Compile(e.Canonical())
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			a := drawAccess(t)
			got, want := p.Decide(a), reference(n, a)
			if got.Effect != want {
				t.Fatalf("%+v\nof %s\nis %+v; want %s\n%s", a, e.Canonical(), got, want, p.Cedar())
			}
			if got.Rule == "" || got.Origin == "" || got.Reason == "" || got.By == "" || got.Rule == policy.RuleError {
				t.Fatalf("%+v is not explained: %+v", a, got)
			}
		}
	})
}

// A connection that is allowed without being opened allows all that goes
// through it; and what is denied as a connection has no request that is
// allowed.
func TestConnectionsAndRequestsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := policy.Defaults(machine)
		e.Network = policy.Network{Allow: drawRules(t), Ask: drawRules(t), Deny: drawRules(t)}
		p, err := Compile(e.Canonical())
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			r := drawAccess(t)
			if r.Act != cell.Request {
				continue
			}
			c := cell.Access{Act: cell.Connect, Host: r.Host, Addr: r.Addr, Port: r.Port}
			conn, req := p.Decide(c), p.Decide(r)
			if conn.Allowed() && !conn.Open && !req.Allowed() {
				t.Fatalf("%s\nlets %+v through unopened (%+v), and %+v is %+v", e.Canonical(), c, conn, r, req)
			}
			if conn.Effect == cell.Deny && req.Effect != cell.Deny {
				t.Fatalf("%s\ndenies %+v (%+v), and %+v is %+v", e.Canonical(), c, conn, r, req)
			}
			if r.Host == "" {
				continue
			}
			if d := p.Decide(cell.Access{Act: cell.Resolve, Host: r.Host}); !d.Allowed() && req.Effect != cell.Deny {
				t.Fatalf("%s\ndoes not look up %s (%+v), and %+v is %+v", e.Canonical(), r.Host, d, r, req)
			}
		}
	})
}

// Every Cedar policy that is made is valid by the schema, so that none can
// fail when it is evaluated.
func TestPoliciesAreValidBySchema(t *testing.T) {
	var s schema.Schema
	if err := s.UnmarshalCedar([]byte(schemaText)); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	v := validate.New(r)
	rapid.Check(t, func(t *rapid.T) {
		e := policy.Defaults(machine)
		e.Processes.Deny = []string{"curl"}
		e.Network = policy.Network{Allow: drawRules(t), Ask: drawRules(t), Deny: drawRules(t)}
		p, err := Compile(e.Canonical())
		if err != nil {
			t.Fatal(err)
		}
		set, err := cedar.NewPolicySetFromBytes("policy", []byte(p.Cedar()))
		if err != nil {
			t.Fatalf("%v\n%s", err, p.Cedar())
		}
		for id, q := range set.All() {
			if err := v.Policy(string(id), (*xast.Policy)(q.AST())); err != nil {
				t.Fatalf("%v\n%s", err, q.MarshalCedar())
			}
		}
	})
}

// FAILURES 66, H: Cedar leaves out a forbid that fails to evaluate, and allows.
func TestF66AnErrorDuringEvaluationIsADenial(t *testing.T) {
	e := policy.Defaults(machine)
	e.Network.Allow = []policy.Rule{{Hosts: []string{"a.example"}, Ports: []string{"443"}}}
	e.Network.Deny = []policy.Rule{{Hosts: []string{"a.example"}, Ports: []string{"443"}}}
	p, err := Compile(e.Canonical())
	if err != nil {
		t.Fatal(err)
	}
	broken := ast.Forbid().When(ast.Context().Access("nothing").Equal(ast.String("x")))
	for _, r := range p.rules {
		if r.effect == cell.Deny {
			r.policies[number(cell.Connect)] = cedar.NewPolicyFromAST(broken)
		}
	}
	d := p.Decide(cell.Access{Act: cell.Connect, Host: "a.example", Port: 443})
	if d.Effect != cell.Deny || d.Rule != policy.RuleError {
		t.Errorf("%+v", d)
	}
	// The library by itself says yes.
	c := &candidates{ids: []cedar.PolicyID{"allow", "deny"}, policies: []*cedar.Policy{cedar.NewPolicyFromAST(ast.Permit()), cedar.NewPolicyFromAST(broken)}}
	if got, _ := cedar.Authorize(c, nil, cedar.Request{Context: types.NewRecord(nil)}); got != cedar.Allow {
		t.Error("the library has changed: it denies what fails")
	}
}
