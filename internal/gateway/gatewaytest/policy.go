package gatewaytest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gateway"
)

// Rule is one line of a policy in tests. The first that matches decides; what
// none matches is denied.
type Rule struct {
	Effect     cell.Effect `json:"effect"`
	Host       string      `json:"host"`            // a name, "*.name", "*" for every name
	Addr       string      `json:"addr,omitempty"`  // a prefix, for addresses
	Ports      []uint16    `json:"ports,omitempty"` // none: 80 and 443
	Method     string      `json:"method,omitempty"`
	Path       string      `json:"path,omitempty"` // a prefix
	Credential string      `json:"credential,omitempty"`
	Open       bool        `json:"open,omitempty"`
}

// Policy is a policy in tests.
type Policy struct {
	Rules  []Rule        `json:"rules"`
	Budget int64         `json:"budget,omitempty"`
	Wait   time.Duration `json:"wait,omitempty"`
	// Unpinned are credentials beside which other authentication passes.
	Unpinned []string `json:"unpinned,omitempty"`
	sum      cell.Digest
}

// Allow makes a policy of hosts that may be talked to.
func Allow(hosts ...string) (p Policy) {
	for _, h := range hosts {
		p.Rules = append(p.Rules, Rule{Effect: cell.Allow, Host: h})
	}
	return p
}

// JSON is its canonical form.
func (p Policy) JSON() json.RawMessage {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return b
}

// Compile makes a Decider of a Policy's canonical form.
func Compile(g cell.Governance) (gateway.Decider, error) {
	p := &Policy{sum: cell.Sum(g.Policy)}
	if err := json.Unmarshal(g.Policy, p); err != nil {
		return nil, fmt.Errorf("cannot compile the policy: %w", err)
	}
	return p, nil
}

// Digest is the sum of the canonical form.
func (p *Policy) Digest() cell.Digest { return p.sum }

// Egress is the budget.
func (p *Policy) Egress() int64 { return p.Budget }

// Pins reports whether a credential pins its hosts.
func (p *Policy) Pins(handle string) bool { return !slices.Contains(p.Unpinned, handle) }

// PinnedTo is "": the policy does not say where credentials may go.
func (p *Policy) PinnedTo(string) string { return "" }

// AskFor is how long a question waits.
func (p *Policy) AskFor() time.Duration { return p.Wait }

// Decide says what the first rule that matches says. Private addresses are
// denied unless a rule names them.
func (p *Policy) Decide(a cell.Access) cell.Decision {
	if a.Host != "" && a.Addr.IsValid() && special(a.Addr) && !p.named(a.Addr) {
		return cell.Decision{Effect: cell.Deny, Rule: "special", Origin: "default", Reason: fmt.Sprintf("%s leads to %s, which is private", a.Host, a.Addr), By: "policy"}
	}
	for i, r := range p.Rules {
		if !r.matches(a) {
			continue
		}
		d := cell.Decision{Effect: r.Effect, Rule: fmt.Sprintf("rule %d", i+1), Origin: "test", Reason: fmt.Sprintf("rule %d says %s", i+1, r.Effect), By: "policy"}
		if a.Act == cell.Connect && r.Effect != cell.Deny {
			for _, o := range p.Rules {
				d.Open = d.Open || o.Host == r.Host && (o.Open || o.Method != "" || o.Path != "" || o.Credential != "")
			}
		}
		if a.Act == cell.Request {
			d.Credential = r.Credential
		}
		return d
	}
	what := a.Host
	if what == "" {
		what = a.Addr.String()
	}
	return cell.Decision{Effect: cell.Deny, Rule: "default", Origin: "default", Reason: "no rule allows " + what, Permit: "--allow " + what, Narrower: a.Method + " " + what + a.Path, By: "policy"}
}

func (p *Policy) named(a netip.Addr) bool {
	return slices.ContainsFunc(p.Rules, func(r Rule) bool {
		pre, err := netip.ParsePrefix(r.Addr)
		return err == nil && pre.Contains(a)
	})
}

func special(a netip.Addr) bool {
	return a.IsLoopback() || a.IsPrivate() || a.IsLinkLocalUnicast() || a.IsUnspecified() || a.IsMulticast()
}

func (r Rule) matches(a cell.Access) bool {
	if a.Host != "" {
		under, wild := strings.CutPrefix(r.Host, "*.")
		if !(r.Host == "*" || r.Host == a.Host || wild && strings.HasSuffix(a.Host, "."+under)) {
			return false
		}
	} else {
		pre, err := netip.ParsePrefix(r.Addr)
		if err != nil || !pre.Contains(a.Addr) {
			return false
		}
	}
	if a.Act == cell.Resolve {
		return r.Effect != cell.Deny || r.Method == "" && r.Path == ""
	}
	ports := r.Ports
	if len(ports) == 0 {
		ports = []uint16{80, 443}
	}
	if !slices.Contains(ports, a.Port) {
		return false
	}
	if a.Act != cell.Request {
		return r.Effect != cell.Deny || r.Method == "" && r.Path == ""
	}
	return (r.Method == "" || r.Method == a.Method) && strings.HasPrefix(a.Path, r.Path)
}
