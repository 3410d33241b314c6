package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/workspace"
)

// agentFile bounds a file of an agent's home that pando changes, in bytes. The cell may have
// written it.
const agentFile = 4 << 20

// leastIdle is the shortest time after which an idle agent is paused.
const leastIdle = time.Second

// agentPlan is the agent that a run starts.
type agentPlan struct {
	adapter agent.Adapter
	start   agent.Start
	home    []homePiece   // what comes along of the user's home
	stays   []string      // what of that does not
	idle    time.Duration // after which its cell is paused; 0: never
	// content is the digest of what the repository configures for it, as far as that was looked at; byContent says that it is
	// trusted for that.
	content   string
	byContent bool
	// With a model server of the user's own: its host and port as a policy allows them, the
	// credential that is its key, "" for none, and whether that goes into a header Authorization.
	served, key string
	bearer      bool
}

// planAgent turns a request for an agent into one for its program. It returns nil when the
// request asks for none.
func (e *Engine) planAgent(req *api.RunRequest) (*agentPlan, error) {
	const opName = "engine.StartRun"
	if req.Agent == nil {
		return nil, nil
	}
	a, ok := e.cfg.Agents.Find(req.Agent.Name)
	if !ok {
		return nil, cell.Errorf(cell.NotFound, opName, "the agents are "+strings.Join(e.cfg.Agents.Names(), ", ")+"; any other program: pando run -- PROGRAM",
			"cannot start agent %q: there is no such agent", cell.Clip(req.Agent.Name))
	}
	if !slices.Contains([]string{"", api.AutonomyFull, api.AutonomyPrompting}, req.Agent.Autonomy) {
		return nil, cell.Errorf(cell.Invalid, opName, "use "+api.AutonomyFull+" or "+api.AutonomyPrompting, "%q is no autonomy of an agent", cell.Clip(req.Agent.Autonomy))
	}
	if req.Agent.Autonomy == api.AutonomyPrompting && req.Agent.Prompt != "" {
		return nil, cell.Errorf(cell.Invalid, opName, "leave out --prompt, or --autonomy", "cannot start %s with a task and autonomy %s: without a terminal nothing can be asked", a.About().Title, api.AutonomyPrompting)
	}
	p := &agentPlan{adapter: a, start: agent.Start{Args: req.Command, Prompt: req.Agent.Prompt, Continue: req.Agent.Continue, Asks: req.Agent.Autonomy == api.AutonomyPrompting, Trusts: req.Agent.TrustRepository}}
	if err := cell.CheckArguments(opName, append([]string{p.start.Prompt}, req.Command...), req.Env); err != nil {
		return nil, err
	}
	if err := p.planHome(req.Agent.Home); err != nil {
		return nil, err
	}
	if req.Agent.IdlePause != "" {
		var err error
		if p.idle, err = policy.ParseTimeout(req.Agent.IdlePause); err != nil {
			return nil, err
		}
		if p.idle < leastIdle {
			return nil, cell.Errorf(cell.Invalid, opName, "give it a second or more", "cannot pause an agent that is idle for %s: that is too short", p.idle)
		}
		if !req.TTY {
			return nil, cell.Errorf(cell.Invalid, opName, "leave it out: its end ends the run", "cannot pause %s when it is idle: it has no terminal", a.About().Title)
		}
	}
	if req.Agent.ModelURL != "" {
		var err error
		if p.start.Model, p.served, err = modelServer(req.Agent.ModelURL); err != nil {
			return nil, err
		}
	}
	if err := mayMode(req.Agent, time.Now()); err != nil {
		return nil, err
	}
	argv, err := a.Command(p.start)
	if err != nil {
		return nil, err
	}
	req.Command = argv
	return p, nil
}

// governed is the request by which a run is governed: its own, with what its agent needs, and the
// origins of that.
func (p *runPlan) governed(stored func(agent.Login) bool) (api.RunRequest, map[string]string) {
	req, said := p.req, map[string]string{}
	if p.agent == nil || p.again != nil {
		return req, said
	}
	about := p.agent.adapter.About()
	say := func(flag, origin string, values, asked []string) {
		for _, v := range values {
			if !slices.Contains(asked, v) {
				said[flag+" "+v] = origin + " " + v
			}
		}
	}
	asked := func(l agent.Login) bool {
		return slices.Contains(req.Credentials, l.Credential) || given(p.req.Env, l.Variables)
	}
	if p.agent.served != "" { // most servers speak as OpenAI's
		p.agent.start.Login = about.Choose(func(l agent.Login) bool { return asked(l) && !l.Account },
			func(l agent.Login) bool { return l.Credential == "openai" }, func(l agent.Login) bool { return !l.Account })
		req.Allow = slices.Concat([]string{p.agent.served}, req.Allow)
		origin := "--model-url"
		if slices.ContainsFunc(req.Defaults, func(d api.Default) bool { return d.Key == "model-url" }) {
			origin = policy.OriginConfig + "model-url"
		}
		say("allow", origin, []string{p.agent.served}, p.req.Allow)
	} else {
		login := about.Choose(asked, stored)
		if !asked(login) && stored(login) {
			req.Credentials = append(slices.Clone(req.Credentials), login.Credential)
			say("credential", policy.OriginAgent+about.Name, []string{login.Credential}, p.req.Credentials)
		}
		p.agent.start.Login = login
		req.Allow = slices.Concat(login.Allow, req.Allow)
		say("allow", policy.OriginAgent+about.Name, login.Allow, p.req.Allow)
	}
	allowed, _ := policy.AllowedBy(req.Agent.Mode) // planAgent has checked it
	req.Allow = slices.Concat(req.Allow, allowed)
	say("allow", policy.OriginMode+req.Agent.Mode, allowed, p.req.Allow)
	env := p.agent.adapter.Env(p.agent.start)
	for _, kv := range env {
		if name, _, _ := strings.Cut(kv, "="); !given(p.req.Env, []string{name}) {
			said["env "+name] = policy.OriginAgent + about.Name + " " + name
		}
	}
	req.Env = slices.Concat(env, req.Env)
	return req, said
}

// maxReason bounds the reason of a mode, in bytes.
const maxReason = 500

// mayMode refuses a mode that there is none of, and breakglass without today's date and a reason.
func mayMode(a *api.AgentRequest, now time.Time) error {
	const opName = "engine.StartRun"
	if _, err := policy.AllowedBy(a.Mode); err != nil {
		return err
	}
	today := now.UTC().Format(time.DateOnly)
	switch {
	case a.Mode != policy.AgentBreakglass && a.Acknowledge+a.Reason != "":
		return cell.Errorf(cell.Invalid, opName, "leave them out, or add --mode breakglass", "cannot acknowledge mode %s: breakglass alone needs that", orElse(a.Mode, policy.AgentStrict))
	case a.Mode != policy.AgentBreakglass:
	case a.Acknowledge != today:
		return cell.Errorf(cell.Denied, opName, "--acknowledge "+today+" --reason 'TEXT'", "cannot start with mode breakglass: it is acknowledged with today's date (UTC) and a reason")
	case strings.TrimSpace(a.Reason) == "":
		return cell.Errorf(cell.Denied, opName, "--acknowledge "+today+" --reason 'TEXT'", "cannot start with mode breakglass: it has no reason")
	case strings.ContainsFunc(a.Reason, unicode.IsControl):
		return cell.Errorf(cell.Invalid, opName, "write it in one line", "cannot start with mode breakglass: its reason has control characters")
	case len(a.Reason) > maxReason:
		return cell.Errorf(cell.Invalid, opName, "shorten it", "cannot start with mode breakglass: its reason has more than %d bytes", maxReason)
	}
	return nil
}

// words are the words of the downgrades of a planned run.
func (p *runPlan) words() []string {
	return p.policy.Words(policy.Start{Backend: p.backend.Name(), Agent: p.agent != nil, Trusts: p.agent != nil && p.agent.start.Trusts, Writable: p.image.Kind != image.KindHost && !p.policy.Files.ReadOnlyRoot})
}

// mayStart refuses an agent that has no credential, and one on the host itself.
func (a *agentPlan) mayStart(pol *policy.Result, backend string) error {
	const opName = "engine.StartRun"
	if a == nil {
		return nil
	}
	about := a.adapter.About()
	if !policy.Isolates(backend) {
		return cell.Errorf(cell.Unsupported, opName, cell.Isolated, "cannot start %s on backend %s: it would work in your own home", about.Title, backend)
	}
	if a.served != "" {
		return nil
	}
	for _, l := range about.Logins {
		if slices.Contains(pol.Handles(), l.Credential) || given(pol.Env, l.Variables) {
			return nil
		}
	}
	return cell.Errorf(cell.NotFound, opName, "pando login "+about.Name, "cannot start %s: no credential for it is stored", about.Title)
}

// given reports whether an environment sets one of these variables.
func given(env, names []string) bool {
	return slices.ContainsFunc(env, func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(names, name)
	})
}

// agentEnv adds to the environment of an agent the key of a model server of the user's own, and
// what its program looks for by another name.
func (x *execution) agentEnv(env []string) []string {
	a := x.p.agent
	if a == nil {
		return env
	}
	login := a.start.Login
	if a.served != "" && !given(env, append(slices.Clone(login.Variables), login.Bearer)) {
		name, key := login.Variables[0], noKey
		if a.key != "" {
			key = x.e.govern.PlaceholderOf(x.c.ID, a.key)
		}
		if login.Bearer != "" && (a.bearer || a.key == "") {
			name = login.Bearer
		}
		env = append(env, name+"="+key)
	}
	if login.Reads != "" {
		env = append(env, login.Reads+"="+agent.Start{Env: env}.Getenv(login.Variables[0]))
	}
	return env
}

// noKey is the key of a model server that wants none, for programs that want one.
const noKey = "none"

// modelServer reads the base URL of a model server of the user's own: as the cell names it, and
// its host and port as a policy allows them. On a loopback address it is the user's machine's.
func modelServer(text string) (base, allow string, err error) {
	bad := func(why string) error {
		return cell.Errorf(cell.Invalid, "engine.StartRun", "write it like https://models.example.com or http://localhost:11434", "%q is no URL of a model server: %s", cell.Clip(text), why)
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "":
		return "", "", bad("it has no host")
	case u.Scheme != "http" && u.Scheme != "https":
		return "", "", bad("the scheme is http or https")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", "", bad("it has more than scheme, host, port and path; a key is a credential")
	case strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '"' || r == '\\' || r == '\'' }):
		return "", "", bad("it has a quote, a space or a character beyond ASCII")
	}
	host, port := u.Hostname(), u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	if addr, err := netip.ParseAddr(host); host == "localhost" || err == nil && (addr.IsLoopback() || addr.IsUnspecified()) {
		host, u.Host = cell.HostName, net.JoinHostPort(cell.HostName, port)
	}
	return u.String(), net.JoinHostPort(host, port), nil
}

// findKey finds the credential that a model server of the user's own gets: the first of the policy that
// is for its host.
func (a *agentPlan) findKey(pol *policy.Result, header func(handle string) string) {
	if a == nil || a.served == "" {
		return
	}
	host, _, _ := net.SplitHostPort(a.served)
	for _, c := range pol.Credentials {
		if slices.ContainsFunc(c.For, func(f string) bool { p, err := cell.ParsePlace(f); return err == nil && p.HoldsHost(host) }) {
			a.key, a.bearer = c.Handle, strings.EqualFold(header(c.Handle), "authorization")
			return
		}
	}
}

// idlePause is after how long the agent's cell is paused in which nothing happens; 0: never.
func (a *agentPlan) idlePause() time.Duration {
	if a == nil {
		return 0
	}
	return a.idle
}

// install adds to the error of a program that was not found how an agent is installed.
func (a *agentPlan) install(err error) error {
	if a == nil || cell.KindOf(err) != cell.NoSuchBinary {
		return err
	}
	about := a.adapter.About()
	return &cell.Error{Op: "engine.StartRun", Kind: cell.NoSuchBinary, Hint: "install " + about.Title + ": npm install -g " + about.Package, Err: err}
}

// agentName is the name of the cell of an agent that none was given for: that of its source (of
// one that was sent: "workspace"), with the lowest number that is free.
func (e *Engine) agentName(source string) string {
	stem := strings.Map(func(r rune) rune {
		if r == '.' || r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, filepath.Base(source))
	if stem = strings.TrimLeft(stem, ".-"); stem == "" {
		stem = "agent"
	}
	stem = stem[:min(len(stem), 48)]
	name, free := stem, false
	for i := 2; ; i++ {
		e.spawn.Name(name, func(taken string) error { free = taken == ""; return nil })
		if free && e.checkCellName(name) == nil {
			return name
		}
		name = stem + "-" + strconv.Itoa(i)
	}
}

// agentCell is the cell in which an agent was started last from the directory that a request names: its
// conversation is there.
func (v *View) agentCell(req *api.RunRequest) (string, error) {
	name := req.Agent.Name
	none := cell.Errorf(cell.NotFound, "engine.StartRun", "name its cell: --cell; pando ls --agents lists them", "cannot continue: %s was not started from here", name)
	if req.Upload != "" || req.From == "" {
		return "", none
	}
	source, err := workspace.CleanSource(req.From)
	if err != nil {
		return "", err
	}
	for _, r := range v.from(source) {
		if r.Agent == name && v.e.usableCell(&r) {
			return string(r.CellID()), nil
		}
	}
	return "", none
}

// furnish makes and changes the files of the home: those by which an agent starts without questions,
// and what comes into it from outside. It says what of the repository an agent leaves alone.
func (x *execution) furnish(ctx context.Context) error {
	a := x.p.agent
	if a == nil && len(x.p.home) == 0 {
		return nil
	}
	i := slices.IndexFunc(x.c.Setup.Mounts, func(m cell.Mount) bool { return m.Role == cell.RoleHome })
	if i < 0 {
		what := "use home of the policy"
		if a != nil {
			what = "start " + a.adapter.About().Title
		}
		return cell.Errorf(cell.Unsupported, "engine.furnish", "use another image", "cannot %s in cell %s: it has no home", what, x.c.Title())
	}
	home := x.c.Setup.Mounts[i].Target
	if a == nil {
		return x.bring(ctx, home, agent.Start{})
	}
	start := a.start
	start.Dir, start.Root, start.Env = x.resolvedWorkdir(), x.c.Source, x.agentEnv(append(x.e.govern.Env(&x.c), x.p.policy.Env...))
	if err := x.stillTrusted(ctx, start); err != nil {
		return err
	}
	for _, f := range a.adapter.Files(start) {
		at := path.Join(home, f.Path)
		h := tar.Header{Name: f.Path, ModTime: time.Now()}
		var now []byte
		if f.Link != "" {
			is, err := x.has(ctx, at)
			if err != nil {
				return err
			}
			if is {
				continue
			}
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777
		} else {
			old, err := fileIn(ctx, x, at)
			if err != nil {
				return err
			}
			if now = f.Make(old); old != nil && bytes.Equal(now, old) {
				continue
			}
			h.Typeflag, h.Size, h.Mode = tar.TypeReg, int64(len(now)), 0o600
		}
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		w.Write(now)
		if err := w.Close(); err != nil {
			return err
		}
		if err := x.inst.WriteFiles(ctx, home, x.c.Setup.User, &b); err != nil {
			return err
		}
	}
	if err := x.bring(ctx, home, start); err != nil {
		return err
	}
	x.noteOff(ctx, start)
	return nil
}

// noteOff notes what of the repository the agent leaves alone.
func (x *execution) noteOff(ctx context.Context, start agent.Start) {
	var off []string
	for _, p := range x.p.agent.adapter.Off(start) {
		if is, err := x.has(ctx, path.Join(start.Root, p)); is && err == nil { // what can't be looked at configures nothing
			off = append(off, p)
		}
	}
	if len(off) > 0 {
		x.run.Notes = append(x.run.Notes, x.p.agent.adapter.About().Title+" leaves alone what the repository configures for it (--trust-repository lets it run that): "+strings.Join(off, ", "))
	}
}

// has reports whether something is at a path in the cell.
func (x *execution) has(ctx context.Context, at string) (bool, error) {
	h, _, close, err := x.entry(ctx, at)
	defer close()
	return h != nil, err
}

// entry opens what is at a path in the cell, until close is called; nil where there is nothing.
func (x *execution) entry(ctx context.Context, at string) (h *tar.Header, content io.Reader, close func() error, err error) {
	read, write := io.Pipe()
	go func() { write.CloseWithError(x.inst.ReadFiles(ctx, at, write)) }()
	r := tar.NewReader(read)
	if h, err = r.Next(); cell.KindOf(err) == cell.NotFound {
		return nil, nil, read.Close, nil
	}
	return h, r, read.Close, err
}

// fileIn reads a regular file of a cell; nil where there is none.
func fileIn(ctx context.Context, x *execution, at string) ([]byte, error) {
	h, r, close, err := x.entry(ctx, at)
	defer close()
	if h == nil || err != nil {
		return nil, err
	}
	if h.Typeflag != tar.TypeReg {
		return nil, cell.Errorf(cell.Conflict, "engine.furnish", "remove it in the cell", "cannot start an agent in cell %s: %s is no regular file", x.c.Title(), at)
	}
	return bound.ReadAll(r, at, agentFile)
}

// stored reports whether the credential of a login is stored, also one that can't be read now: lending it says
// why. One of that name for something else is not.
func (e *Engine) stored(l agent.Login) bool {
	c, _, err := e.cfg.Credentials.Get(l.Credential)
	return cell.KindOf(err) != cell.NotFound && (c.Name == "" || slices.ContainsFunc(c.Env, func(v string) bool { return slices.Contains(l.Variables, v) }))
}

// headerOf is the name of the header that a credential goes into; "" if it is not stored.
func (e *Engine) headerOf(handle string) string {
	c, _, _ := e.cfg.Credentials.Get(handle)
	name, _, _ := strings.Cut(c.As, ":")
	return name
}
