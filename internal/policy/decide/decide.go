package decide

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

// Decide says whether an access is allowed, and why. It never fails: an access that it
// cannot interpret is denied.
//
// A name is judged three times: at its lookup, at each connection to it (by name alone, and
// once more with each address that it resolves to), and for each request. A rule of ask that
// needs nothing from inside connections is asked once, at the connection; any other is
// asked at each request.
//
// When the address of a name is known, it is too late to ask a person, and to open the
// connection. So a rule of ask that names the address denies it, and so does a rule of deny
// that names it and needs the content of connections.
func (p *Rules) Decide(a cell.Access) cell.Decision {
	d := p.decide(a)
	d.By = "policy"
	return d
}

func (p *Rules) decide(a cell.Access) cell.Decision {
	if a.Act == cell.Execute {
		return p.decideExecute(a)
	}
	q := question{Access: a, method: a.Method}
	if why := q.prepare(); why != "" {
		return p.deny(q, policy.RuleForm, "default", why)
	}
	if q.Addr.IsValid() {
		q.block, q.isSpecial = policy.Special(q.Addr)
	}
	d := p.judge(q)
	// The layers above decide too, and the strictest answer counts.
	for _, b := range p.bounds {
		if d.Effect == cell.Deny {
			return d
		}
		u := b.judge(q)
		switch {
		case u.Effect == cell.Deny:
			u.Permit = ""
			if u.Rule == policy.RuleDefault {
				u.Origin = p.origins.Bound
			}
			return u
		case u.Effect == cell.Ask && d.Effect == cell.Allow:
			d = u
		default:
			d.Open = d.Open || u.Open
		}
	}
	return d
}

// judge is what one layer says.
func (p *Rules) judge(q question) cell.Decision {
	if q.isSpecial {
		q.named = p.named(q.Addr, q.block, q.Port) || q.Host == cell.HostName && q.Addr.IsLoopback()
	}
	rules := p.relevant(&q)
	if q.Host != "" && q.Addr.IsValid() {
		for _, r := range rules {
			if r.effect != cell.Allow && r.hasAddr(q.Addr) && !r.hasName(q.Host) && policy.InSpans(r.spans, q.Port) && (r.effect == cell.Ask || r.looks()) {
				return p.denyTooLate(q, r)
			}
		}
	}
	if q.manyPaths() && slices.ContainsFunc(rules, func(c *compiled) bool { return c.effect != cell.Allow && c.looksAtPaths(&q) }) {
		return p.denyForm(q)
	}
	matched, failed := p.ask(&q, rules)
	if failed != "" {
		return p.deny(q, policy.RuleError, "default", "the policy could not be evaluated: "+failed)
	}
	return p.answer(q, rules, matched)
}

// question is an access in the forms that rules are compared with.
type question struct {
	cell.Access
	method string // GET for HEAD
	path   string // canonical, "" when there is no such form
	// Whether it leads to a special address, to what kind, and whether a rule
	// names the address.
	isSpecial bool
	block     policy.Block
	named     bool
}

// manyPaths reports whether the path of a request has more than one meaning, or
// none.
func (q *question) manyPaths() bool { return q.Act == cell.Request && q.path == "" }

// looksAtPaths reports whether a rule that is about the host and the port
// depends on the path.
func (c *compiled) looksAtPaths(q *question) bool {
	return len(c.paths) > 0 && policy.InSpans(c.spans, q.Port)
}

// prepare brings the access into its one form, and says what is wrong if there
// is none.
func (q *question) prepare() string {
	switch q.Act {
	case cell.Resolve:
		q.Port = 0
	case cell.Sign:
		if q.Port == 0 {
			q.Port = 22
		}
	case cell.Connect:
		if q.Transport != "" && q.Transport != "tcp" {
			return "only TCP leaves a cell, not " + policy.Quoted(q.Transport)
		}
	case cell.Request:
		if q.Port == 0 && q.Scheme == "http" {
			q.Port = 80
		} else if q.Port == 0 {
			q.Port = 443
		}
		if q.method == "HEAD" {
			q.method = "GET"
		}
		q.path, _ = policy.CanonicalPath(q.Path)
	default:
		return "there is no act " + policy.Quoted(string(q.Act))
	}
	if q.Addr.IsValid() {
		q.Addr = policy.PlainAddr(q.Addr)
	}
	switch {
	case q.Host == "" && !q.Addr.IsValid():
		return "neither a name nor an address is given"
	case q.Host == "" && q.Act == cell.Resolve:
		return "addresses are not looked up"
	case q.Host != "" && !policy.IsName(q.Host):
		return policy.Quoted(q.Host) + " is no name of a host in its one form"
	}
	return ""
}

// relevant finds the rules that can match: by name, by the names above it, and by address.
// Rules with paths that do not match cannot.
func (p *Rules) relevant(q *question) []*compiled {
	var out []*compiled
	shared := false // out is a list of the index and must not be changed
	add := func(list []*compiled) {
		switch {
		case len(list) == 0:
		case len(out) == 0:
			out, shared = list, true
		default:
			if shared {
				out, shared = slices.Clone(out), false
			}
			for _, c := range list {
				if !slices.Contains(out, c) {
					out = append(out, c)
				}
			}
		}
	}
	if q.Host != "" {
		add(p.names[q.Host])
		pattern := func(list []*compiled) {
			if q.Host == cell.HostName { // no pattern allows it
				list = slices.DeleteFunc(slices.Clone(list), func(c *compiled) bool { return c.effect != cell.Deny })
			}
			add(list)
		}
		for rest := q.Host; len(p.below) > 0; {
			i := strings.IndexByte(rest, '.')
			if i < 0 {
				break
			}
			rest = rest[i+1:]
			pattern(p.below[rest])
		}
		pattern(p.any)
	}
	if q.Addr.IsValid() {
		for i, c := range p.ranges {
			if c.speaksOf(q.Host, q.Addr) {
				add(p.ranges[i : i+1])
			}
		}
	}
	return out
}

// ask asks Cedar which of the rules match. Failed is why that can't be said.
func (p *Rules) ask(q *question, rules []*compiled) (matched []cedar.PolicyID, failed string) {
	c := &candidates{}
	c.ids, c.policies = c.fewIDs[:0], c.fewPolicies[:0]
	if q.isSpecial {
		fixed := p.builtin[q.Act]
		c.ids, c.policies = append(c.ids, fixed.ids...), append(c.policies, fixed.policies...)
	}
	ports, methods := false, false
	var paths []types.Value
	var alone types.Value
	for _, r := range rules {
		of := r.policies[number(q.Act)]
		if of == nil || q.Act != cell.Resolve && !policy.InSpans(r.spans, q.Port) {
			continue
		}
		if q.manyPaths() && len(r.paths) > 0 {
			continue // an allow; see judge for the others
		}
		if q.Act == cell.Request && len(r.paths) > 0 {
			any := false
			for i := range r.paths {
				if t := &r.paths[i]; t.Match(q.path) {
					any = true
					if alone == nil {
						alone = t.alone
					} else {
						paths = append(paths, t.value)
					}
				}
			}
			if !any && len(r.rule.Paths) > 0 {
				continue
			}
		}
		ports, methods = ports || r.usesPorts, methods || r.usesMethods
		c.ids, c.policies = append(c.ids, cedar.PolicyID(r.name)), append(c.policies, of)
	}
	if len(c.ids) == 0 {
		return nil, "" // nothing that could allow it
	}
	// Only what these rules look at: see schemaText.
	context := make(types.RecordMap, 6)
	context["host"] = types.String(q.Host)
	if ports && q.Act != cell.Resolve {
		context["port"] = types.Long(q.Port)
	}
	if q.Addr.IsValid() && p.usesAddrs {
		context["addr"] = ipOf(q.Addr)
	}
	if q.isSpecial {
		context["unnamed"] = types.Boolean(!q.named)
	}
	if methods && q.Act == cell.Request {
		context["method"] = types.String(q.method)
	}
	switch {
	case len(paths) > 0:
		for first := range alone.(types.Set).All() {
			paths = append(paths, first)
		}
		context["paths"] = types.NewSet(paths...)
	case alone != nil:
		context["paths"] = alone
	}
	return authorize(c, q.Act, context)
}

func authorize(c *candidates, act cell.Act, context types.RecordMap) ([]cedar.PolicyID, string) {
	decision, diag := cedar.Authorize(c, nil, cedar.Request{
		Principal: types.EntityUID{Type: "Cell", ID: "cell"}, Action: actionOf(act), Resource: types.EntityUID{Type: "Target", ID: "target"},
		Context: types.NewRecord(context),
	})
	if len(diag.Errors) > 0 {
		// The library leaves out a rule that fails, also one that denies.
		return nil, string(diag.Errors[0].PolicyID) + ": " + diag.Errors[0].Message
	}
	var out []cedar.PolicyID
	for _, r := range diag.Reasons {
		out = append(out, r.PolicyID)
	}
	if decision == cedar.Deny && len(out) == 0 {
		return nil, ""
	}
	return out, ""
}

// answer makes a decision of the rules that matched: all of them deny, or none.
func (p *Rules) answer(q question, rules []*compiled, matched []cedar.PolicyID) cell.Decision {
	if slices.Contains(matched, policy.RuleSpecial) {
		return p.denySpecial(q)
	}
	var allow, ask *compiled
	for _, r := range rules {
		if !slices.Contains(matched, cedar.PolicyID(r.name)) {
			continue
		}
		switch {
		case r.effect == cell.Deny:
			return p.denyBy(q, r)
		case r.effect == cell.Ask && r.asks(&q):
			if ask == nil {
				ask = r
			}
		case allow == nil || allow.effect == cell.Ask || allow.rule.Inside() && !r.rule.Inside():
			allow = r
		}
	}
	switch {
	case ask != nil:
		return p.askBy(q, ask)
	case allow == nil:
		return p.denyDefault(q, rules)
	}
	d := cell.Decision{Effect: cell.Allow, Rule: allow.name, Origin: p.origin(allow.name), Reason: allow.name + " allows it"}
	switch q.Act {
	case cell.Connect:
		d.Open = p.mustOpen(&q, rules, matched)
	case cell.Request:
		d.Credential = p.credential(&q, rules, matched)
	}
	return d
}

// looks reports whether one has to look into a connection for a rule or for
// one of its exceptions.
func (c *compiled) looks() bool {
	return c.rule.Inside() || slices.ContainsFunc(c.except, func(x *compiled) bool { return x.rule.Inside() })
}

// asks reports whether a rule of ask, which matches, is asked here: see Decide.
func (c *compiled) asks(q *question) bool {
	switch {
	case q.Act == cell.Resolve:
		return false
	case q.Act == cell.Request:
		return c.looks()
	case c.looks():
		return q.Act == cell.Sign
	}
	return q.Host == "" || !q.Addr.IsValid()
}

// mustOpen reports whether what is in an allowed connection makes a
// difference: a rule denies or asks about some of it, or all that allow it
// allow only some, or a credential goes in.
func (p *Rules) mustOpen(q *question, rules []*compiled, matched []cedar.PolicyID) bool {
	whole := false
	for _, r := range rules {
		if !policy.InSpans(r.spans, q.Port) {
			continue
		}
		if r.rule.Credential != "" && slices.Contains(matched, cedar.PolicyID(r.name)) {
			return true
		}
		switch {
		case !r.looks():
			whole = whole || r.effect != cell.Deny && slices.Contains(matched, cedar.PolicyID(r.name))
		case r.effect != cell.Allow:
			return true
		}
	}
	return !whole || slices.ContainsFunc(p.lent, func(l lentFor) bool { return l.goesTo(q) })
}

// credential is the handle of what is put into an allowed request.
func (p *Rules) credential(q *question, rules []*compiled, matched []cedar.PolicyID) string {
	for _, r := range rules {
		if r.rule.Credential != "" && slices.Contains(matched, cedar.PolicyID(r.name)) {
			return r.rule.Credential
		}
	}
	for _, l := range p.lent {
		if l.goesInto(q) {
			return l.handle
		}
	}
	return ""
}

func addrText(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}
