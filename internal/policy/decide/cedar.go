package decide

import (
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/types"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

// How a policy is said in Cedar. Each rule becomes one Cedar policy for each
// act that it speaks of; deny is forbid, allow and ask are permit, and which of
// both a permit was is known by its name. What Cedar can't say is computed
// before and is part of the context:
//
//	host     the name, "" when an address was asked for
//	addr     the address, if it is known and a rule has ranges
//	port     the port, if a rule has some
//	method   the HTTP method, GET for HEAD, if a rule has some
//	paths    those patterns of the policy that the path matches
//	unnamed  the address leads to no host of the internet; whether no rule
//	         names it
//	program  those patterns of processes.deny that the program matches
//
// A context has no more than an act needs: making it is most of the cost of a
// decision.
const schemaText = `entity Cell;
entity Target;
action resolve appliesTo { principal: Cell, resource: Target, context: { host: String } };
action connect, sign appliesTo {
  principal: Cell, resource: Target,
  context: { host: String, addr?: ipaddr, port?: Long, unnamed?: Bool }
};
action request appliesTo {
  principal: Cell, resource: Target,
  context: { host: String, addr?: ipaddr, port?: Long, unnamed?: Bool, method?: String, paths?: Set<String> }
};
action execute appliesTo { principal: Cell, resource: Target, context: { program: Set<String> } };
`

// fixed is a list of policies that are part of every policy.
type fixed struct {
	ids      []cedar.PolicyID
	policies []*cedar.Policy
}

func actionOf(a cell.Act) cedar.EntityUID { return cedar.NewEntityUID("Action", cedar.String(a)) }

// number numbers the acts that rules speak of, from 1; 0 is none of them.
func number(a cell.Act) int {
	switch a {
	case cell.Resolve:
		return 1
	case cell.Connect:
		return 2
	case cell.Request:
		return 3
	case cell.Sign:
		return 4
	}
	return 0
}

func ctx(attr string) ast.Node { return ast.Context().Access(types.String(attr)) }

// fixedPolicies has them by act.
var fixedPolicies = sync.OnceValues(func() (map[cell.Act]fixed, error) {
	out := map[cell.Act]fixed{}
	special := ast.Forbid().When(ast.Context().Has("unnamed").And(ctx("unnamed"))).Annotate("id", policy.RuleSpecial)
	for _, a := range []cell.Act{cell.Connect, cell.Request, cell.Sign} {
		p := *special
		out[a] = fixed{[]cedar.PolicyID{policy.RuleSpecial}, []*cedar.Policy{cedar.NewPolicyFromAST(p.ActionEq(actionOf(a)))}}
	}
	execute := []*ast.Policy{
		ast.Permit().ActionEq(actionOf(cell.Execute)).Annotate("id", policy.RuleDefault),
		ast.Forbid().ActionEq(actionOf(cell.Execute)).When(ast.Not(ctx("program").IsEmpty())).Annotate("id", policy.RuleProgram),
	}
	f := fixed{ids: []cedar.PolicyID{policy.RuleDefault, policy.RuleProgram}}
	for _, p := range execute {
		f.policies = append(f.policies, cedar.NewPolicyFromAST(p))
	}
	out[cell.Execute] = f
	return out, nil
})

// toCedar makes the Cedar policies of a rule.
func (c *compiled) toCedar() {
	for _, act := range []cell.Act{cell.Resolve, cell.Connect, cell.Request, cell.Sign} {
		as := act
		if act == cell.Sign {
			as = cell.Connect // a signature is what a connection needs
		}
		when, ok := c.condition(as)
		if !ok {
			continue
		}
		p := ast.Permit()
		if c.effect == cell.Deny {
			p = ast.Forbid()
		}
		p = p.ActionEq(actionOf(act)).When(when).Annotate("id", types.String(c.name))
		for _, x := range c.except {
			if unless, ok := x.exception(as, c.effect, c.spans); ok {
				p = p.Unless(unless)
			}
		}
		c.policies[number(act)] = cedar.NewPolicyFromAST(p)
	}
}

// condition says when a rule matches an act; false: never.
//
// What is not known yet must not decide too early. An allow of some requests
// allows the connection they need and the name; a deny of some requests denies
// neither. (What is in the connection is then looked at: see Decision.Open.)
func (c *compiled) condition(act cell.Act) (ast.Node, bool) {
	partly := c.rule.Inside() && act != cell.Request || len(c.spans) > 0 && act == cell.Resolve
	if c.effect == cell.Deny && partly {
		return ast.Node{}, false
	}
	return c.matches(c.targets(c.effect == cell.Allow, act), act), true
}

// matches adds ports, methods and paths, as far as an act has them.
func (c *compiled) matches(when ast.Node, act cell.Act) ast.Node {
	if act != cell.Resolve {
		when = when.And(c.onPorts())
	}
	if act == cell.Request {
		when = when.And(c.onRequests())
	}
	return when
}

// exception says when an exception of a rule keeps it from matching an act;
// false: never. It is the other way round than for rules: an exception from an
// allow counts when it covers all that may come, one from a deny when it covers
// anything.
func (c *compiled) exception(act cell.Act, of cell.Effect, spans []policy.Span) (ast.Node, bool) {
	if of != cell.Deny {
		if c.rule.Inside() && act != cell.Request {
			return ast.Node{}, false
		}
		if act == cell.Resolve && !policy.CoversSpans(c.spans, spans) {
			return ast.Node{}, false
		}
	}
	when := ast.True()
	if len(c.rule.Hosts) > 0 {
		when = c.targets(of != cell.Allow, act)
	}
	return c.matches(when, act), true
}

// targets matches the names and addresses of a rule. Literal: an address counts only where
// no name was requested. Grants (an allow, an exception from a deny) are literal;
// restrictions also count when a name resolves to the address.
func (c *compiled) targets(literal bool, act cell.Act) ast.Node {
	name := ast.False()
	if len(c.exact) > 0 {
		name = name.Or(stringSet(sortedKeys(c.exact)).Contains(ctx("host")))
	}
	for _, s := range c.suffix {
		name = name.Or(ctx("host").Like(types.NewPattern(types.Wildcard{}, s)))
	}
	if c.all {
		name = name.Or(ctx("host").NotEqual(ast.String("")))
	}
	addr := ast.False()
	for _, n := range c.nets {
		addr = addr.Or(ctx("addr").IsInRange(ast.IPAddr(n)))
	}
	known := ast.Context().Has("addr")
	if literal {
		known = ctx("host").Equal(ast.String("")).And(known)
	}
	switch {
	case len(c.nets) == 0 || act == cell.Resolve:
		return name
	case len(c.exact) == 0 && len(c.suffix) == 0 && !c.all:
		return known.And(addr)
	}
	return name.Or(known.And(addr))
}

func (c *compiled) onPorts() ast.Node {
	if len(c.spans) == 0 {
		return ast.True()
	}
	var single []types.Value
	when := ast.False()
	for _, s := range c.spans {
		if s.From == s.To {
			single = append(single, types.Long(s.From))
			continue
		}
		when = when.Or(ctx("port").GreaterThanOrEqual(ast.Long(int(s.From))).And(ctx("port").LessThanOrEqual(ast.Long(int(s.To)))))
	}
	if len(single) > 0 {
		when = ast.Value(types.NewSet(single...)).Contains(ctx("port")).Or(when)
	}
	return ast.Context().Has("port").And(when)
}

func (c *compiled) onRequests() ast.Node {
	when := ast.True()
	if len(c.rule.Methods) > 0 {
		when = when.And(ast.Context().Has("method")).And(stringSet(c.rule.Methods).Contains(ctx("method")))
	}
	if len(c.rule.Paths) > 0 {
		when = when.And(ast.Context().Has("paths")).And(ctx("paths").ContainsAny(stringSet(c.rule.Paths)))
	}
	return when
}

func stringSet(list []string) ast.Node {
	var v []types.Value
	for _, s := range list {
		v = append(v, types.String(s))
	}
	return ast.Value(types.NewSet(v...))
}

func sortedKeys(m map[string]bool) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// Cedar is the policy in Cedar's own words, for people and for tools.
func (p *Rules) Cedar() string {
	var b strings.Builder
	for _, act := range []cell.Act{cell.Resolve, cell.Connect, cell.Request, cell.Sign, cell.Execute} {
		for _, q := range p.builtin[act].policies {
			b.Write(q.MarshalCedar())
			b.WriteString("\n\n")
		}
		for _, layer := range append([]*Rules{p}, p.bounds...) {
			for _, c := range layer.rules {
				if q := c.policies[number(act)]; q != nil {
					b.Write(q.MarshalCedar())
					b.WriteString("\n\n")
				}
			}
		}
	}
	return b.String()
}

// candidates are the policies that Cedar is asked about.
type candidates struct {
	ids      []cedar.PolicyID
	policies []*cedar.Policy
	// Room for as many as there usually are.
	fewIDs      [6]cedar.PolicyID
	fewPolicies [6]*cedar.Policy
}

// All implements cedar.PolicyIterator.
func (c *candidates) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for i, id := range c.ids {
			if !yield(id, c.policies[i]) {
				return
			}
		}
	}
}

func ipOf(a netip.Addr) types.IPAddr { return types.IPAddr(netip.PrefixFrom(a, a.BitLen())) }

// pathValue is a pattern of paths with what Cedar is told when a path matches: the pattern, and it
// alone.
type pathValue struct {
	policy.PathPattern
	value, alone types.Value
}

func newPathValue(text string) pathValue {
	return pathValue{policy.NewPathPattern(text), types.String(text), types.NewSet(types.String(text))}
}
