package govern

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gateway"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/policy/decide"
)

// Selector finds what a caller names, among what the caller sees. dir is the caller's directory.
type Selector interface {
	SelectRun(selector, dir string) (cell.RunID, error)
	SelectCell(selector, dir string) (cell.ID, error)
}

// Check reads a policy file and says what is odd about it.
func (m *Manager) Check(req api.PolicyCheckRequest) (api.PolicyCheck, error) {
	out := api.PolicyCheck{Name: req.Name, Digest: cell.Sum([]byte(req.Text)).String(), Lines: []api.PolicyLine{}, Remarks: []string{}}
	f, err := policy.ParseFile(cmp.Or(req.Name, "policy"), []byte(req.Text))
	if err != nil {
		return out, err
	}
	r, err := policy.Merge(policy.Defaults(m.cfg.Host), f, policy.Flags{})
	if err != nil {
		return out, err
	}
	if _, err := decide.Of(r); err != nil {
		return out, err
	}
	for _, l := range r.Show(r.Origins) {
		if l.Origin != policy.DefaultOrigin {
			out.Lines = append(out.Lines, api.PolicyLine{Section: l.Section, Name: l.Name, Text: l.Text, Origin: l.Origin})
		}
	}
	out.Rules = len(out.Lines)
	out.Remarks = append(out.Remarks, r.Remarks(r.Origins)...)
	for _, h := range r.Handles() {
		if _, _, err := m.cfg.Credentials.Get(h); err != nil {
			out.Remarks = append(out.Remarks, fmt.Sprintf("credential %s is not in the store: %s", h, cell.HintOf(err)))
		}
	}
	return out, nil
}

// policyOf finds the policy that a request names.
func (m *Manager) policyOf(by Selector, req api.PolicyRequest) (what string, r *policy.Result, more *Effective, err error) {
	if req.Of == "" {
		source := req.Run.From
		if source == "" {
			source = req.Dir
		}
		if source, err = filepath.EvalSymlinks(source); err != nil {
			return "", nil, nil, cell.Errorf(cell.NotFound, "govern.policyOf", "", "cannot find the source: %w", err)
		}
		more, err = m.Effective(req.Run, source, nil)
		if err != nil {
			return "", nil, nil, err
		}
		return "a run from " + source, &more.Result, more, nil
	}
	if id, err := by.SelectRun(req.Of, req.Dir); err == nil && (strings.HasPrefix(req.Of, "r-") || strings.Contains(req.Of, ":")) {
		run, err := m.cfg.Records.Run(id)
		if err != nil {
			return "", nil, nil, err
		}
		r, err := m.cfg.RunPolicy(&run)
		return "run " + run.ID, r, nil, err
	}
	id, err := by.SelectCell(req.Of, req.Dir)
	if err != nil {
		return "", nil, nil, err
	}
	c, err := m.cfg.Records.Cell(id)
	if err != nil {
		return "", nil, nil, err
	}
	if c.Setup.PolicyText == "" {
		return "", nil, nil, cell.Errorf(cell.NotFound, "govern.policyOf", "", "cannot tell what governs cell %s: nothing ran in it yet", c.Title())
	}
	eff, err := decide.Parse([]byte(c.Setup.PolicyText))
	return "cell " + c.Title(), &policy.Result{Effective: eff, Origins: c.Setup.Origins}, nil, err
}

// lackingFor says why this host or backend can't enforce a line of a policy; ""
// when it can.
func lackingFor(l policy.Shown, caps backend.Caps) string {
	switch l.Name {
	case "limits.memory":
		return caps.MemoryLimit
	case "limits.cpus":
		return caps.CPULimit
	case "limits.pids":
		return caps.ProcessLimit
	case "trace", "nested namespaces":
		return caps.Isolation
	}
	switch l.Section {
	case "files", "processes":
		if strings.HasPrefix(l.Name, "secret ") {
			return "" // the import's doing
		}
		return caps.Mounts
	case "network", "credentials":
		if l.Name == "network" {
			return caps.Isolation
		}
		return caps.Network
	}
	return ""
}

// backendOf is the name of the backend that a policy is for.
func (m *Manager) backendOf(by Selector, req api.PolicyRequest) string {
	if req.Of == "" {
		return req.Run.Backend
	}
	if id, err := by.SelectRun(req.Of, req.Dir); err == nil {
		if run, err := m.cfg.Records.Run(id); err == nil {
			return run.Backend
		}
	}
	if id, err := by.SelectCell(req.Of, req.Dir); err == nil {
		if c, err := m.cfg.Records.Cell(id); err == nil {
			return c.Backend
		}
	}
	return ""
}

// Lines are the lines of a policy, with what enforces them on a backend.
func Lines(r *policy.Result, caps backend.Caps) []api.PolicyLine {
	out := []api.PolicyLine{}
	for _, l := range r.Show(r.Origins) {
		if why := lackingFor(l, caps); why != "" {
			l.Force, l.How = "not enforced", why
		}
		out = append(out, api.PolicyLine(l))
	}
	return out
}

// Show lists all that a policy says, and what enforces it on this host.
func (m *Manager) Show(ctx context.Context, by Selector, req api.PolicyRequest) (api.Policy, error) {
	what, r, more, err := m.policyOf(by, req)
	if err != nil {
		return api.Policy{}, err
	}
	caps, err := m.cfg.Caps(ctx, m.backendOf(by, req), r.Isolation)
	if err != nil {
		return api.Policy{}, err
	}
	rules, err := decide.Of(*r)
	if err != nil {
		return api.Policy{}, err
	}
	out := api.Policy{Of: what, Digest: r.Digest().String(), Talks: r.Talks(), Bound: r.Origins.Bound, Text: r.Canonical(), Cedar: rules.Cedar()}
	out.Lines = Lines(r, caps)
	if more != nil {
		out.Layers, out.Skipped = more.Layers, more.Notes
	}
	return out, nil
}

// Why says what a policy makes of a request.
func (m *Manager) Why(by Selector, req api.PolicyRequest) (api.PolicyAnswer, error) {
	a, err := decide.ParseRequest(req.Request)
	if err != nil {
		return api.PolicyAnswer{}, err
	}
	_, r, _, err := m.policyOf(by, req)
	if err != nil {
		return api.PolicyAnswer{}, err
	}
	rules, err := decide.Of(*r)
	if err != nil {
		return api.PolicyAnswer{}, err
	}
	steps, effect := rules.Why(a)
	if more, denied := m.whyAddresses(rules, a); effect != cell.Deny && denied {
		steps, effect = append(steps, more), cell.Deny
	}
	out := api.PolicyAnswer{Request: req.Request, Effect: string(effect), Digest: r.Digest().String()}
	for _, s := range steps {
		d := s.Decision
		out.Steps = append(out.Steps, api.PolicyStep{Want: s.Want(), Effect: string(d.Effect), Rule: d.Rule, Origin: d.Origin, Reason: d.Reason,
			Permit: d.Permit, Line: d.Line, Narrower: d.Narrower, Open: d.Open, Credential: d.Credential})
	}
	return out, nil
}

// whyLookup is how long the addresses of a name may take to be found for an
// explanation.
const whyLookup = 3 * time.Second

// whyAddresses is what the gateway would say about the addresses that a name leads
// to now, when it says no to all of them, or, where a proxy chooses, to one. Names that can't be looked up here are
// judged as names alone.
func (m *Manager) whyAddresses(rules *decide.Rules, a cell.Access) (step decide.Step, denied bool) {
	if a.Host == "" || a.Host == cell.HostName || a.Addr.IsValid() || a.Act != cell.Connect && a.Act != cell.Request {
		return step, false
	}
	if _, effect := rules.Why(a); effect == cell.Deny {
		return step, false // it is never looked up
	}
	ctx, cancel := context.WithTimeout(m.cfg.Life, whyLookup)
	defer cancel()
	addrs, err := gateway.Addresses(ctx, m.cfg.Resolvers, a.Host)
	if err != nil {
		return step, false
	}
	for _, addr := range addrs {
		c := cell.Access{Act: cell.Connect, Host: a.Host, Addr: addr, Port: a.Port, Transport: "tcp"}
		d := rules.Decide(c)
		if d.Effect != cell.Deny && m.cfg.Proxy == nil {
			return step, false
		}
		if d.Effect != cell.Deny { // the proxy may choose another
			continue
		}
		step, denied = decide.Step{Access: c, Decision: d}, true
	}
	return step, denied
}

// Diff lists what only one of two policies says.
func (m *Manager) Diff(by Selector, req api.PolicyDiffRequest) (api.PolicyDiff, error) {
	out := api.PolicyDiff{Changes: []api.PolicyChange{}}
	a, ra, _, err := m.policyOf(by, req.A)
	if err != nil {
		return out, err
	}
	b, rb, _, err := m.policyOf(by, req.B)
	if err != nil {
		return out, err
	}
	out.A, out.B, out.DigestA, out.DigestB = a, b, ra.Digest().String(), rb.Digest().String()
	la, lb := ra.Show(ra.Origins), rb.Show(rb.Origins)
	only := func(mark string, of, than []policy.Shown) {
		for _, l := range of {
			if !slices.ContainsFunc(than, func(o policy.Shown) bool { return o.Section == l.Section && o.Text == l.Text }) {
				out.Changes = append(out.Changes, api.PolicyChange{Change: mark, Section: l.Section, Text: l.Text, Origin: l.Origin})
			}
		}
	}
	only("-", la, lb)
	only("+", lb, la)
	slices.SortStableFunc(out.Changes, func(x, y api.PolicyChange) int { return strings.Compare(x.Section, y.Section) })
	return out, nil
}
