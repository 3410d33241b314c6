package gateway

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// lent is a credential as the gateway uses it, for some of the places where it
// may go. Its value is in requests that go out, and in nothing that is told or
// sent back.
type lent struct {
	cell.Lent
	header string // where it is put when the cell has sent none
	put    string // what is put there
	places []cell.Place
	hidden []hidden
}

// hidden is a text that gives the value away, and what the cell sees instead. It
// is as long, for bodies.
type hidden struct{ text, stand []byte }

func newLent(list []cell.Lent) ([]*lent, error) {
	out := make([]*lent, 0, len(list))
	for _, c := range list {
		if c.Handle == "" || c.Secret == "" || len(c.Placeholder) < 8 || strings.Contains(c.Secret, c.Placeholder) {
			return nil, fmt.Errorf("the credential %q is incomplete", c.Handle)
		}
		if strings.ContainsAny(c.Secret, "\r\n\x00") {
			return nil, fmt.Errorf("the credential %q has lines, and no header can carry it", c.Handle)
		}
		s := &lent{Lent: c}
		if c.As != "" {
			if !strings.Contains(c.As, ":") || !strings.Contains(c.As, "{secret}") && !strings.Contains(c.As, "{basic:") {
				return nil, fmt.Errorf("the credential %q is put in as %q: that is no header with {secret}", c.Handle, c.As)
			}
			s.header, s.put = c.Header()
			s.header = http.CanonicalHeaderKey(s.header)
		}
		for _, f := range c.For {
			p, err := cell.ParsePlace(f)
			if err != nil {
				return nil, fmt.Errorf("the credential %q: %w", c.Handle, err)
			}
			s.places = append(s.places, p)
		}
		s.hide(c.Secret)
		s.hide(url.QueryEscape(c.Secret))
		if j, err := json.Marshal(c.Secret); err == nil {
			s.hide(string(j[1 : len(j)-1]))
		}
		if _, enc, ok := strings.Cut(s.put, " "); ok && !strings.Contains(s.put, c.Secret) {
			s.hide(enc) // what Basic makes of it
		}
		out = append(out, s)
	}
	return out, nil
}

// hide adds a text that gives the value away.
func (s *lent) hide(text string) {
	for _, h := range s.hidden {
		if string(h.text) == text {
			return
		}
	}
	stand := bytes.Repeat([]byte("*"), len(text))
	copy(stand, s.Placeholder)
	s.hidden = append(s.hidden, hidden{[]byte(text), stand})
}

// lentAs finds the credential with a handle in the form in which it may go into
// a request. There may be several: a token goes to one place as a bearer's, and
// to another as a password. lent is false when there is none of that handle.
func (l *law) lentAs(handle string, a cell.Access, host string) (s *lent, lent bool) {
	for _, s := range l.lent {
		if s.Handle == handle {
			if s.goes(a, host) {
				return s, true
			}
			lent = true
		}
	}
	return nil, lent
}

// goes reports whether the credential may go into a request. A path that can be
// read in more than one way is at no place that says something about paths.
func (s *lent) goes(a cell.Access, host string) bool {
	for _, p := range s.places {
		if p.Path != "/**" && ambiguous(a.Path) {
			continue
		}
		if p.Holds(a.Method, a.Scheme, strings.Trim(host, "[]"), a.Port, a.Path) {
			return true
		}
	}
	return false
}

// known are the credentials that some request to a host may carry: it may have
// kept their values, and tell them when it is asked without.
func (l *law) known(scheme, host string, port uint16) (list []*lent) {
	for _, s := range l.lent {
		if slices.ContainsFunc(s.places, func(p cell.Place) bool { return p.Scheme == scheme && p.Port == port && p.HoldsHost(host) }) {
			list = append(list, s)
		}
	}
	return list
}

// mayHold reports whether a header is one for credentials: there a placeholder
// is replaced. In others a host might take the value for something that it keeps
// and shows to others.
func (s *lent) mayHold(name string) bool {
	switch name {
	case s.header, "Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Private-Token", "Job-Token", "X-Auth-Token":
		return true
	}
	return false
}

// astray is the header with the placeholder in it that is none for credentials,
// "" when there is none.
func (s *lent) astray(h http.Header) string {
	for name, values := range h {
		if !s.mayHold(name) && slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, s.Placeholder) }) {
			return name
		}
	}
	return ""
}

// carries reports whether a request has the placeholder somewhere in its line
// or headers, also as the password of a Basic authorization.
func (s *lent) carries(r *http.Request) bool {
	p := s.Placeholder
	if strings.Contains(r.URL.RequestURI(), p) || strings.Contains(r.URL.Path, p) || strings.Contains(unescape(r.URL.RawQuery), p) {
		return true
	}
	for _, values := range r.Header {
		for _, v := range values {
			if strings.Contains(v, p) {
				return true
			}
			if _, dec, ok := basic(v); ok && strings.Contains(dec, p) {
				return true
			}
		}
	}
	return false
}

// basic takes a header "Basic …" apart.
func basic(v string) (scheme, decoded string, ok bool) {
	scheme, enc, ok := strings.Cut(v, " ")
	if !ok || !strings.EqualFold(scheme, "basic") {
		return "", "", false
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(enc))
	return scheme, string(b), err == nil
}

// putIn puts the value into a request's headers: in place of the placeholder,
// or as it is meant to be put in where the cell has sent nothing. It returns the
// credential as it has to be looked for in the response.
func (s *lent) putIn(h http.Header) *lent {
	put := false
	as := *s
	as.hidden = slices.Clone(s.hidden)
	for name, values := range h {
		if !s.mayHold(name) {
			continue
		}
		for i, v := range values {
			if strings.Contains(v, s.Placeholder) {
				values[i] = strings.ReplaceAll(v, s.Placeholder, s.Secret)
				put = true
			} else if scheme, dec, ok := basic(v); ok && strings.Contains(dec, s.Placeholder) {
				enc := base64.StdEncoding.EncodeToString([]byte(strings.ReplaceAll(dec, s.Placeholder, s.Secret)))
				as.hide(enc)
				values[i] = scheme + " " + enc
				put = true
			}
		}
	}
	if !put && s.header != "" && len(h.Values(s.header)) == 0 {
		h.Set(s.header, s.put)
	}
	return &as
}

// redact takes the value out of headers that go back to the cell.
func (s *lent) redact(h http.Header) {
	for name, values := range h {
		for _, x := range s.hidden {
			text := string(x.text)
			for i, v := range values {
				if strings.Contains(v, text) {
					values[i] = strings.ReplaceAll(v, text, s.Placeholder)
				}
			}
			if strings.Contains(strings.ToLower(name), strings.ToLower(text)) {
				delete(h, name)
			}
		}
	}
}

// redactor takes values out of a body as it passes. What it puts in their place
// is as long, so that lengths and ranges stay right.
type redactor struct {
	from  io.Reader
	hide  []hidden
	buf   []byte // read and not given
	ready int    // of it, so much can be given
	err   error
}

func newRedactor(from io.Reader, list []*lent) *redactor {
	r := &redactor{from: from}
	for _, s := range list {
		r.hide = append(r.hide, s.hidden...)
	}
	return r
}

func (r *redactor) Read(p []byte) (int, error) {
	for r.ready == 0 {
		if r.err != nil {
			if len(r.buf) == 0 {
				return 0, r.err
			}
			r.ready = len(r.buf)
			break
		}
		start := len(r.buf)
		r.buf = append(r.buf, make([]byte, max(4096, min(len(p), pieceSize)))...)
		n, err := r.from.Read(r.buf[start:])
		r.buf, r.err = r.buf[:start+n], err
		keep := 0
		for _, h := range r.hide {
			for rest := r.buf; ; {
				i := bytes.Index(rest, h.text)
				if i < 0 {
					break
				}
				copy(rest[i:], h.stand)
				rest = rest[i+len(h.text):]
			}
		}
		for _, h := range r.hide {
			keep = max(keep, overlap(r.buf, h.text))
		}
		r.ready = len(r.buf) - keep
	}
	n := copy(p, r.buf[:r.ready])
	r.buf = r.buf[n:]
	r.ready -= n
	return n, nil
}

// overlap is how many bytes at the end of b may be the beginning of s.
func overlap(b, s []byte) int {
	for n := min(len(b), len(s)-1); n > 0; n-- {
		if bytes.HasPrefix(s, b[len(b)-n:]) {
			return n
		}
	}
	return 0
}
