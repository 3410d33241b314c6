package gateway

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/secret"
)

// A lent credential pins its hosts: a request to them carries this credential or none. Any other
// authentication would be for another account, and a way out of the cell. `pin: false` in the
// policy allows it.
//
// The check covers everything before and after the body of a request: line, headers (of HTTP/1
// and HTTP/2, so the metadata of gRPC), cookies, WebSocket sub-protocols, trailers. It does not
// cover bodies.

// pinner is a Decider that knows which credentials pin their hosts. Without it, all lent ones
// do.
type pinner interface {
	Pins(handle string) bool
	PinnedTo(host string) string
}

// pinnedTo returns the handle of a credential that pins a host, "" for none. It ignores ports
// and schemes, which share the host's accounts.
func (l *compiledPolicy) pinnedTo(host string) string {
	p, _ := l.decider.(pinner)
	for _, s := range l.lent {
		if (p == nil || p.Pins(s.Handle)) && s.isFor(host) {
			return s.Handle
		}
	}
	if p != nil {
		return p.PinnedTo(host)
	}
	return ""
}

// looksInto reports whether connections to a host must be opened because of a credential: the
// host may know its value, or is pinned.
func (l *compiledPolicy) looksInto(host string) bool {
	return l.pinnedTo(host) != "" || len(l.known(host)) > 0
}

// denyPinned denies a request with other authentication than the credential that pins its host.
func denyPinned(handle, host, what string) cell.Decision {
	d := never("pin", what+" is other authentication than that of the credential "+handle+", which "+host+" is pinned to; "+strconv.Quote("pin: false")+" at the credential in a policy file would allow it")
	d.Line = "credentials: [{name: " + handle + ", pin: false}]"
	return d
}

// foreign returns the part of a request with authentication other than own, "" for none. own is
// nil where no authentication is allowed.
func foreign(r *http.Request, own *lent) string {
	if r.URL.User != nil {
		return "the user in the URL"
	}
	if secret.InRequest(own.without(r.URL.Path)) || secret.InRequest(own.without(r.URL.EscapedPath())) {
		return "a token in the path"
	}
	if what := foreignQuery(r.URL.RawQuery, own); what != "" {
		return what
	}
	if what := foreignHeaders(r.Header, own); what != "" {
		return what
	}
	for name := range r.Trailer { // announced; their values come after the body
		if authName(name) {
			return "the trailer " + printable(name)
		}
	}
	return ""
}

// trailers checks the trailers of a request to a pinned host. They come last, when the request
// was already allowed; the denial is an event of its own.
func (x *exchange) trailers(h http.Header) (d cell.Decision, no bool) {
	if x.pinned == "" {
		return d, false
	}
	what := foreignHeaders(h, nil)
	if what == "" {
		return d, false
	}
	d = denyPinned(x.pinned, x.c.host(), what+", in the trailers,")
	x.c.g.tell(x.l, x.access, d, x.c.id)
	return d, true
}

func foreignHeaders(h http.Header, own *lent) string {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names) // so that equal requests are denied for the same reason
	for _, name := range names {
		for _, v := range h[name] {
			if what := foreignHeader(name, strings.TrimSpace(v), own); what != "" {
				return what
			}
		}
	}
	return ""
}

func foreignHeader(name, v string, own *lent) string {
	switch {
	case v == "":
		return ""
	case name == "Cookie":
		return foreignCookies(v)
	case name == "Sec-Websocket-Protocol":
		return foreignProtocols(v)
	case name == "X-Original-Url" || name == "X-Rewrite-Url":
		if _, q, ok := strings.Cut(v, "?"); ok {
			return foreignQuery(q, own)
		}
	case authName(name):
		if own != nil && own.mayHold(name) && own.isPlaceholder(v) || isLabel(name, v) {
			return ""
		}
		return "the header " + printable(name)
	}
	if secret.InRequest(own.without(v)) {
		return "a token in the header " + printable(name)
	}
	if !mayBeRandom(name) && !isLabel(name, v) && looksRandom(own.without(v)) {
		return "a possible key in the header " + printable(name)
	}
	return ""
}

func foreignCookies(v string) string {
	for c := range strings.SplitSeq(v, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(c), "=")
		if name != "" && !edgeCookies[name] {
			return "the cookie " + printable(name)
		}
		// Some servers begin another cookie at white space or at a comma.
		if strings.ContainsAny(strings.TrimSpace(value), " \t,\"\\") {
			return "the text beside the cookie " + printable(name)
		}
	}
	return ""
}

// foreignProtocols checks WebSocket sub-protocols: browsers, which can set no header, send
// tokens there.
func foreignProtocols(v string) string {
	for p := range strings.SplitSeq(v, ",") {
		if p = strings.TrimSpace(p); authName(p) || secret.InRequest(p) || looksRandom(p) || len(p) > 64 {
			return "a WebSocket sub-protocol"
		}
	}
	return ""
}

// foreignQuery checks a query, parsed as by servers that split at & or at ;.
func foreignQuery(raw string, own *lent) string {
	for part := range strings.FieldsFuncSeq(raw, func(r rune) bool { return r == '&' || r == ';' }) {
		name, v, _ := strings.Cut(part, "=")
		name, v = unescape(name), unescape(v)
		if authName(name) && v != "" && (own == nil || v != own.Placeholder) && !isLabel(name, v) {
			return "the parameter " + printable(name)
		}
		if secret.InRequest(own.without(v)) || secret.InRequest(own.without(name)) {
			return "a token in the query"
		}
	}
	return ""
}

// without returns a text without the placeholder, which has the shape of a token.
func (s *lent) without(text string) string {
	if s == nil {
		return text
	}
	return strings.ReplaceAll(text, s.Placeholder, "")
}

// isPlaceholder reports whether the value of a header is the placeholder and no other key:
// alone, after the word of a scheme, or as the password (or the user) of a Basic authorization.
func (s *lent) isPlaceholder(v string) bool {
	if _, dec, ok := basic(v); ok {
		user, password, _ := strings.Cut(dec, ":")
		switch {
		case password == s.Placeholder:
			return passwordUsers[user] || user == s.user || !authName(user) && !secret.InRequest(user) && !looksRandom(user)
		case user == s.Placeholder:
			return passwordUsers[password] || password == "x"
		}
		return false
	}
	fields := strings.Fields(v)
	switch len(fields) {
	case 1:
		return fields[0] == s.Placeholder
	case 2:
		if !authSchemes[strings.ToLower(fields[0])] && !strings.EqualFold(fields[0], s.scheme) {
			return false
		}
		name, value, ok := strings.Cut(fields[1], "=")
		if ok && (strings.EqualFold(name, "token") || strings.EqualFold(name, "auth")) {
			return strings.Trim(value, `"`) == s.Placeholder
		}
		return fields[1] == s.Placeholder
	}
	return false
}

// takeFromQuery removes parameters with the placeholder as their value. The credential is put
// into a header, since URLs are logged.
func (s *lent) takeFromQuery(u *url.URL) {
	if !strings.Contains(unescape(u.RawQuery), s.Placeholder) {
		return
	}
	parts := slices.DeleteFunc(strings.Split(u.RawQuery, "&"), func(part string) bool {
		_, v, _ := strings.Cut(part, "=")
		return unescape(v) == s.Placeholder
	})
	u.RawQuery = strings.Join(parts, "&")
}
