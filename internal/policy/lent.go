package policy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// Credential says that a secret is lent to the cell, and where it may go.
type Credential struct {
	Handle string `json:"handle"`
	// For is where the gateway puts it in by itself: patterns such as
	// "https://api.github.com/repos/me/**". Empty: only where a rule of the
	// network names the handle.
	For []string `json:"for"`
}

// lentFor is one pattern of a credential.
type lentFor struct {
	handle string
	scheme string
	host   compiled
	port   uint16
	path   pathPattern // "" for all
}

// parseFor gives the one form of a pattern SCHEME://HOST[:PORT][/PATH].
func parseFor(s string) (canonical string, l lentFor, err error) {
	bad := func(why string) (string, lentFor, error) {
		return "", l, cell.Errorf(cell.Invalid, "policy.credential", "write it as https://api.github.com/repos/me/**", "%q says not where a credential may go: %s", s, why)
	}
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok || scheme != "https" && scheme != "http" && scheme != "ssh" {
		return bad("it does not begin with https://, http:// or ssh://")
	}
	l.scheme = scheme
	l.port = map[string]uint16{"https": 443, "http": 80, "ssh": 22}[scheme]
	authority, path := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	if strings.Contains(authority, "@") {
		return bad("a user in it has no meaning")
	}
	host, port, err := splitTarget(authority)
	if err != nil {
		return bad("it names no host")
	}
	if host, err = canonicalHost(host); err != nil || host == "*" || strings.Contains(host, "/") {
		return bad("it names no host")
	}
	if port != "" {
		sp, err := parseSpan(port)
		if err != nil || sp.from != sp.to {
			return bad("it names no port")
		}
		l.port = sp.from
	}
	if path == "/**" {
		path = ""
	}
	if path != "" {
		if path, err = parsePathPattern(path); err != nil {
			return bad("its path is no pattern")
		}
		l.path = newPathPattern(path)
	}
	c, err := compileRule("for", cell.Allow, Rule{Hosts: []string{host}})
	if err != nil {
		return bad("it names no host")
	}
	l.host = *c
	if a, err := netip.ParseAddr(host); err == nil {
		host = addrText(a)
	}
	canonical = scheme + "://" + host
	if l.port != map[string]uint16{"https": 443, "http": 80, "ssh": 22}[scheme] {
		canonical += ":" + strconv.Itoa(int(l.port))
	}
	return canonical + path, l, nil
}

// goesTo reports whether the credential may be put into something in a
// connection.
func (l lentFor) goesTo(q *question) bool {
	return l.scheme != "ssh" && l.port == q.Port && l.host.speaksOf(q.Host, q.Addr)
}

// goesInto reports whether it is put into a request.
func (l lentFor) goesInto(q *question) bool {
	scheme := q.Scheme
	if scheme == "" {
		scheme = "https"
	}
	return l.goesTo(q) && scheme == l.scheme && (l.path.text == "" || q.path != "" && l.path.match(q.path))
}

func compileLent(list []Credential) (out []lentFor, err error) {
	for _, c := range list {
		for _, f := range c.For {
			canonical, l, err := parseFor(f)
			if err != nil || canonical != f {
				return nil, cell.Errorf(cell.Corrupt, "policy.Compile", "", "cannot use credential %s: %q says not where it may go", c.Handle, f)
			}
			l.handle = c.Handle
			out = append(out, l)
		}
	}
	return out, nil
}

// canonicalCredentials has one entry for each handle.
func canonicalCredentials(list []Credential) []Credential {
	out := []Credential{}
	for _, c := range list {
		i := slices.IndexFunc(out, func(o Credential) bool { return o.Handle == c.Handle })
		if i < 0 {
			out = append(out, Credential{Handle: c.Handle})
			i = len(out) - 1
		}
		out[i].For = append(out[i].For, c.For...)
	}
	for i := range out {
		if out[i].For = unique(out[i].For); out[i].For == nil {
			out[i].For = []string{}
		}
	}
	slices.SortFunc(out, func(a, b Credential) int { return strings.Compare(a.Handle, b.Handle) })
	return out
}

// Handles lists the credentials that the policy lends: those of the section
// and those that rules name.
func (e Effective) Handles() []string {
	var out []string
	for _, c := range e.Credentials {
		out = append(out, c.Handle)
	}
	for _, r := range slices.Concat(e.Network.Allow, e.Network.Ask) {
		if r.Credential != "" {
			out = append(out, r.Credential)
		}
	}
	return unique(out)
}

// Lend says where a credential of the policy may go, as far as the policy
// itself did not: whoever keeps the credential knows. It is part of the policy
// from then on, and of its digest.
func (r *Result) Lend(handle string, patterns []string) error {
	i := slices.IndexFunc(r.Credentials, func(c Credential) bool { return c.Handle == handle })
	if i < 0 || len(r.Credentials[i].For) > 0 {
		return nil // only rules name it, or the policy is narrower
	}
	var list []string
	for _, p := range patterns {
		canonical, _, err := parseFor(p)
		if err != nil {
			return err
		}
		list = append(list, canonical)
	}
	r.Credentials = slices.Clone(r.Credentials)
	r.Credentials[i].For = unique(list)
	return nil
}

func isHandle(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == "" && s[0] != '-' && s[0] != '.'
}
