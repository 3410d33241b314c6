package gateway

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/pando-dev/pando/internal/cell"
)

// lent is a credential in the gateway, for some of the places where it may be sent. Its value is
// in outgoing requests, and in no event or answer.
type lent struct {
	cell.Lent
	header string // default header
	put    string // value of the default header
	scheme string // the word before the value, "Bearer"
	user   string // of Basic authentication
	places []cell.Place
	hidden []hidden
}

// hidden is a text that reveals the value, and its replacement for the cell. Both have the same
// length, for bodies.
type hidden struct {
	text, stand []byte
	// encoded says that the first bytes of the text reveal nothing, and are not held back while
	// more may follow.
	encoded bool
}

func newLent(list []cell.Lent) ([]*lent, error) {
	out := make([]*lent, 0, len(list))
	for _, c := range list {
		if c.Handle == "" || c.Secret == "" || len(c.Placeholder) < 8 || strings.Contains(c.Secret, c.Placeholder) {
			return nil, fmt.Errorf("the credential %q is incomplete", c.Handle)
		}
		if strings.ContainsAny(c.Secret, "\r\n\x00") {
			return nil, fmt.Errorf("the credential %q has line breaks, which no header can carry", c.Handle)
		}
		s := &lent{Lent: c}
		if c.As != "" {
			if !strings.Contains(c.As, ":") || !strings.Contains(c.As, "{secret}") && !strings.Contains(c.As, "{basic:") {
				return nil, fmt.Errorf("the credential %q has the header %q, which lacks {secret}", c.Handle, c.As)
			}
			s.header, s.put = c.Header()
			s.header = http.CanonicalHeaderKey(s.header)
			s.scheme, s.user = schemeOf(c.As)
		}
		for _, f := range c.For {
			p, err := cell.ParsePlace(f)
			if err != nil {
				return nil, fmt.Errorf("the credential %q: %w", c.Handle, err)
			}
			s.places = append(s.places, p)
		}
		for i, form := range formsOf(c.Secret) {
			if i == 0 || len(form) >= minForm {
				s.hide(form, i > 0)
			}
		}
		if _, enc, ok := strings.Cut(s.put, " "); ok && !strings.Contains(s.put, c.Secret) {
			for _, form := range escaped(enc) { // its form in Basic authentication
				s.hide(form, true)
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// hide adds a text that reveals the value.
func (s *lent) hide(text string, encoded bool) {
	for _, h := range s.hidden {
		if string(h.text) == text {
			return
		}
	}
	stand := bytes.Repeat([]byte("*"), len(text))
	copy(stand, s.Placeholder)
	s.hidden = append(s.hidden, hidden{[]byte(text), stand, encoded})
}

// lentAs finds the form of a credential for a request, by its handle. There may be several: a
// token is a bearer token in one place, and a password in another. lent is false for an unknown
// handle.
func (l *compiledPolicy) lentAs(handle string, a cell.Access, host string) (s *lent, lent bool) {
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

// goes reports whether the credential may go into a request. An ambiguous path matches no place
// with a path.
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

// schemeOf returns the words before the value in "NAME: SCHEME {secret}".
func schemeOf(as string) (scheme, user string) {
	_, value, _ := strings.Cut(as, ":")
	if scheme, value, _ = strings.Cut(strings.TrimSpace(value), " "); value == "" {
		scheme = ""
	}
	if _, after, ok := strings.Cut(as, "{basic:"); ok {
		user, _, _ = strings.Cut(after, "}")
	} else if strings.EqualFold(scheme, "basic") {
		user, _, _ = strings.Cut(value, ":")
	}
	return scheme, user
}

// minForm is the length of the shortest encoding that is searched for: shorter ones occur
// everywhere.
const minForm = 6

// formsOf returns the texts that reveal a value: plain, or encoded as in URLs, JSON, HTML,
// UTF-16, UTF-32, hexadecimal or base64 at any alignment.
func formsOf(value string) []string {
	list := escaped(value)
	if j, err := json.Marshal(value); err == nil {
		list = append(list, string(j[1:len(j)-1]))
	}
	h := hex.EncodeToString([]byte(value))
	list = append(list, h, strings.ToUpper(h))
	for shift := range 3 {
		// The first and the last character also depend on the surrounding text, and are not
		// searched for.
		first, last := (8*shift+5)/6, 8*(shift+len(value))/6
		padded := append(make([]byte, shift), value...)
		list = append(list, escaped(base64.RawStdEncoding.EncodeToString(padded)[first:last])...)
		list = append(list, base64.RawURLEncoding.EncodeToString(padded)[first:last])
	}
	return append(list, wide(value)...)
}

// wide returns a value in UTF-16 and UTF-32. For ASCII it is the part that both byte orders
// share, from the first character's byte to the last one's.
func wide(value string) (list []string) {
	if i := strings.IndexFunc(value, func(r rune) bool { return r >= utf8.RuneSelf }); i < 0 {
		for _, zeros := range []string{"\x00", "\x00\x00\x00"} {
			list = append(list, strings.Join(strings.Split(value, ""), zeros))
		}
		return list
	}
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		var u16, u32 []byte
		for _, u := range utf16.Encode([]rune(value)) {
			u16 = order.AppendUint16(u16, u)
		}
		for _, r := range value {
			u32 = order.AppendUint32(u32, uint32(r))
		}
		list = append(list, string(u16), string(u32))
	}
	return list
}

// escaped returns a text unchanged, and in each of the escapes.
func escaped(text string) []string {
	list := []string{text}
	for _, e := range escapes() {
		list = append(list, e.of(text))
	}
	slices.Sort(list[1:])
	return slices.Compact(list)
}

// An escaping is a way in which programs escape special characters in URLs, JSON or HTML. None
// of them escapes letters and digits.
type escaping struct {
	chars  string // escaped characters
	except bool   // all but letters, digits and chars are escaped
	format string // format of an escaped byte
	names  map[byte]string
}

func (e escaping) of(value string) string {
	var b strings.Builder
	for i := range len(value) {
		c := value[i]
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		switch name := e.names[c]; {
		case name != "":
			b.WriteString(name)
		case plain || strings.IndexByte(e.chars, c) >= 0 == e.except:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, e.format, c)
		}
	}
	return b.String()
}

// escapes are those of the usual libraries, see TestX10Escapes.
var escapes = sync.OnceValue(func() (list []escaping) {
	for _, safe := range []string{
		"-_.~",                 // RFC 3986; Go's QueryEscape, PHP's rawurlencode, Python's quote_plus
		"-_.~/",                // Python's quote
		"-_.~$&+=:@",           // Go's PathEscape
		"-_.~!*'()",            // JavaScript's encodeURIComponent
		"-_.~!*'();/?:@&=+$,#", // JavaScript's encodeURI
		"-_.*",                 // forms: Java's URLEncoder, URLSearchParams
		"-_.",                  // PHP's urlencode
	} {
		for _, format := range []string{"%%%02X", "%%%02x"} {
			list = append(list, escaping{chars: safe, except: true, format: format},
				escaping{chars: safe, except: true, format: format, names: map[byte]string{' ': "+"}})
		}
	}
	json := map[byte]string{'"': `\"`, '\\': `\\`}
	slash := map[byte]string{'"': `\"`, '\\': `\\`, '/': `\/`}
	for _, chars := range []string{
		"",       // JavaScript, Python, Java's Jackson
		"<>&",    // Go, Rails
		"<>&='",  // Java's Gson
		"<>&'+`", // .NET; quotes are below
		"<>",     // to stand in HTML
		"<>&'",   // PHP with all its flags, Flask
		"<>&'/",  // Django
	} {
		for _, format := range []string{"\\u%04x", "\\u%04X"} {
			list = append(list, escaping{chars: chars, format: format, names: json}, escaping{chars: chars, format: format, names: slash},
				escaping{chars: chars + `"`, format: format, names: map[byte]string{'\\': `\\`}})
		}
	}
	named := map[byte]string{'&': "&amp;", '<': "&lt;", '>': "&gt;"}
	quoted := map[byte]string{'&': "&amp;", '<': "&lt;", '>': "&gt;", '"': "&quot;"}
	mixed := map[byte]string{'&': "&amp;", '<': "&lt;", '>': "&gt;", '"': "&quot;", '\'': "&#39;"} // Mustache's own, and underscore's
	for _, chars := range []string{
		"",       // in text
		`"'`,     // in attributes
		"\"'/`=", // Mustache and Handlebars
		"\"'/",   // OWASP
		"\"'`=",
		"\"'+=`@", // React's and .NET's older ones
	} {
		for _, format := range []string{"&#%d;", "&#x%X;", "&#x%x;", "&#%03d;", "&#x%02X;"} {
			list = append(list, escaping{chars: chars, format: format, names: named}, escaping{chars: chars, format: format, names: quoted}, escaping{chars: chars, format: format, names: mixed})
		}
	}
	return list
})

// isFor reports whether a credential may be sent to a host at all.
func (s *lent) isFor(host string) bool {
	host = strings.Trim(host, "[]")
	return slices.ContainsFunc(s.places, func(p cell.Place) bool { return p.HoldsHost(host) })
}

// known returns the credentials that some request to a host may carry: the host may have kept
// their values, and return them later, on any of its ports.
func (l *compiledPolicy) known(host string) (list []*lent) {
	for _, s := range l.lent {
		if s.isFor(host) {
			list = append(list, s)
		}
	}
	return list
}

// mayHold reports whether a header is one for credentials, in which placeholders are replaced. A
// host might store the value of another header and show it to others.
func (s *lent) mayHold(name string) bool {
	switch name {
	case s.header, "Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Private-Token", "Job-Token", "X-Auth-Token":
		return true
	}
	return false
}

// astray returns the header that has the placeholder but is none for credentials, "" for none.
func (s *lent) astray(h http.Header) string {
	for name, values := range h {
		if !s.mayHold(name) && slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, s.Placeholder) }) {
			return name
		}
	}
	return ""
}

// carries reports whether a request has the placeholder in its line or headers, also as the
// password of a Basic authorization.
func (s *lent) carries(r *http.Request) bool {
	p := s.Placeholder
	if strings.Contains(r.URL.RequestURI(), p) || strings.Contains(r.URL.Path, p) || strings.Contains(unescape(r.URL.RawQuery), p) {
		return true
	}
	for _, values := range r.Header {
		if slices.ContainsFunc(values, s.isIn) {
			return true
		}
	}
	return false
}

// basic decodes a header "Basic …".
func basic(v string) (scheme, decoded string, ok bool) {
	scheme, enc, ok := strings.Cut(v, " ")
	if !ok || !strings.EqualFold(scheme, "basic") {
		return "", "", false
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(enc))
	return scheme, string(b), err == nil
}

// goesIn reports whether putIn puts the value into a request with these headers.
func (s *lent) goesIn(h http.Header) bool {
	for name, values := range h {
		if s.mayHold(name) && slices.ContainsFunc(values, s.isIn) {
			return true
		}
	}
	return s.header != "" && empty(h.Values(s.header))
}

// isIn reports whether the placeholder is in the value of a header, also as a part of a Basic
// authorization.
func (s *lent) isIn(v string) bool {
	if strings.Contains(v, s.Placeholder) {
		return true
	}
	_, dec, ok := basic(v)
	return ok && strings.Contains(dec, s.Placeholder)
}

// empty reports whether all values of a header are empty.
func empty(values []string) bool {
	return !slices.ContainsFunc(values, func(v string) bool { return strings.TrimSpace(v) != "" })
}

// putIn puts the value into a request's headers: in place of the placeholder, or into the
// default header if the cell has sent none. It returns the credential to search for in the
// response.
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
				for _, form := range escaped(enc) {
					as.hide(form, true)
				}
				values[i] = scheme + " " + enc
				put = true
			}
		}
	}
	if !put && s.header != "" && empty(h.Values(s.header)) {
		h.Set(s.header, s.put)
	}
	return &as
}

// redact removes the value from headers for the cell.
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

// redactor removes values from a body as it passes. Replacements have the same length, so that
// lengths and ranges stay right. A possible beginning of a value is held back until more comes,
// except the first bytes of encodings: there are many, nearly every text ends like the beginning
// of one, and a stream must continue if its other side waits for these bytes.
type redactor struct {
	from  io.Reader
	hide  []hidden
	buf   []byte
	given int // bytes of it that were returned; kept to find values that begin there
	ready int // bytes of it that can be returned
	err   error
}

// unheld is the number of bytes of an encoded value's beginning that are not held back.
const unheld = 3

func newRedactor(from io.Reader, list []*lent) *redactor {
	return &redactor{from: from, hide: hiddenOf(list)}
}

func hiddenOf(list []*lent) (out []hidden) {
	for _, s := range list {
		out = append(out, s.hidden...)
	}
	return out
}

func (r *redactor) Read(p []byte) (int, error) {
	for r.ready == r.given {
		if r.err != nil {
			if r.given == len(r.buf) {
				return 0, r.err
			}
			r.ready = len(r.buf)
			break
		}
		if past := r.given - unheld; past > 0 {
			r.buf = append(r.buf[:0], r.buf[past:]...)
			r.given = unheld
		}
		start := len(r.buf)
		r.buf = append(r.buf, make([]byte, max(4096, min(len(p), pieceSize)))...)
		n, err := r.from.Read(r.buf[start:])
		r.buf, r.err = r.buf[:start+n], err
		r.ready = max(r.given, redactAll(r.buf, r.hide))
	}
	n := copy(p, r.buf[r.given:r.ready])
	r.given += n
	return n, nil
}

// redactAll removes values from a text, and returns how much of it can be returned before more
// comes.
func redactAll(b []byte, hide []hidden) (ready int) {
	for _, h := range hide {
		for rest := b; ; {
			i := bytes.Index(rest, h.text)
			if i < 0 {
				break
			}
			copy(rest[i:], h.stand)
			rest = rest[i+len(h.text):]
		}
	}
	keep := 0
	for _, h := range hide {
		if n := overlap(b, h.text); !h.encoded || n > unheld {
			keep = max(keep, n)
		}
	}
	return len(b) - keep
}

// overlap returns the number of bytes at the end of b that may be the beginning of s.
func overlap(b, s []byte) int {
	for n := min(len(b), len(s)-1); n > 0; n-- {
		if bytes.HasPrefix(s, b[len(b)-n:]) {
			return n
		}
	}
	return 0
}
