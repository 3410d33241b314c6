package gateway

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// lent is a credential as the gateway uses it. Its value is in requests that go
// out, and in nothing that is told or sent back.
type lent struct {
	cell.Lent
	header string // where it is put when the cell has sent none
	places []cell.Place
	stand  []byte // as long as the value, for bodies
}

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
			name, _ := c.Header()
			if name == "" || !strings.Contains(c.As, "{secret}") && !strings.Contains(c.As, "{basic:") {
				return nil, fmt.Errorf("the credential %q is put in as %q: that is no header with {secret}", c.Handle, c.As)
			}
			s.header = http.CanonicalHeaderKey(name)
		}
		for _, f := range c.For {
			p, err := cell.ParsePlace(f)
			if err != nil {
				return nil, fmt.Errorf("the credential %q can't be put in: %w", c.Handle, err)
			}
			s.places = append(s.places, p)
		}
		s.stand = bytes.Repeat([]byte("*"), len(c.Secret))
		copy(s.stand, c.Placeholder)
		out = append(out, s)
	}
	return out, nil
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
// or as it is meant to be put in where the cell has sent nothing.
func (s *lent) putIn(h http.Header) {
	put := false
	for _, values := range h {
		for i, v := range values {
			if strings.Contains(v, s.Placeholder) {
				values[i] = strings.ReplaceAll(v, s.Placeholder, s.Secret)
				put = true
			} else if scheme, dec, ok := basic(v); ok && strings.Contains(dec, s.Placeholder) {
				values[i] = scheme + " " + base64.StdEncoding.EncodeToString([]byte(strings.ReplaceAll(dec, s.Placeholder, s.Secret)))
				put = true
			}
		}
	}
	if !put && s.header != "" && len(h.Values(s.header)) == 0 {
		_, v := s.Header()
		h.Set(s.header, v)
	}
}

// redact takes the value out of headers that go back to the cell.
func (s *lent) redact(h http.Header) {
	for name, values := range h {
		for i, v := range values {
			if strings.Contains(v, s.Secret) {
				values[i] = strings.ReplaceAll(v, s.Secret, s.Placeholder)
			}
		}
		if strings.Contains(strings.ToLower(name), strings.ToLower(s.Secret)) {
			delete(h, name)
		}
	}
}

// redactor takes the value out of a body as it passes. What it puts in its place
// is as long, so that lengths and ranges stay right.
type redactor struct {
	from   io.Reader
	secret []byte
	stand  []byte
	buf    []byte // read and not given
	ready  int    // of it, so much can be given
	err    error
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
		for {
			i := bytes.Index(r.buf, r.secret)
			if i < 0 {
				break
			}
			copy(r.buf[i:], r.stand)
		}
		r.ready = len(r.buf) - overlap(r.buf, r.secret)
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
