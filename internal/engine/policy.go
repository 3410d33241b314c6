package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/gateway"
	"github.com/pando-dev/pando/internal/policy"
)

// ProjectPolicy is the name of a project's policy file, at the top of its
// source. It is repository content: it counts only after the user has allowed
// its digest.
const ProjectPolicy = "pando.policy.yaml"

// effective is the policy of a run, with what made it.
type effective struct {
	policy.Result
	layers []api.PolicyLayer
	notes  []string // what is there and not in force
}

// effectivePolicy merges the layers of policies: of the host, of the user, of
// the project at source ("" for none), and of the run itself.
func (e *Engine) effectivePolicy(req api.RunRequest, source string) (*effective, error) {
	out := &effective{}
	var layers []policy.Layer
	add := func(layer, name string, text []byte) error {
		f, err := policy.ParseFile(name, text)
		if err != nil {
			return err
		}
		layers = append(layers, policy.Layer{Name: layer, File: f})
		out.layers = append(out.layers, api.PolicyLayer{Layer: layer, File: name, Digest: cell.Sum(text).String()})
		return nil
	}
	if err := e.standingLayers(add); err != nil {
		return nil, err
	}
	text, note, err := e.projectPolicy(source)
	switch {
	case err != nil:
		return nil, err
	case note != "":
		out.notes = append(out.notes, note)
	case text != nil:
		if err := add(policy.LayerProject, ProjectPolicy, text); err != nil {
			return nil, err
		}
	}
	if req.Policy != "" || req.PolicyName != "" { // an empty file is no policy, and not none
		if err := add(policy.LayerRun, orElse(req.PolicyName, "policy"), []byte(req.Policy)); err != nil {
			return nil, err
		}
	}
	out.Result, err = policy.MergeLayers(policy.Defaults(e.cfg.Host), layers, policy.Flags{
		Mounts: req.Mounts, Env: req.Env, Secrets: req.WithSecret,
		Limits: policy.FileLimits(req.Limits), Allow: req.Allow, Credentials: req.Credentials,
	})
	if err != nil {
		return nil, err
	}
	for _, h := range out.Handles() {
		known, _, err := e.cfg.Credentials.Get(h)
		if err != nil {
			return nil, cannotLend(h, err)
		}
		var places []string
		for _, l := range known.Lend("", credential.Secret{}) {
			places = append(places, l.For...)
		}
		if err := out.Lend(h, places); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ownMachine refuses the daemon's own machine to callers that may name nothing of it.
func (p *runPlan) ownMachine() error {
	if h := p.policy.Network.ReachesHost(); p.confined && h != "" {
		return cannotReachHost(h)
	}
	return nil
}

// ownMachine is the same for a policy that a living cell gets.
func (v *View) ownMachine(text string) error {
	if !v.isConfined() {
		return nil
	}
	r, err := v.e.effectivePolicy(api.RunRequest{Policy: text, PolicyName: "policy"}, "")
	if err != nil {
		return err
	}
	if h := r.Network.ReachesHost(); h != "" {
		return cannotReachHost(h)
	}
	return nil
}

func cannotReachHost(name string) error {
	return cell.Errorf(cell.Denied, "engine.policy", "use a token of scope admin without labels", "cannot allow %s: what listens there is the daemon's host's", name)
}

// maxPolicy bounds what is read of a policy file.
const maxPolicy = 1 << 20

// readPolicy reads a policy file of the host or the user. Others must not be
// able to write to it.
func readPolicy(path string, ofHost bool) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, syscall.ENOTDIR) {
			return nil, fs.ErrNotExist
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, cell.Errorf(cell.Denied, "engine.readPolicy", "make it readable for you, or take it away", "cannot read policy %s: %w", path, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	owner, mine := st.Sys().(*syscall.Stat_t).Uid, uint32(os.Geteuid())
	switch {
	case !st.Mode().IsRegular():
		return nil, cell.Errorf(cell.Invalid, "engine.readPolicy", "put a file there", "cannot read policy %s: it is no regular file", path)
	case st.Mode().Perm()&0o022 != 0:
		return nil, cell.Errorf(cell.Denied, "engine.readPolicy", "run chmod go-w "+path, "cannot trust policy %s: others can write to it", path)
	case owner != 0 && (ofHost || owner != mine):
		return nil, cell.Errorf(cell.Denied, "engine.readPolicy", "give it to root", "cannot trust policy %s: it belongs to user %d", path, owner)
	}
	return readAllPolicy(f, path)
}

func readAllPolicy(r io.Reader, path string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxPolicy+1))
	if err == nil && len(b) > maxPolicy {
		err = cell.Errorf(cell.Invalid, "engine.readPolicy", "", "cannot read policy %s: it has more than %s", path, policy.FormatSize(maxPolicy))
	}
	return b, err
}

// projectPolicy reads the policy of the project at source, if it counts. Note
// says why one that is there does not.
func (e *Engine) projectPolicy(source string) (text []byte, note string, err error) {
	if source == "" {
		return nil, "", nil
	}
	path := filepath.Join(source, ProjectPolicy)
	text, err = readProject(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, "", nil
	}
	if err != nil {
		return nil, ProjectPolicy + " is there and not in force: " + err.Error(), nil
	}
	allowed, err := e.allowedPolicies()
	if err != nil {
		return nil, "", err
	}
	a, ok := allowed[path]
	switch {
	case !ok:
		return nil, ProjectPolicy + " is there and not in force: look at it, then `pando policy allow`", nil
	case a.Digest != cell.Sum(text):
		return nil, ProjectPolicy + " has changed since you allowed it, and is not in force: look at it, then `pando policy allow`", nil
	}
	return text, "", nil
}

// readProject reads a file of a project, which could be anything.
func readProject(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, errors.New("it is a symlink")
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.New("it is no regular file")
	}
	return readAllPolicy(f, path)
}

// allowedPolicy is the record of a project's file that the user allowed.
type allowedPolicy struct {
	Digest cell.Digest `json:"digest"`
	At     time.Time   `json:"at"`
}

// allowedPolicies reads which files the user allowed, by path. Damage is an
// error: without the records nothing that was allowed counts, and nobody would
// know why.
func (e *Engine) allowedPolicies() (map[string]allowedPolicy, error) {
	out := map[string]allowedPolicy{}
	b, err := os.ReadFile(e.cfg.Home.Allowed())
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		return nil, cell.Errorf(cell.Corrupt, "engine.allowedPolicies", "take the file away, and allow your projects' policies again",
			"cannot read which policies you allowed (%s): %w", e.cfg.Home.Allowed(), err)
	}
	return out, nil
}

// AllowPolicy makes a project's policy file count, as it is now, or takes that
// back.
func (e *Engine) AllowPolicy(req api.PolicyAllowRequest) (api.PolicyAllowed, error) {
	const op = "engine.AllowPolicy"
	path := req.Path
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		path = filepath.Join(path, ProjectPolicy)
	}
	if !filepath.IsAbs(path) {
		return api.PolicyAllowed{}, cell.Errorf(cell.Invalid, op, "", "cannot allow a policy: its path is not absolute")
	}
	// A source is known by its real path; so is what lies in it.
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(dir, filepath.Base(path))
	}
	if filepath.Base(path) != ProjectPolicy {
		return api.PolicyAllowed{}, cell.Errorf(cell.Invalid, op, "name it "+ProjectPolicy+" at the top of the project, or use it with --policy", "cannot allow %s: no run would use a file of this name by itself", path)
	}
	e.policies.Lock()
	defer e.policies.Unlock()
	all, err := e.allowedPolicies()
	if err != nil {
		return api.PolicyAllowed{}, err
	}
	out := api.PolicyAllowed{Path: path, At: time.Now().UTC()}
	if req.Forget {
		old, ok := all[path]
		if !ok {
			return out, cell.Errorf(cell.NotFound, op, "`pando policy allow --list` shows what is allowed", "cannot forget %s: it was not allowed", path)
		}
		delete(all, path)
		out.Digest, out.State = old.Digest.String(), "forgotten"
		return out, e.writeAllowed(all)
	}
	text, err := readProject(path)
	if err != nil {
		kind := cell.Invalid
		if errors.Is(err, fs.ErrNotExist) {
			kind = cell.NotFound
		}
		return out, cell.Errorf(kind, op, "write one with pando policy init > "+ProjectPolicy, "cannot allow %s: %w", path, err)
	}
	if _, err := policy.ParseFile(path, text); err != nil {
		return out, err
	}
	sum := cell.Sum(text)
	if req.Digest != "" && req.Digest != sum.String() {
		return out, cell.Errorf(cell.Conflict, op, "look at it again", "cannot allow %s: it changed while you looked at it", path)
	}
	all[path] = allowedPolicy{sum, out.At}
	out.Digest, out.State = sum.String(), "in force"
	return out, e.writeAllowed(all)
}

func (e *Engine) writeAllowed(all map[string]allowedPolicy) error {
	b, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	at := e.cfg.Home.Allowed()
	return durable.WriteFile(durable.Disk(filepath.Dir(at)), filepath.Base(at), append(b, '\n'), 0o600)
}

// AllowedPolicies lists the files of projects that the user allowed.
func (e *Engine) AllowedPolicies() ([]api.PolicyAllowed, error) {
	all, err := e.allowedPolicies()
	if err != nil {
		return nil, err
	}
	out := []api.PolicyAllowed{}
	for path, a := range all {
		v := api.PolicyAllowed{Path: path, Digest: a.Digest.String(), At: a.At, State: "in force"}
		text, err := readProject(path)
		switch {
		case err != nil:
			v.State = "gone"
		case cell.Sum(text) != a.Digest:
			v.State = "changed"
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b api.PolicyAllowed) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

// CheckPolicy reads a policy file and says what is odd about it.
func (e *Engine) CheckPolicy(req api.PolicyCheckRequest) (api.PolicyCheck, error) {
	out := api.PolicyCheck{Name: req.Name, Digest: cell.Sum([]byte(req.Text)).String(), Lines: []api.PolicyLine{}, Remarks: []string{}}
	f, err := policy.ParseFile(orElse(req.Name, "policy"), []byte(req.Text))
	if err != nil {
		return out, err
	}
	r, err := policy.Merge(policy.Defaults(e.cfg.Host), f, policy.Flags{})
	if err != nil {
		return out, err
	}
	if _, err := r.Rules(); err != nil {
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
		if _, _, err := e.cfg.Credentials.Get(h); err != nil {
			out.Remarks = append(out.Remarks, fmt.Sprintf("credential %s is not kept here: %s", h, cell.HintOf(err)))
		}
	}
	return out, nil
}

// policyOf finds the policy that a request names.
func (v *View) policyOf(req api.PolicyRequest) (what string, r *policy.Result, more *effective, err error) {
	e := v.e
	if req.Of == "" {
		source := req.Run.From
		if source == "" {
			source = req.Dir
		}
		if source, err = filepath.EvalSymlinks(source); err != nil {
			return "", nil, nil, cell.Errorf(cell.NotFound, "engine.policyOf", "", "cannot find the source: %w", err)
		}
		more, err = e.effectivePolicy(req.Run, source)
		if err != nil {
			return "", nil, nil, err
		}
		return "a run from " + source, &more.Result, more, nil
	}
	if id, err := v.SelectRun(req.Of, req.Dir); err == nil && (strings.HasPrefix(req.Of, "r-") || strings.Contains(req.Of, ":")) {
		run, err := e.reg.Run(id)
		if err != nil {
			return "", nil, nil, err
		}
		r, err := evidence.ManifestPolicy(&run)
		return "run " + run.ID, r, nil, err
	}
	id, err := v.SelectCell(req.Of, req.Dir)
	if err != nil {
		return "", nil, nil, err
	}
	c, err := e.reg.Cell(id)
	if err != nil {
		return "", nil, nil, err
	}
	if c.Setup.PolicyText == "" {
		return "", nil, nil, cell.Errorf(cell.NotFound, "engine.policyOf", "", "cannot tell what governs cell %s: nothing ran in it yet", c.Title())
	}
	eff, err := policy.Parse([]byte(c.Setup.PolicyText))
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
func (v *View) backendOf(req api.PolicyRequest) string {
	e := v.e
	if req.Of == "" {
		return req.Run.Backend
	}
	if id, err := v.SelectRun(req.Of, req.Dir); err == nil {
		if run, err := e.reg.Run(id); err == nil {
			return run.Backend
		}
	}
	if id, err := v.SelectCell(req.Of, req.Dir); err == nil {
		if c, err := e.reg.Cell(id); err == nil {
			return c.Backend
		}
	}
	return ""
}

// ShowPolicy lists all that a policy says, and what enforces it on this host.
func (v *View) ShowPolicy(ctx context.Context, req api.PolicyRequest) (api.Policy, error) {
	e := v.e
	what, r, more, err := v.policyOf(req)
	if err != nil {
		return api.Policy{}, err
	}
	b, err := e.backendUnder(v.backendOf(req), r.Isolation)
	if err != nil {
		return api.Policy{}, err
	}
	caps, err := e.caps(ctx, b)
	if err != nil {
		return api.Policy{}, err
	}
	rules, err := r.Rules()
	if err != nil {
		return api.Policy{}, err
	}
	out := api.Policy{Of: what, Digest: r.Digest().String(), Lines: []api.PolicyLine{}, Talks: r.Talks(), Bound: r.Origins.Bound, Text: r.Canonical(), Cedar: rules.Cedar()}
	for _, l := range r.Show(r.Origins) {
		if why := lackingFor(l, caps); why != "" {
			l.Force, l.How = "not enforced", why
		}
		out.Lines = append(out.Lines, api.PolicyLine(l))
	}
	if more != nil {
		out.Layers, out.Skipped = more.layers, more.notes
	}
	return out, nil
}

// WhyPolicy says what a policy makes of a request.
func (v *View) WhyPolicy(req api.PolicyRequest) (api.PolicyAnswer, error) {
	a, err := policy.ParseRequest(req.Request)
	if err != nil {
		return api.PolicyAnswer{}, err
	}
	_, r, _, err := v.policyOf(req)
	if err != nil {
		return api.PolicyAnswer{}, err
	}
	rules, err := r.Rules()
	if err != nil {
		return api.PolicyAnswer{}, err
	}
	steps, effect := rules.Why(a)
	if more, denied := v.e.whyAddresses(rules, a); effect != cell.Deny && denied {
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
func (e *Engine) whyAddresses(rules *policy.Rules, a cell.Access) (step policy.Step, denied bool) {
	if a.Host == "" || a.Host == cell.HostName || a.Addr.IsValid() || a.Act != cell.Connect && a.Act != cell.Request {
		return step, false
	}
	if _, effect := rules.Why(a); effect == cell.Deny {
		return step, false // nobody would ask for it
	}
	ctx, cancel := context.WithTimeout(e.life, whyLookup)
	defer cancel()
	addrs, err := gateway.Addresses(ctx, e.cfg.Resolvers, a.Host)
	if err != nil {
		return step, false
	}
	for _, addr := range addrs {
		c := cell.Access{Act: cell.Connect, Host: a.Host, Addr: addr, Port: a.Port, Transport: "tcp"}
		d := rules.Decide(c)
		if d.Effect != cell.Deny && e.cfg.Proxy == nil {
			return step, false
		}
		if d.Effect != cell.Deny { // the proxy may choose another
			continue
		}
		step, denied = policy.Step{Access: c, Decision: d}, true
	}
	return step, denied
}

// DiffPolicies lists what only one of two policies says.
func (v *View) DiffPolicies(req api.PolicyDiffRequest) (api.PolicyDiff, error) {
	out := api.PolicyDiff{Changes: []api.PolicyChange{}}
	a, ra, _, err := v.policyOf(req.A)
	if err != nil {
		return out, err
	}
	b, rb, _, err := v.policyOf(req.B)
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
