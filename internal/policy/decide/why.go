package decide

import (
	"net/netip"
	"strconv"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

// Parse reads the canonical form.
func Parse(canonical []byte) (policy.Effective, error) {
	p, err := Compile(canonical)
	if err != nil {
		return policy.Effective{}, err
	}
	return p.policy, nil
}

// Step is one decision of several that a request meets.
type Step struct {
	Access   cell.Access
	Decision cell.Decision
}

// Want is the access in words that ParseRequest reads.
func (s Step) Want() string {
	q := question{Access: s.Access}
	switch s.Access.Act {
	case cell.Resolve, cell.Connect:
		return string(s.Access.Act) + " " + q.what()
	case cell.Sign:
		return "sign " + q.destination()
	case cell.Execute:
		return "execute " + policy.Printable(s.Access.Program)
	}
	return q.what()
}

// Why decides on all that a request meets on its way: the name is looked up,
// a connection opened, the request sent. The effect is the strictest; what
// comes after a denial is not reached.
func (p *Rules) Why(a cell.Access) (steps []Step, effect cell.Effect) {
	if d, own := ownAddress(a); own {
		return []Step{{a, d}}, cell.Deny
	}
	acts := []cell.Access{a}
	if a.Act == cell.Request {
		acts = []cell.Access{{Act: cell.Connect, Host: a.Host, Addr: a.Addr, Port: a.Port, Transport: "tcp"}, a}
	}
	if a.Host != "" && (a.Act == cell.Connect || a.Act == cell.Request) {
		acts = append([]cell.Access{{Act: cell.Resolve, Host: a.Host}}, acts...)
	}
	effect = cell.Allow
	for _, one := range acts {
		d := p.Decide(one)
		steps = append(steps, Step{one, d})
		if d.Effect == cell.Deny {
			// What would permit the request is what is asked for, and not the
			// step that fails first.
			if last := p.Decide(a); one.Act != a.Act && last.Effect == cell.Deny && last.Rule == policy.RuleDefault && d.Rule == policy.RuleDefault {
				steps[len(steps)-1].Decision.Line, steps[len(steps)-1].Decision.Narrower, steps[len(steps)-1].Decision.Permit = last.Line, last.Narrower, last.Permit
			}
			return steps, cell.Deny
		}
		if d.Effect == cell.Ask {
			effect = cell.Ask
		}
	}
	return steps, effect
}

// ownAddress is the decision about an address that never leads out of a cell,
// whatever its policy says: no connection to it comes to the gateway, or none is
// forwarded.
func ownAddress(a cell.Access) (cell.Decision, bool) {
	d := cell.Decision{Effect: cell.Deny, Rule: "link", Origin: "gateway", By: "gateway"}
	link := cell.DefaultLink()
	switch addr := policy.PlainAddr(a.Addr); {
	case a.Host == "" && addr.IsLoopback():
		at := cell.HostName + ":" + strconv.Itoa(int(a.Port))
		d.Reason = addr.String() + " is the cell's own loopback in a cell; your machine is " + at + " there"
		d.Permit, d.Line, d.Narrower = "--allow "+at, `- "`+at+`"`, at
	case a.Host == "" && addr.Is4() && netip.PrefixFrom(link.Gateway4, 15).Contains(addr):
		d.Reason = addr.String() + " belongs to the cell's own network, and is not assigned"
	default:
		return d, false
	}
	return d, true
}
