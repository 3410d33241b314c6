package policy

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

func itoa(n int) string { return strconv.Itoa(n) }

// Flags is the run's own layer, beneath every file.
type Flags struct {
	Mounts []string // SRC:DST[:rw]
	// ReadOnly makes the root file system read-only.
	ReadOnly bool
	Env      []string // NAME=value
	Secrets  []string
	Limits   FileLimits
	// Allow lists what the cell may reach: HOST[:PORT], *.HOST, an address or a prefix,
	// @PRESET.
	Allow       []string
	Credentials []string // handles
	// Said has the origins of what the request says by no flag: "allow @npm" → "mode development".
	// A key is the flag with what Origins names it by; for a limit it is the flag alone.
	Said map[string]string
}

// origin is where a flag, with its value, was said.
func (f *Flags) origin(flag, value string) string {
	what := strings.TrimSuffix(flag+" "+value, " ")
	return cmp.Or(f.Said[what], "--"+what)
}

// OfRequest reports whether an origin is the request itself, and no file.
func OfRequest(origin string) bool {
	return strings.HasPrefix(origin, "--") || slices.ContainsFunc([]string{OriginConfig, OriginMode, OriginAgent}, func(p string) bool { return strings.HasPrefix(origin, p) })
}

// The layers of policies, uppermost first. A lower one can only narrow what
// the ones above it speak of; docs/reference/policy.md has the rule for each
// section.
const (
	LayerHost    = "host"    // of the host, for all its users: bounds, and grants nothing
	LayerUser    = "user"    // of the user that runs pando
	LayerProject = "project" // of the repository, once the user has allowed its digest
	LayerRun     = "run"     // --policy FILE, with the flags
)

// Layer is one file and its place in the order.
type Layer struct {
	Name string
	File *File
}

// Result is an effective policy with what is not part of its digest.
type Result struct {
	Effective
	Env   []string // NAME=value, of files and flags; flags win
	Asked []string // explicit limits: they must hold
	// Origins says where each line comes from.
	Origins Origins
}

// Merge makes the effective policy of defaults, a file (nil for none) and
// flags.
func Merge(base Effective, file *File, flags Flags) (Result, error) {
	var layers []Layer
	if file != nil {
		layers = append(layers, Layer{LayerRun, file})
	}
	return MergeLayers(base, layers, flags)
}

// MergeLayers makes the effective policy of defaults, files in the order of
// their layers, and flags.
func MergeLayers(base Effective, layers []Layer, flags Flags) (Result, error) {
	m := &merger{r: Result{Effective: base, Origins: Origins{Lines: map[string]string{}}}, env: map[string]string{}, asked: map[string]string{}, keys: map[string]string{}}
	for _, l := range layers {
		if l.File == nil {
			continue
		}
		for _, step := range []func(Layer) error{m.isolation, m.secrets, m.files, m.environment, m.home, m.prices, m.findings, m.limits, m.accept, m.keep, m.approvals, m.network, m.credentials} {
			if err := step(l); err != nil {
				return m.r, err
			}
		}
	}
	if err := m.flags(flags); err != nil {
		return m.r, err
	}
	m.finish()
	return m.r, nil
}

// merger is a merge under way.
type merger struct {
	r     Result
	env   map[string]string
	order []string
	asked map[string]string // limit → the last layer that gave it
	keys  map[string]string // text of a rule, with its list → where it stands

	lists  []listed // layers that say what may be reached, uppermost first
	mounts []listedMounts
	lent   []listedCredentials
}

// listed is what a layer says may be reached.
type listed struct {
	layer string
	allow []Rule
	ask   []Rule
	at    string            // of the list
	words map[string]string // text of a rule, with its list → where it stands
}

type listedMounts struct {
	layer  string
	at     string
	mounts []Mount
}

type listedCredentials struct {
	at   string
	lent []Credential
}

func (m *merger) put(name, kv string) {
	if _, ok := m.env[name]; !ok {
		m.order = append(m.order, name)
	}
	m.env[name] = kv
}

func (m *merger) origin(name, at string) {
	if old := m.r.Origins.Lines[name]; old != "" && old != at {
		at = old + ", " + at
	}
	m.r.Origins.Lines[name] = at
}

func (m *merger) files(l Layer) error {
	f := l.File
	var mounts []Mount
	for _, mt := range f.Mounts {
		if err := m.mountBound(mt.Mount, f.at(mt.Line)); err != nil {
			return err
		}
		mounts = append(mounts, mt.Mount)
		m.origin("mount "+mt.Target, f.at(mt.Line))
	}
	if len(mounts) > 0 {
		m.mounts = append(m.mounts, listedMounts{l.Name, f.at(f.Mounts[0].Line), mounts})
		m.r.Files.Mounts = mounts
		if l.Name == LayerHost {
			m.r.Files.Mounts = []Mount{}
		}
	}
	for _, list := range []struct {
		what  string
		lines []Line
		dst   *[]string
	}{{"hidden ", f.Hidden, &m.r.Files.Hidden}, {"read-only ", f.ReadOnly, &m.r.Files.ReadOnly}, {"deny program ", f.Deny, &m.r.Processes.Deny}} {
		for _, line := range list.lines {
			*list.dst = append(*list.dst, line.Text)
			m.origin(list.what+line.Text, f.at(line.Line))
		}
	}
	if f.Root.Word == wordReadOnly && !m.r.Files.ReadOnlyRoot {
		m.r.Files.ReadOnlyRoot, m.r.Origins.Lines[ruleRoot] = true, f.at(f.Root.Line)
	}
	return nil
}

// mountBound refuses a mount that a layer above does not allow: from
// elsewhere, or writable where that one is not.
func (m *merger) mountBound(mt Mount, at string) error {
	for _, b := range m.mounts {
		if !slices.ContainsFunc(b.mounts, func(o Mount) bool {
			return (mt.Source == o.Source || strings.HasPrefix(mt.Source, strings.TrimSuffix(o.Source, "/")+"/")) && !strings.Contains(mt.Source, "..") && (o.Writable || !mt.Writable)
		}) {
			return tooWide("mount "+mt.String(), at, b.at)
		}
	}
	return nil
}

func tooWide(what, at, bound string) error {
	return cell.Errorf(cell.Denied, "policy.Merge", "a lower layer can only narrow: "+without(at)+"add it at "+bound,
		"cannot allow %s (%s): %s allows less", what, at, bound)
}

// without is how a request goes without what has an origin, with "or" for what can be done in its place.
// It is empty for what an agent needs.
func without(at string) string {
	switch {
	case strings.HasPrefix(at, OriginAgent):
		return ""
	case strings.HasPrefix(at, OriginMode):
		return "choose another --mode, or "
	case strings.HasPrefix(at, OriginConfig):
		key, _, _ := strings.Cut(strings.TrimPrefix(at, OriginConfig), " ")
		return "take the default back with pando config unset " + key + ", go without with --no-config, or "
	case OfRequest(at):
		return "leave out " + at + ", or "
	}
	return "take it out at " + at + ", or "
}

func (m *merger) environment(l Layer) error {
	for _, v := range l.File.Environment {
		m.put(v.Name, v.Name+"="+v.Value)
		m.r.Origins.Lines["variable "+v.Name] = l.File.Name
	}
	return nil
}

// limitNames are those of Limits, in order.
func limitNames() []string {
	list := []string{"cpus", "memory", "pids", "disk", "timeout", "egress", "forks", "executions"}
	for _, b := range budgetNames() {
		list = append(list, "budget."+b)
	}
	return list
}

func (m *merger) limits(l Layer) error {
	f := l.File
	next, given, err := f.Limits.parse(m.r.Limits)
	if err != nil {
		return err
	}
	next, more, err := f.Budgets.parse(next)
	if err != nil {
		return err
	}
	for _, g := range append(given, more...) {
		if m.asked[g] != "" && wider(g, next, m.r.Limits) {
			continue // the layer above says less
		}
		m.r.Limits.take(g, next)
		word, _, _ := strings.Cut(g, ".")
		m.asked[g] = f.at(f.LimitLines[word])
		m.r.Origins.Lines["limits."+g] = m.asked[g]
	}
	return nil
}

// take copies one limit.
func (l *Limits) take(name string, from Limits) {
	switch name {
	case "cpus":
		l.CPUs = from.CPUs
	case "memory":
		l.Memory = from.Memory
	case "pids":
		l.PIDs = from.PIDs
	case "disk":
		l.Disk = from.Disk
	case "timeout":
		l.Timeout = from.Timeout
	case "egress":
		l.Egress = from.Egress
	case "forks":
		l.Forks = from.Forks
	case "executions":
		l.Execs = from.Execs
	default:
		if to := l.Budget.limit(name); to != nil {
			*to = *from.Budget.limit(name)
		}
	}
}

// Set sets one limit, by its name in policies.
func (l *Limits) Set(name string, v float64) {
	l.take(name, Limits{CPUs: v, Memory: int64(v), PIDs: int64(v), Disk: int64(v), Timeout: int64(v), Egress: int64(v), Forks: int64(v), Execs: int64(v)})
}

// Get is a limit as a number; more of it is wider.
func (l Limits) Get(name string) float64 {
	switch name {
	case "cpus":
		return l.CPUs
	case "memory":
		return float64(l.Memory)
	case "pids":
		return float64(l.PIDs)
	case "disk":
		return float64(l.Disk)
	case "timeout":
		return float64(l.Timeout)
	case "egress":
		return float64(l.Egress)
	case "forks":
		return float64(l.Forks)
	case "executions":
		return float64(l.Execs)
	}
	if b := l.Budget.limit(name); b != nil {
		return float64(*b)
	}
	return 0
}

func wider(limit string, a, b Limits) bool { return a.Get(limit) > b.Get(limit) }

func (m *merger) approvals(l Layer) error {
	f := l.File
	if f.Approvals.Timeout != "" {
		d, err := ParseTimeout(f.Approvals.Timeout)
		if err != nil {
			return err
		}
		if m.asked["approvals.timeout"] == "" || d.Milliseconds() < m.r.Approvals.Timeout {
			m.r.Approvals.Timeout = d.Milliseconds()
			m.asked["approvals.timeout"] = f.at(f.Approvals.TimeoutLine)
			m.r.Origins.Lines["approvals.timeout"] = m.asked["approvals.timeout"]
		}
	}
	if f.Approvals.Webhook != "" && m.r.Approvals.Webhook == "" { // the upper layer decides which webhook is called
		m.r.Approvals.Webhook = f.Approvals.Webhook
		m.r.Origins.Lines["approvals.webhook"] = f.at(f.Approvals.WebhookLine)
	}
	return nil
}

func (m *merger) network(l Layer) error {
	f := l.File
	for _, d := range f.Network.Deny {
		for _, rule := range d.Rules {
			m.r.Network.Deny = append(m.r.Network.Deny, rule)
			m.keys["deny "+rule.key()] = ruleOrigin(f, d)
		}
	}
	if !f.Network.lists() {
		return nil
	}
	li := listed{layer: l.Name, at: f.at(max(f.Network.AllowLine, 1)), words: map[string]string{}}
	if f.Network.AllowLine == 0 {
		li.at = f.at(f.Network.AskLine)
	}
	for _, list := range []struct {
		what  string
		rules []FileRule
		dst   *[]Rule
	}{{"allow", f.Network.Allow, &li.allow}, {"ask", f.Network.Ask, &li.ask}} {
		for _, fr := range list.rules {
			for _, rule := range fr.Rules {
				if err := m.networkBound(rule, ruleOrigin(f, fr)); err != nil {
					return err
				}
				if err := m.ruleLentBound(rule, ruleOrigin(f, fr)); err != nil {
					return err
				}
				*list.dst = append(*list.dst, rule)
				li.words[list.what+" "+rule.key()] = ruleOrigin(f, fr)
			}
		}
	}
	m.lists = append(m.lists, li)
	return nil
}

func ruleOrigin(f *File, r FileRule) string {
	if strings.HasPrefix(r.Words, "@") {
		return f.at(r.Line) + " " + r.Words
	}
	return f.at(r.Line)
}

// networkBound refuses a rule with a host that can match nothing that the
// layers above it allow. What is only partly outside is cut at each decision.
func (m *merger) networkBound(r Rule, at string) error {
	for _, b := range m.lists {
		for _, h := range r.Hosts {
			one := r
			one.Hosts = []string{h}
			if !slices.ContainsFunc(slices.Concat(b.allow, b.ask), func(o Rule) bool { return overlap(one, o) }) {
				return tooWide(h+portsSuffix(r.Ports), at, b.at)
			}
		}
	}
	return nil
}

func portsSuffix(ports []string) string {
	if len(ports) == 0 || slices.Equal(ports, webPorts()) {
		return ""
	}
	return " on " + PortsText(ports)
}

func (m *merger) credentials(l Layer) error {
	f := l.File
	if len(f.Credentials) == 0 {
		return nil
	}
	var lent []Credential
	for _, c := range f.Credentials {
		narrow, err := m.lentBound(c.Credential, c.PinSaid, f.at(c.Line))
		if err != nil {
			return err
		}
		lent = append(lent, narrow)
		m.origin("credential "+c.Handle, f.at(c.Line))
	}
	m.lent = append(m.lent, listedCredentials{f.at(f.Credentials[0].Line), lent})
	m.r.Credentials = lent
	if l.Name == LayerHost {
		m.r.Credentials = []Credential{}
	}
	return nil
}

// lentBound narrows a credential to what the layers above say of it. A pin that
// is not said is as in the layer above; none of the layers takes away another's.
func (m *merger) lentBound(c Credential, pinSaid bool, at string) (Credential, error) {
	for i, b := range m.lent {
		k := slices.IndexFunc(b.lent, func(o Credential) bool { return o.Handle == c.Handle })
		switch {
		case k < 0:
		case !pinSaid:
			c.Unpinned = b.lent[k].Unpinned && (i == 0 || c.Unpinned)
		case c.Unpinned && !b.lent[k].Unpinned:
			return c, tooWide("credential "+c.Handle+" with pin: false", at, b.at)
		}
	}
	for _, b := range m.lent {
		i := slices.IndexFunc(b.lent, func(o Credential) bool { return o.Handle == c.Handle })
		if i < 0 {
			return c, tooWide("credential "+c.Handle, at, b.at)
		}
		upper := b.lent[i]
		if len(upper.For) == 0 {
			continue
		}
		if len(c.For) == 0 {
			c.For = slices.Clone(upper.For)
			continue
		}
		for _, f := range c.For {
			if !slices.ContainsFunc(upper.For, func(u string) bool { return placeWithin(f, u) }) {
				return c, tooWide("credential "+c.Handle+" for "+f, at, b.at)
			}
		}
	}
	return c, nil
}

// ruleLentBound refuses a rule that puts in a credential which the layers above
// don't lend, or not for all that the rule allows.
func (m *merger) ruleLentBound(r Rule, at string) error {
	if r.Credential == "" {
		return nil
	}
	for _, b := range m.lent {
		i := slices.IndexFunc(b.lent, func(o Credential) bool { return o.Handle == r.Credential })
		if i < 0 {
			return tooWide("credential "+r.Credential, at, b.at)
		}
		if upper := b.lent[i].For; len(upper) > 0 && !ruleWithin(r, upper) {
			return tooWide("credential "+r.Credential+" by a rule that is not within the places it may go to", at, b.at)
		}
	}
	return nil
}

// ruleWithin reports whether all requests that a rule matches are at one of some
// places. It may say no where yes is true. Port 80, which hosts have beside 443
// when none was given, counts where a secret may travel in the clear.
func ruleWithin(r Rule, places []string) bool {
	paths, methods := r.Paths, ""
	if len(paths) == 0 {
		paths = []string{"/**"}
	}
	if len(r.Methods) > 0 {
		methods = strings.Join(r.Methods, ",") + " "
	}
	inClear := slices.ContainsFunc(places, func(p string) bool { return strings.Contains(p, "http://") })
	within := func(host, port, path string) bool {
		one := methods + "https://" + host + ":" + port + path
		if port == "80" && len(r.Ports) > 1 {
			if !inClear {
				return true
			}
			one = methods + "http://" + host + path
		}
		return slices.ContainsFunc(places, func(p string) bool { return placeWithin(one, p) })
	}
	for _, h := range r.Hosts {
		if strings.Contains(h, ":") {
			h = "[" + h + "]"
		}
		for _, port := range r.Ports {
			if slices.ContainsFunc(paths, func(path string) bool { return !within(h, port, path) }) {
				return false
			}
		}
	}
	return len(r.Ports) > 0
}

// flags is the lowest layer. With a FILE of the same run it is one layer: what
// both list is allowed; of limits only less.
func (m *merger) flags(flags Flags) error {
	for _, s := range flags.Mounts {
		mt, err := ParseMount(s)
		if err != nil {
			return err
		}
		if n := len(m.mounts); n > 0 && m.mounts[n-1].layer == LayerRun { // one layer with the flags
			m.mounts = m.mounts[:n-1]
		}
		at := flags.origin("mount", s)
		if err := m.mountBound(mt, at); err != nil {
			return err
		}
		m.r.Files.Mounts = append(slices.Clone(m.r.Files.Mounts), mt)
		m.origin("mount "+mt.Target, at)
	}
	if flags.ReadOnly && !m.r.Files.ReadOnlyRoot {
		m.r.Files.ReadOnlyRoot, m.r.Origins.Lines[ruleRoot] = true, flags.origin("read-only", "")
	}
	for _, kv := range flags.Env {
		name, err := CheckEnv(kv)
		if err != nil {
			return err
		}
		m.put(name, kv)
		m.r.Origins.Lines["variable "+name] = flags.origin("env", name)
	}
	for _, s := range flags.Secrets {
		m.r.Files.Secrets = append(m.r.Files.Secrets, s)
		m.origin("secret "+s, flags.origin("with-secret", s))
	}
	next, given, err := flags.Limits.parse(m.r.Limits)
	if err != nil {
		return err
	}
	for _, g := range given {
		flag, part, _ := strings.Cut(g, ".")
		at := flags.origin(flag, "")
		if m.asked[g] != "" && wider(g, next, m.r.Limits) {
			return cell.Errorf(cell.Denied, "policy.Merge", without(at)+"change it at "+m.asked[g],
				"the policy file limits %s more than %s asks for (%s)", cmp.Or(part, g), at, m.asked[g])
		}
		m.r.Limits.take(g, next)
		m.asked[g] = at
		m.r.Origins.Lines["limits."+g] = at
	}
	if err := m.flagRules(&flags); err != nil {
		return err
	}
	return m.flagCredentials(&flags)
}

func (m *merger) flagRules(flags *Flags) error {
	allow := flags.Allow
	if len(allow) == 0 {
		return nil
	}
	own := listed{layer: LayerRun, at: "--allow", words: map[string]string{}}
	if n := len(m.lists); n > 0 && m.lists[n-1].layer == LayerRun {
		own = m.lists[n-1]
		m.lists = m.lists[:n-1]
	}
	for _, s := range allow {
		t, err := parseTarget(s)
		if err != nil {
			return err
		}
		if err := checkHostPorts(s, t.hosts, t.ports); err != nil {
			return err
		}
		for _, rule := range append([]Rule{t.rule(webPorts())}, t.more...) {
			rule = rule.Canonical()
			if err := m.networkBound(rule, flags.origin("allow", s)); err != nil {
				return err
			}
			own.allow = append(own.allow, rule)
			if k := "allow " + rule.key(); own.words[k] == "" {
				own.words[k] = flags.origin("allow", s)
			}
		}
	}
	names := slices.ContainsFunc(slices.Concat(own.allow, own.ask), func(r Rule) bool {
		return slices.ContainsFunc(r.Hosts, func(h string) bool { return !isRangeText(h) && h != cell.HostName })
	})
	for _, s := range allow {
		if t, err := parseTarget(s); err == nil {
			if err := checkReachable(s, t.rule(webPorts()), names); err != nil {
				return err
			}
		}
	}
	m.lists = append(m.lists, own)
	return nil
}

func (m *merger) flagCredentials(flags *Flags) error {
	for _, h := range flags.Credentials {
		if !isHandle(h) {
			return cell.Errorf(cell.Invalid, "policy.Merge", "`pando credential ls` lists those that are kept", "%q is no name of a credential", h)
		}
		if slices.ContainsFunc(m.r.Credentials, func(c Credential) bool { return c.Handle == h }) {
			continue // the file says it, and where it may go
		}
		at := flags.origin("credential", h)
		c, err := m.lentBound(Credential{Handle: h}, false, at)
		if err != nil {
			return err
		}
		m.r.Credentials = append(slices.Clone(m.r.Credentials), c)
		m.origin("credential "+h, at)
	}
	return nil
}

// finish puts the lists together and numbers the rules.
func (m *merger) finish() {
	r := &m.r
	for i, li := range m.lists {
		if i == len(m.lists)-1 && li.layer != LayerHost {
			r.Network.Allow, r.Network.Ask = li.allow, li.ask
			for k, at := range li.words {
				m.keys[k] = at
			}
			break
		}
		r.Network.Bounds = append(r.Network.Bounds, Bound{Allow: li.allow, Ask: li.ask})
	}
	if len(r.Network.Allow)+len(r.Network.Ask) == 0 {
		r.Network.Bounds = nil // nothing is allowed that could be bounded
	}
	r.Network, r.Credentials = r.Network.canonical(), canonicalCredentials(r.Credentials)
	r.Accept = r.Accept.canonical()
	for _, list := range []struct {
		what  string
		rules []Rule
	}{{"allow", r.Network.Allow}, {"ask", r.Network.Ask}, {"deny", r.Network.Deny}} {
		for i, rule := range list.rules {
			m.origin(list.what+" "+itoa(i+1), m.keys[list.what+" "+rule.key()])
		}
	}
	for i, b := range r.Network.Bounds { // in the order of the layers
		li := m.lists[i]
		for j, rule := range b.Allow {
			r.Origins.Lines[BoundName(i, "allow", j)] = li.words["allow "+rule.key()]
		}
		for j, rule := range b.Ask {
			r.Origins.Lines[BoundName(i, "ask", j)] = li.words["ask "+rule.key()]
		}
		r.Origins.Lines[BoundName(i, "", -1)] = li.at
	}
	for _, li := range m.lists {
		if li.layer != LayerRun {
			r.Origins.Bound = li.at
		}
	}
	for _, n := range m.order {
		r.Environment.Set = append(r.Environment.Set, n)
		r.Env = append(r.Env, m.env[n])
	}
	for _, n := range limitNames() {
		switch {
		case m.asked[n] == "" || n == "budget.time":
		case strings.HasPrefix(n, "budget."): // it needs a gateway
			if !slices.Contains(r.Asked, "budget") {
				r.Asked = append(r.Asked, "budget")
			}
		default:
			r.Asked = append(r.Asked, n)
		}
	}
}

// BoundName is "bound 1 allow 2", or "bound 1".
func BoundName(bound int, list string, rule int) string {
	name := "bound " + itoa(bound+1)
	if rule >= 0 {
		name += " " + list + " " + itoa(rule+1)
	}
	return name
}
