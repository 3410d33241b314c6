package decide

import (
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

func (p *Rules) origin(name string) string {
	if o := p.origins.Lines[name]; o != "" {
		return o
	}
	if name == policy.RuleDefault {
		return "default"
	}
	return "policy"
}

// from is "allow 2 (pando.policy.yaml:31)".
func (p *Rules) from(name string) string {
	if o := p.origins.Lines[name]; o != "" {
		return name + " (" + o + ")"
	}
	return name
}

// what is the access in words: "POST https://api.github.com/repos",
// "api.github.com:443", "api.github.com".
func (q *question) what() string {
	switch q.Act {
	case cell.Request:
		scheme := q.Scheme
		if scheme == "" {
			scheme = "https"
		}
		to := q.destination()
		if !(scheme == "https" && q.Port == 443 || scheme == "http" && q.Port == 80) {
			to += ":" + strconv.Itoa(int(q.Port))
		}
		return policy.Printable(q.Method) + " " + scheme + "://" + to + policy.Printable(q.Path)
	case cell.Resolve:
		return q.destination()
	case cell.Sign:
		return "a signature for " + q.destination()
	}
	return q.destination() + ":" + strconv.Itoa(int(q.Port))
}

func (q *question) destination() string {
	if q.Host != "" {
		return q.Host
	}
	return addrText(q.Addr)
}

func (p *Rules) deny(q question, rule, origin, why string) cell.Decision {
	return cell.Decision{Effect: cell.Deny, Rule: rule, Origin: origin, Reason: why}
}

func (p *Rules) denyForm(q question) cell.Decision {
	return p.deny(q, policy.RuleForm, "default", "a rule looks at paths, and the path "+policy.Quoted(q.Path)+" has more than one meaning")
}

// denyTooLate is about an address that a name led to: see Decide.
func (p *Rules) denyTooLate(q question, r *compiled) cell.Decision {
	does := "asks about"
	if r.effect == cell.Deny {
		does = "denies some requests to"
	}
	return cell.Decision{Effect: cell.Deny, Rule: r.name, Origin: p.origin(r.name),
		Reason: q.Host + " leads to " + addrText(q.Addr) + ", which " + p.from(r.name) + " " + does + "; name " + q.Host + " there, too"}
}

func (p *Rules) denyBy(q question, r *compiled) cell.Decision {
	return cell.Decision{Effect: cell.Deny, Rule: r.name, Origin: p.origin(r.name), Reason: p.from(r.name) + " denies " + q.what()}
}

func (p *Rules) askBy(q question, r *compiled) cell.Decision {
	return cell.Decision{Effect: cell.Ask, Rule: r.name, Origin: p.origin(r.name), Reason: p.from(r.name) + " asks a person about " + q.what(),
		Narrower: q.what()}
}

func (p *Rules) denySpecial(q question) cell.Decision {
	d := cell.Decision{Effect: cell.Deny, Rule: policy.RuleSpecial, Origin: "default"}
	addr := addrText(q.Addr)
	if q.Host != "" {
		d.Reason = q.Host + " leads to " + addr + ", " + q.block.What + ", which no rule names"
	} else {
		d.Reason = addr + " is " + q.block.What + ", which no rule names"
	}
	if q.block.Never {
		return d // it can be named, and is not proposed
	}
	grant := q.Addr.String() + ":" + strconv.Itoa(int(q.Port))
	if q.Addr.Is6() {
		grant = addr + ":" + strconv.Itoa(int(q.Port))
	}
	if p.origins.Bound == "" {
		d.Permit = "--allow " + grant
		if q.Addr.Is6() {
			d.Permit = "--allow '" + grant + "'"
		}
	}
	d.Line, d.Narrower = `- "`+grant+`"`, grant
	return d
}

// denyDefault says what is missing: no rule is about the host, or those that
// are don't go so far.
func (p *Rules) denyDefault(q question, rules []*compiled) cell.Decision {
	if q.manyPaths() && slices.ContainsFunc(rules, func(c *compiled) bool { return c.looksAtPaths(&q) }) {
		return p.denyForm(q)
	}
	d := cell.Decision{Effect: cell.Deny, Rule: policy.RuleDefault, Origin: "default", Narrower: q.what()}
	// Where some requests to the host are allowed, a flag would allow all.
	partly := q.Act == cell.Request && slices.ContainsFunc(rules, func(r *compiled) bool { return r.effect != cell.Deny && r.looks() })
	for _, r := range rules {
		if r.effect == cell.Deny {
			continue
		}
		if d.Reason = p.near(&q, r); d.Reason != "" {
			break
		}
	}
	if d.Reason == "" {
		d.Reason = "no rule allows " + q.what()
	}
	grant := q.destination()
	usual := q.Host != cell.HostName && (q.Port == 443 || q.Port == 80)
	switch q.Act {
	case cell.Connect, cell.Sign:
		if !usual {
			grant += ":" + strconv.Itoa(int(q.Port))
		}
		d.Line = "- " + yamlWord(grant)
	case cell.Request:
		host := q.destination()
		if !usual {
			host += ":" + strconv.Itoa(int(q.Port))
			grant = host
		}
		d.Line = "- {host: " + yamlWord(host) + ", methods: [" + policy.Printable(q.Method) + "]"
		if q.path != "" {
			d.Line += ", paths: [" + yamlWord(q.path) + "]"
		}
		d.Line += "}"
	default:
		if q.Host == cell.HostName { // only ever with a port
			grant += ":PORT"
		}
		d.Line = "- " + yamlWord(grant)
	}
	if p.origins.Bound == "" && !partly {
		d.Permit = "--allow " + grant
		if q.Host == "" && q.Addr.Is6() {
			d.Permit = "--allow '" + grant + "'"
		}
	}
	return d
}

// near says how far a rule that is about the host goes, "" when that is not
// what is missing.
func (p *Rules) near(q *question, r *compiled) string {
	verb := " allows "
	if r.effect == cell.Ask {
		verb = " is about "
	}
	switch {
	case q.Act != cell.Resolve && !policy.InSpans(r.spans, q.Port):
		return p.from(r.name) + verb + q.destination() + " on " + policy.PortsText(r.rule.Ports) + " only, not on " + strconv.Itoa(int(q.Port))
	case q.Act != cell.Request:
		return ""
	case len(r.rule.Methods) > 0 && !slices.Contains(r.rule.Methods, q.method):
		return p.from(r.name) + verb + strings.Join(r.rule.Methods, ", ") + " there, not " + policy.Printable(q.Method)
	case len(r.rule.Paths) > 0:
		for _, t := range r.paths[:len(r.rule.Paths)] {
			if t.Match(q.path) {
				return p.from(r.name) + " makes an exception for " + q.what()
			}
		}
		return p.from(r.name) + verb + strings.Join(r.rule.Paths, ", ") + " there, not " + policy.Printable(q.Path)
	}
	return ""
}

// yamlWord quotes what YAML would read as something else, also inside braces.
func yamlWord(s string) string {
	if s == "" || strings.ContainsAny(s, ":#{}[],&*!|>'\"%@`? \t\\") || s[0] == '-' {
		return strconv.Quote(s)
	}
	return s
}
