package cell

import (
	"encoding/base64"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Place is a set of requests that a credential may go into: some methods, one host or the
// hosts below a domain, one port, some paths. It is written as a URL, with methods before
// it if they matter:
//
//	https://api.github.com/repos/me/**
//	GET,HEAD https://*.example.com:8443/v1/*
//	api.github.com
//
// A host alone means https and every path. In a path, * matches any text between two
// slashes; ** as a whole segment matches any number of segments, also none.
type Place struct {
	Methods []string // upper case; none: all
	Scheme  string   // "https", "http"
	Host    string   // lower case; "*.example.com" for the names below it
	Port    uint16
	Path    string // with a leading slash
}

// ParsePlace reads a place. It rejects everything inexact, because a mistake here sends a
// secret to the wrong host.
func ParsePlace(s string) (Place, error) {
	p := Place{Path: "/**"}
	rest := strings.TrimSpace(s)
	if methods, after, ok := strings.Cut(rest, " "); ok {
		for _, m := range strings.Split(methods, ",") {
			if m == "" || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
				return p, badPlace(s, "%q is no method: write them in capitals, with commas between", m)
			}
			p.Methods = append(p.Methods, m)
		}
		rest = strings.TrimSpace(after)
	}
	if !strings.Contains(rest, "://") {
		rest = "https://" + rest
	}
	u, err := url.Parse(rest)
	if err != nil {
		return p, badPlace(s, "it is no URL")
	}
	switch u.Scheme {
	case "https":
		p.Port = 443
	case "http":
		p.Port = 80
	default:
		return p, badPlace(s, "the scheme is https (or http, where the secret may travel in the clear)")
	}
	p.Scheme = u.Scheme
	if u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return p, badPlace(s, "it has more than scheme, host, port and path")
	}
	if p.Host = strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")); !hostShaped(p.Host) {
		return p, badPlace(s, "%q is no host: give one, or *.DOMAIN for those below it", u.Hostname())
	}
	if n := u.Port(); n != "" {
		port, err := strconv.ParseUint(n, 10, 16)
		if err != nil || port == 0 {
			return p, badPlace(s, "%q is no port", n)
		}
		p.Port = uint16(port)
	}
	if strings.Contains(rest, "%") {
		return p, badPlace(s, "write the path without %% in it")
	}
	if u.Path != "" && u.Path != "/" {
		p.Path = u.Path
	} else if u.Path == "/" {
		p.Path = "/**"
	}
	for _, part := range strings.Split(p.Path, "/")[1:] {
		if part == "." || part == ".." || part != "**" && strings.Contains(part, "**") {
			return p, badPlace(s, "%q can't be a part of the path: ** stands alone, and there is no . or ..", part)
		}
	}
	return p, nil
}

func badPlace(s, why string, args ...any) error {
	return Errorf(Invalid, "cell.ParsePlace", "write it like https://api.github.com/repos/me/**", "%q is no place for a credential: "+why, append([]any{Clip(s)}, args...)...)
}

// hostShaped accepts names of at least two labels (or localhost), addresses,
// and *. before a name of at least two labels.
func hostShaped(h string) bool {
	if _, err := netip.ParseAddr(h); err == nil {
		return true
	}
	name, wild := strings.CutPrefix(h, "*.")
	labels := strings.Split(name, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' || strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return len(h) <= 253 && (len(labels) > 1 || !wild)
}

// Holds reports whether a request is at this place. The host must be lower case and without
// a final dot, the path canonical and without a query.
func (p Place) Holds(method, scheme, host string, port uint16, path string) bool {
	if len(p.Methods) > 0 && !slices.Contains(p.Methods, method) {
		return false
	}
	return scheme == p.Scheme && port == p.Port && p.HoldsHost(host) && holdsPath(split(p.Path), split(path))
}

// HoldsHost reports whether the place has this host.
func (p Place) HoldsHost(host string) bool {
	if below, ok := strings.CutPrefix(p.Host, "*"); ok {
		return strings.HasSuffix(host, below) && len(host) > len(below)
	}
	return host == p.Host
}

// String writes the place in the syntax of ParsePlace.
func (p Place) String() string {
	s := p.Scheme + "://" + p.Host
	if strings.Contains(p.Host, ":") {
		s = p.Scheme + "://[" + p.Host + "]"
	}
	if p.Scheme == "https" && p.Port != 443 || p.Scheme == "http" && p.Port != 80 {
		s += ":" + strconv.Itoa(int(p.Port))
	}
	if len(p.Methods) > 0 {
		s = strings.Join(p.Methods, ",") + " " + s
	}
	return s + p.Path
}

func split(path string) []string { return strings.Split(strings.TrimPrefix(path, "/"), "/") }

// holdsPath matches segment by segment; ** matches any number of them.
func holdsPath(pattern, path []string) bool {
	return matches(pattern, path, "**", holdsPart)
}

// holdsPart matches one segment; * matches any part of it.
func holdsPart(pattern, part string) bool {
	return matches([]byte(pattern), []byte(part), '*', func(a, b byte) bool { return a == b })
}

// matches matches a list with a pattern in which wild matches any number of elements. After
// wild it remembers one position for backtracking: the latest suffices.
func matches[T comparable](pattern, list []T, wild T, same func(pattern, element T) bool) bool {
	i, j, back, from := 0, 0, -1, 0
	for j < len(list) {
		switch {
		case i < len(pattern) && pattern[i] == wild:
			back, from = i, j
			i++
		case i < len(pattern) && same(pattern[i], list[j]):
			i++
			j++
		case back >= 0:
			from++
			i, j = back+1, from
		default:
			return false
		}
	}
	for i < len(pattern) && pattern[i] == wild {
		i++
	}
	return i == len(pattern)
}

// Fits reports whether this credential may go into a request.
func (l Lent) Fits(method, scheme, host string, port uint16, path string) bool {
	for _, f := range l.For {
		if p, err := ParsePlace(f); err == nil && p.Holds(method, scheme, host, port, path) {
			return true
		}
	}
	return false
}

// Header returns the header that As makes of the secret. In As, {secret} is the value, and
// {basic:USER} the encoding of USER and the value for HTTP's basic authentication.
func (l Lent) Header() (name, value string) {
	name, value, _ = strings.Cut(l.As, ":")
	return strings.TrimSpace(name), fill(strings.TrimSpace(value), l.Secret)
}

func fill(template, secret string) string {
	if before, after, ok := strings.Cut(template, "{basic:"); ok {
		if user, after, ok := strings.Cut(after, "}"); ok {
			return before + base64.StdEncoding.EncodeToString([]byte(user+":"+secret)) + after
		}
	}
	out := strings.ReplaceAll(template, "{secret}", secret)
	if scheme, rest, ok := strings.Cut(out, " "); ok && strings.EqualFold(scheme, "basic") && strings.Contains(rest, ":") {
		return scheme + " " + base64.StdEncoding.EncodeToString([]byte(rest)) // USER:{secret} was meant
	}
	return out
}
