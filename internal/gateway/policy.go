package gateway

import (
	"crypto/x509"
	"fmt"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// compiledPolicy is the compiled policy in force with its resources. It is immutable: a new one replaces
// it.
type compiledPolicy struct {
	decider  Decider
	policy   cell.Digest
	signer   *signer // nil: nothing can be opened
	roots    *x509.CertPool
	lent     []*lent
	resolver *resolver
	proxy    *proxy   // nil: the host has no proxy
	outside  *outside // HTTP connections to the outside
	egress   int64    // bytes that may leave the cell; 0: no limit
	askFor   time.Duration
	turns    bool // the turns of an agent are looked for
	services map[string]bool
	offline  bool // see cell.Governance
}

// compile makes a compiledPolicy. It finds every error, and then nothing is in force.
func (g *Gateway) compile(gov cell.Governance) (*compiledPolicy, error) {
	d, err := g.cfg.Compile(gov)
	if err != nil {
		return nil, err
	}
	l := &compiledPolicy{decider: d, policy: d.Digest(), askFor: askFor, turns: gov.Turns, offline: gov.Offline}
	if e, ok := d.(interface{ Egress() int64 }); ok {
		l.egress = e.Egress()
	}
	if a, ok := d.(interface{ AskFor() time.Duration }); ok && a.AskFor() > 0 {
		l.askFor = a.AskFor()
	}
	invalid := func(err error) error {
		return cell.Errorf(cell.Invalid, "gateway.Govern", "", "cannot govern cell %s: %w", g.cfg.Cell, err)
	}
	if gov.Authority.Cert != "" {
		if l.signer, err = newSigner(gov.Authority); err != nil {
			return nil, invalid(err)
		}
	}
	if gov.Roots != "" {
		if l.roots, err = x509.SystemCertPool(); err != nil {
			l.roots = x509.NewCertPool()
		}
		if !l.roots.AppendCertsFromPEM([]byte(gov.Roots)) {
			return nil, invalid(fmt.Errorf("the roots are no certificates"))
		}
	}
	if l.lent, err = newLent(gov.Credentials); err != nil {
		return nil, invalid(err)
	}
	if l.resolver, err = newResolver(gov.Resolvers); err != nil {
		return nil, invalid(err)
	}
	l.proxy = newProxy(gov.Proxy)
	l.services = map[string]bool{}
	for _, name := range gov.Services {
		l.services[name] = true
	}
	l.outside = newOutside(g, l)
	return l, nil
}

// retire closes the cached resources of a policy that is no longer in force.
func (l *compiledPolicy) retire() { l.outside.close() }

// decide asks the policy. Anything but a clear yes is a no, also a panic of the policy.
func (l *compiledPolicy) decide(a cell.Access) (d cell.Decision) {
	defer func() {
		if r := recover(); r != nil {
			d = cell.Decision{Effect: cell.Deny, Rule: "error", Origin: "policy", Reason: fmt.Sprintf("the policy can't be evaluated: %v", r), By: "policy"}
		}
	}()
	d = l.decider.Decide(a)
	if d.By == "" {
		d.By = "policy"
	}
	if d.Effect != cell.Allow && d.Effect != cell.Ask {
		d.Effect = cell.Deny
	}
	return d
}

// never is the decision on requests that no policy allows.
func never(rule, reason string) cell.Decision {
	return cell.Decision{Effect: cell.Deny, Rule: rule, Origin: "gateway", Reason: reason, By: "gateway"}
}

// Govern atomically puts another policy and its resources in force. It resets connections that
// the policy denies before it returns.
func (g *Gateway) Govern(gov cell.Governance) error {
	g.govMu.Lock()
	defer g.govMu.Unlock()
	l, err := g.compile(gov)
	if err != nil {
		return err
	}
	old := g.inForce.Swap(l)
	g.asks.restore(gov.Answers)
	for _, c := range g.conns.all() {
		c.rejudge(l)
	}
	old.retire()
	return nil
}
