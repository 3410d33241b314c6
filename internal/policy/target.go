package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"golang.org/x/net/idna"

	"github.com/pando-dev/pando/internal/cell"
)

// A target is the destination of a rule, as users write it: HOST[:PORT], *.HOST[:PORT], an
// address or prefix with [:PORT], or @PRESET.
type target struct {
	hosts []string
	ports []string // nil: none were given; "1-65535" after HOST:*
	paths []string // of a preset: what it allows of the hosts; nil: all. Where it is denied, all is
	more  []Rule   // of a preset: what else it allows, a few requests to a host
}

// presets are lists of hosts that belong together: the hosts that the tool needs, without
// hosts for tracking or for public uploads where these can be kept apart.
func presets() map[string]target {
	https := func(hosts ...string) target { return target{hosts: hosts, ports: []string{"443"}} }
	return map[string]target{
		// Claude Code, before a person's first session, asks both hosts whether they are there.
		"@anthropic": {hosts: []string{"api.anthropic.com"}, ports: []string{"443"}, more: []Rule{
			{Hosts: []string{"platform.claude.com"}, Ports: []string{"443"}, Methods: []string{"GET"}, Paths: []string{"/v1/oauth/hello"}},
		}},
		// What claude setup-token asks: for a token in exchange for a code.
		"@anthropic-login": {hosts: []string{"platform.claude.com"}, ports: []string{"443"}, paths: []string{"/v1/oauth/hello", "/v1/oauth/token"}},
		// What Codex asks with a login of ChatGPT; the account's conversations and tasks are elsewhere.
		"@chatgpt": {hosts: []string{"chatgpt.com"}, ports: []string{"443"}, paths: []string{"/backend-api/codex/**"}, more: []Rule{
			{Hosts: []string{"chatgpt.com"}, Ports: []string{"443"}, Methods: []string{"GET"}, Paths: []string{"/backend-api/wham/accounts/check", "/backend-api/wham/rate-limit-reset-credits", "/backend-api/wham/settings/user", "/backend-api/wham/usage"}},
			codexNews(),
		}},
		"@crates": https("crates.io", "index.crates.io", "static.crates.io"),
		"@debian": {hosts: []string{"deb.debian.org", "security.debian.org"}, ports: []string{"80", "443"}},
		"@gemini": https("generativelanguage.googleapis.com"),
		// What Gemini CLI asks with a Google account.
		"@gemini-code-assist": {hosts: []string{codeAssist}, ports: []string{"443"}, paths: codeAssistMethods("countTokens", "fetchAdminControls", "generateContent",
			"listExperiments", "loadCodeAssist", "onboardUser", "recordCodeAssistMetrics", "retrieveUserQuota", "streamGenerateContent"), more: []Rule{
			{Hosts: []string{codeAssist}, Ports: []string{"443"}, Methods: []string{"GET"}, Paths: append(codeAssistMethods("getCodeAssistGlobalUserSetting"), "/v1internal/operations/*")},
			{Hosts: []string{"www.googleapis.com"}, Ports: []string{"443"}, Methods: []string{"GET"}, Paths: []string{"/oauth2/v2/userinfo"}},
		}},
		"@github": https("api.github.com", "codeload.github.com", "github.com", "objects.githubusercontent.com",
			"raw.githubusercontent.com", "release-assets.githubusercontent.com"),
		"@go":     https("proxy.golang.org", "sum.golang.org"),
		"@npm":    https("registry.npmjs.org"),
		"@openai": {hosts: []string{"api.openai.com"}, ports: []string{"443"}, more: []Rule{codexNews()}},
		"@pypi":   https("files.pythonhosted.org", "pypi.org"),
	}
}

// codeAssist is the host of Google's that Gemini CLI asks with an account.
const codeAssist = "cloudcode-pa.googleapis.com"

func codeAssistMethods(names ...string) (paths []string) {
	for _, n := range names {
		paths = append(paths, "/v1internal:"+n)
	}
	return paths
}

// codexNews allows the line of news that Codex reads at its start, for which there is no switch.
func codexNews() Rule {
	return Rule{Hosts: []string{"raw.githubusercontent.com"}, Ports: []string{"443"}, Methods: []string{"GET"}, Paths: []string{"/openai/codex/main/announcement_tip.toml"}}
}

// Presets lists the presets' names.
func Presets() []string {
	var out []string
	for name := range presets() {
		out = append(out, name)
	}
	sort.Strings(out)
	return out
}

const targetHint = "write HOST, HOST:PORT, *.HOST, an address, a prefix such as 10.1.0.0/16, or a preset such as @npm"

// BadTarget is the error of what is no target.
func BadTarget(s, why string) error {
	return cell.Errorf(cell.Invalid, "policy.target", targetHint, "%q is no host: %s", s, why)
}

// parseTarget reads one target.
func parseTarget(s string) (target, error) {
	if strings.HasPrefix(s, "@") {
		p, ok := presets()[s]
		if !ok {
			return target{}, cell.Errorf(cell.Invalid, "policy.target", "the presets are "+strings.Join(Presets(), ", "), "there is no preset %q%s", s, didYouMean(s, Presets()))
		}
		return p, nil
	}
	host, port, err := SplitTarget(s)
	if err != nil {
		return target{}, err
	}
	if _, ok := presets()["@"+host]; ok && port == "" {
		return target{}, cell.Errorf(cell.Invalid, "policy.target", fmt.Sprintf("write @%s for the preset, or %s:443 for a host of that name", host, host), "%q is the name of a preset without its @", s)
	}
	t := target{}
	if host, err = CanonicalHost(host); err != nil {
		return target{}, err
	}
	t.hosts = []string{host}
	switch {
	case port == "*":
		t.ports = []string{"1-65535"}
	case port != "":
		p, err := ParseSpan(port)
		if err != nil {
			return target{}, err
		}
		t.ports = []string{p.String()}
	}
	return t, nil
}

// SplitTarget takes the port off. Addresses of version 6 with a port are in
// brackets.
func SplitTarget(s string) (host, port string, err error) {
	switch {
	case s == "":
		return "", "", BadTarget(s, "it is empty")
	case strings.Contains(s, "://"):
		return "", "", BadTarget(s, "it is a URL; a policy file has methods and paths")
	case strings.HasPrefix(s, "["):
		host, rest, ok := strings.Cut(s[1:], "]")
		if !ok {
			return "", "", BadTarget(s, "a bracket is open")
		}
		if rest == "" {
			return host, "", nil
		}
		if !strings.HasPrefix(rest, ":") || rest == ":" {
			return "", "", BadTarget(s, "after the bracket comes :PORT")
		}
		return host, rest[1:], nil
	case strings.Count(s, ":") > 1:
		return s, "", nil // an address of version 6
	}
	host, port, ok := strings.Cut(s, ":")
	if ok && port == "" {
		return "", "", BadTarget(s, "the port is missing")
	}
	return host, port, nil
}

// CanonicalHost gives the one form of a name, pattern, address or prefix.
func CanonicalHost(s string) (string, error) {
	if s == "*" {
		return s, nil
	}
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			if i := strings.IndexByte(s, '/'); i > 0 && !endsInNumber(s[:i]) && !strings.Contains(s, ":") {
				return "", BadTarget(s, "it has a path; a policy file has paths")
			}
			return "", BadTarget(s, "it is no prefix")
		}
		p, ok := plainPrefix(p)
		if !ok || p != p.Masked() {
			return "", BadTarget(s, "bits are set behind the prefix")
		}
		if p.IsSingleIP() {
			return p.Addr().String(), nil
		}
		return p.String(), nil
	}
	if strings.Contains(s, ":") || endsInNumber(s) {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return "", BadTarget(s, "it is no address")
		}
		return PlainAddr(a).String(), nil
	}
	rest, wild := strings.CutPrefix(s, "*.")
	if strings.Contains(rest, "*") {
		return "", BadTarget(s, "a * stands for all labels at the front, as in *.example.com")
	}
	name, err := canonicalName(rest)
	if err != nil {
		return "", err
	}
	if wild {
		name = "*." + name
	}
	return name, nil
}

// canonicalName gives the one form of a name: ASCII, lower case, without a
// final dot.
func canonicalName(s string) (string, error) {
	name := strings.TrimSuffix(s, ".")
	for i := 0; i < len(name); i++ {
		if name[i] >= 0x80 {
			a, err := idna.Lookup.ToASCII(name)
			if err != nil {
				return "", BadTarget(s, "it can't be written in ASCII")
			}
			name = a
			break
		}
	}
	name = strings.ToLower(name)
	if !IsName(name) {
		return "", BadTarget(s, "it is no name of a host")
	}
	return name, nil
}

// IsName reports whether s is the canonical form of a name: labels of letters, digits,
// hyphens and underscores, none empty or longer than 63, and the last one no number,
// because some programs would read it as an address.
func IsName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	label := 0
	for i := 0; i <= len(s); i++ {
		if i == len(s) || s[i] == '.' {
			if label == 0 || label > 63 || s[i-1] == '-' {
				return false
			}
			label = 0
			continue
		}
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '-' && label > 0) {
			return false
		}
		label++
	}
	return !endsInNumber(s)
}

// endsInNumber reports whether the last label is decimal or hexadecimal: many
// programs take such a name for an address.
func endsInNumber(s string) bool {
	last := s[strings.LastIndexByte(s, '.')+1:]
	if last == "" {
		return false
	}
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

// allowRules makes the rules that a target stands for. Without ports they are
// the web's.
func (t target) rule(defaultPorts []string) Rule {
	ports := t.ports
	if ports == nil {
		ports = defaultPorts
	}
	return Rule{Hosts: slices.Clone(t.hosts), Ports: slices.Clone(ports), Paths: slices.Clone(t.paths)}
}

// checkHostPorts refuses the user's machine without a port: it is never more of it
// than was asked for. ports are those that were given.
func checkHostPorts(s string, hosts, ports []string) error {
	if !slices.Contains(hosts, cell.HostName) {
		return nil
	}
	spans, err := ParseSpans(ports)
	if err == nil && len(spans) > 0 && !slices.Contains(spans, Span{1, 65535}) {
		return nil
	}
	return cell.Errorf(cell.Invalid, "policy.target", "name the port of what listens on your machine: "+cell.HostName+":9101", "%q is all of your own machine", s)
}

// checkReachable refuses a target that means nothing in a cell: its own loopback,
// unless names lead there.
func checkReachable(s string, r Rule, names bool) error {
	for _, h := range r.Hosts {
		n, isRange := ParseRange(h)
		own := !isRange && (h == "localhost" || strings.HasSuffix(h, ".localhost")) || isRange && n.Addr().IsLoopback() && !names
		if own {
			port := "PORT"
			if len(r.Ports) == 1 {
				port = r.Ports[0]
			}
			return cell.Errorf(cell.Invalid, "policy.Merge", "for what listens on your own machine: --allow "+cell.HostName+":"+port+", and "+cell.HostName+":"+port+" as its address in the cell",
				"cannot allow %s: in a cell that is the cell's own loopback, which needs no rule", s)
		}
	}
	return nil
}

// webPorts are what a host without a port means in allow and ask. In deny it
// means all ports.
func webPorts() []string { return []string{"80", "443"} }
