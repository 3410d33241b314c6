package decide

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

// ParseRequest reads an access in the words of people: "POST https://…", a
// URL, "connect HOST:PORT", "resolve HOST", "sign HOST", "execute PROGRAM".
func ParseRequest(s string) (cell.Access, error) {
	bad := func(why string) (cell.Access, error) {
		return cell.Access{}, cell.Errorf(cell.Invalid, "decide.ParseRequest",
			"write 'POST https://api.github.com/repos', 'connect HOST:PORT', 'resolve HOST' or 'execute PROGRAM'", "cannot read the request %s: %s", policy.Quoted(s), why)
	}
	verb, rest, two := strings.Cut(strings.TrimSpace(s), " ")
	rest = strings.TrimSpace(rest)
	if !two {
		switch {
		case strings.Contains(verb, "://"):
			verb, rest = "GET", verb
		case strings.HasPrefix(verb, "/"):
			verb, rest = "execute", verb
		default:
			return bad("it has one word")
		}
	}
	switch verb {
	case "execute":
		return cell.Access{Act: cell.Execute, Program: rest}, nil
	case "resolve", "connect", "sign":
		host, port, err := policy.SplitTarget(rest)
		if err != nil {
			return bad(err.Error())
		}
		a := cell.Access{Act: cell.Act(verb)}
		if err := setHost(&a, host); err != nil {
			return bad(err.Error())
		}
		if verb == "resolve" {
			if port != "" || a.Addr.IsValid() {
				return bad("a name is looked up, and nothing else")
			}
			return a, nil
		}
		if port == "" && verb == "connect" {
			port = "443"
		}
		if port != "" {
			n, err := policy.ParseSpan(port)
			if err != nil || n.From != n.To {
				return bad("it names no port")
			}
			a.Port = n.From
		}
		if verb == "connect" {
			a.Transport = "tcp"
		}
		return a, nil
	}
	if !policy.IsMethod(strings.ToUpper(verb)) {
		return bad(policy.Quoted(verb) + " is no method")
	}
	u, err := url.Parse(rest)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return bad("it needs a URL with https:// or http://")
	}
	a := cell.Access{Act: cell.Request, Scheme: u.Scheme, Method: strings.ToUpper(verb), Path: u.EscapedPath(), Transport: "tcp", Port: 443}
	if u.Scheme == "http" {
		a.Port = 80
	}
	if a.Path == "" {
		a.Path = "/"
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return bad("it names no port")
		}
		a.Port = uint16(n)
	}
	if err := setHost(&a, u.Hostname()); err != nil {
		return bad(err.Error())
	}
	return a, nil
}

func setHost(a *cell.Access, host string) error {
	c, err := policy.CanonicalHost(host)
	if err != nil {
		return err
	}
	if addr, err := netip.ParseAddr(c); err == nil {
		a.Addr = addr
		return nil
	}
	if !policy.IsName(c) {
		return policy.BadTarget(host, "one host is meant")
	}
	a.Host = c
	return nil
}
