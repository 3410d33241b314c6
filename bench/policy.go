package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/policy/decide"
)

var policyAxis = Axis{
	Name:    "policy",
	About:   "one decision of a policy, and making a policy ready to decide",
	measure: measurePolicy,
}

// decisionsPerRound are timed together: one alone is shorter than what looking
// at the clock tells apart.
const decisionsPerRound = 2000

// decisionCase is one kind of decision.
type decisionCase struct {
	name, what string
	network    policy.Network
	access     cell.Access
	allowed    bool
}

func decisionCases() []decisionCase {
	web := []string{"80", "443"}
	few := policy.Network{
		Allow: []policy.Rule{{Hosts: []string{"registry.npmjs.org"}, Ports: []string{"443"}}, {Hosts: []string{"api.anthropic.com"}, Ports: []string{"443"}}, {Hosts: []string{"*.example.org"}, Ports: web}},
		Deny:  []policy.Rule{{Hosts: []string{"evil.example.org"}}},
	}
	many := policy.Network{Deny: []policy.Rule{{Hosts: []string{"*.evil.example"}}, {Hosts: []string{"10.0.0.0/8"}}}}
	for i := range 300 {
		many.Allow = append(many.Allow, policy.Rule{Hosts: []string{fmt.Sprintf("h%d.example", i), fmt.Sprintf("*.w%d.example", i)}, Ports: web})
	}
	inside := policy.Network{Ask: []policy.Rule{{Hosts: []string{"api.github.com"}, Ports: []string{"443"}, Methods: []string{"POST"}}}}
	for i := range 10 {
		inside.Allow = append(inside.Allow, policy.Rule{Hosts: []string{"api.github.com"}, Ports: []string{"443"}, Methods: []string{"GET"}, Paths: []string{fmt.Sprintf("/repos/me/r%d/**", i)}})
	}
	connect := func(host, addr string) cell.Access {
		a := cell.Access{Act: cell.Connect, Host: host, Port: 443, Transport: "tcp"}
		if addr != "" {
			a.Addr = netip.MustParseAddr(addr)
		}
		return a
	}
	request := func(path string) cell.Access {
		return cell.Access{Act: cell.Request, Host: "api.github.com", Port: 443, Scheme: "https", Method: "GET", Path: path}
	}
	return []decisionCase{
		{name: "resolve", what: "may a name be looked up; 4 rules", network: few, access: cell.Access{Act: cell.Resolve, Host: "registry.npmjs.org"}, allowed: true},
		{name: "connect", what: "may a connection to a name be opened; 4 rules", network: few, access: connect("registry.npmjs.org", ""), allowed: true},
		{name: "dial", what: "may an address that a name led to be dialled; 4 rules", network: few, access: connect("registry.npmjs.org", "104.16.1.34"), allowed: true},
		{name: "denied", what: "a connection that no rule allows, with the explanation; 4 rules", network: few, access: connect("other.example.net", "")},
		{name: "300 rules", what: "a connection that a pattern allows; 302 rules of other hosts", network: many, access: connect("a.w77.example", ""), allowed: true},
		{name: "request", what: "an HTTP request; 11 rules of this host, with methods and paths", network: inside, access: request("/repos/me/r7/issues"), allowed: true},
		{name: "request denied", what: "one that none of them allows, with the explanation", network: inside, access: request("/repos/you/r7/issues")},
	}
}

func measurePolicy(ctx context.Context, l *lab, out *AxisResult) error {
	c := contestant{name: "policy.Decide", ours: true, command: "decide.Rules.Decide: find the rules, ask Cedar, explain"}
	var cases []Case
	rules := map[string]*decide.Rules{}
	all := decisionCases()
	for _, d := range all {
		e := policy.Defaults(policy.Host{CPUs: 2, Memory: 8 << 30})
		e.Network = d.network
		r, err := decide.Compile(e.Canonical())
		if err != nil {
			return err
		}
		rules[d.name] = r
		cases = append(cases, Case{Name: d.name, What: d.what, Unit: "µs", Goals: []Goal{{Series: c.name, AtMost: 5}}})
	}
	const ready = "compile"
	cases = append(cases, Case{Name: ready, What: "reading, checking and compiling the canonical form of @npm, @github and @anthropic", Unit: "µs"})
	made, err := policy.Merge(policy.Defaults(policy.Host{CPUs: 2, Memory: 8 << 30}), nil, policy.Flags{Allow: []string{"@npm", "@github", "@anthropic"}})
	if err != nil {
		return err
	}
	text := json.RawMessage(made.Canonical())
	c.round = func(_ context.Context, r *recorder) error {
		for _, d := range all {
			t := time.Now()
			for range decisionsPerRound {
				if got := rules[d.name].Decide(d.access); got.Allowed() != d.allowed {
					return fmt.Errorf("cannot measure %s: %s", d.name, got.Reason)
				}
			}
			r.put(d.name, toMS(time.Since(t))*1000/decisionsPerRound)
		}
		t := time.Now()
		for range decisionsPerRound / 100 {
			if _, err := decide.Compile(text); err != nil {
				return err
			}
		}
		r.put(ready, toMS(time.Since(t))*1000/(decisionsPerRound/100))
		return nil
	}
	out.note("each sample is the average of %d decisions in a row, on one core, with what the garbage collector takes", decisionsPerRound)
	return l.hold(ctx, out, contest{contestants: []contestant{c}, cases: cases})
}
