package gateway

import (
	"path"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// pathForms canonicalises an escaped path: unnecessary escapes are decoded, and hexadecimal
// digits are upper case. A path that servers read in more than one way (escaped slashes, dot
// segments, empty segments, backslashes, parameters of segments, double escapes) has several
// forms: the one that is sent, and its possible readings. ok is false for an invalid path.
func pathForms(escaped string) (forms []string, ok bool) {
	if escaped == "" {
		escaped = "/"
	}
	if escaped[0] != '/' {
		return nil, false
	}
	form, ok := canonical(escaped)
	if !ok || cell.Overlong(unescape(form)) {
		return nil, false
	}
	forms = []string{form}
	if !ambiguous(form) {
		return forms, true
	}
	for range 3 {
		if form = unescape(form); cell.Overlong(form) {
			return nil, false
		}
		for i := range len(form) {
			if form[i] < 0x20 || form[i] == 0x7f {
				return nil, false
			}
		}
		for _, f := range []string{cleaned(form, false), cleaned(form, true)} {
			if c, _ := canonical(f); c != forms[len(forms)-1] {
				forms = append(forms, c)
			}
		}
	}
	return forms, true
}

const upperHex = "0123456789ABCDEF"

// canonical escapes exactly what must be escaped. A percent sign that begins no escape is
// escaped.
func canonical(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '%' && i+2 < len(s) && hexDigit(s[i+1]) >= 0 && hexDigit(s[i+2]) >= 0 {
			c = byte(hexDigit(s[i+1])<<4 | hexDigit(s[i+2]))
			i += 2
			if c == '/' || c == '%' || c == ';' {
				b.WriteString("%" + string(upperHex[c>>4]) + string(upperHex[c&15]))
				continue
			}
		}
		switch {
		case c < 0x20 || c == 0x7f:
			return "", false
		case pathByte(c):
			b.WriteByte(c)
		default:
			b.WriteString("%" + string(upperHex[c>>4]) + string(upperHex[c&15]))
		}
	}
	return b.String(), true
}

// pathByte reports whether a byte stands for itself in a path (RFC 3986, pchar and the slash).
func pathByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~!$&'()*+,;=:@/", c) >= 0
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// ambiguous reports whether a canonical path can be read in more than one way.
func ambiguous(p string) bool {
	if strings.Contains(p, "//") || strings.Contains(p, "%2F") || strings.Contains(p, "%5C") || strings.Contains(p, ";") || strings.Contains(p, "%3B") {
		return true
	}
	for rest := p; ; {
		_, after, ok := strings.Cut(rest, "%25")
		if !ok {
			break
		}
		if len(after) >= 2 && hexDigit(after[0]) >= 0 && hexDigit(after[1]) >= 0 {
			return true
		}
		rest = after
	}
	for seg := range strings.SplitSeq(p, "/") {
		seg, _, _ = strings.Cut(seg, ";")
		if seg == "." || seg == ".." {
			return true
		}
	}
	return false
}

// unescape decodes every escape once.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) && hexDigit(s[i+1]) >= 0 && hexDigit(s[i+2]) >= 0 {
			b.WriteByte(byte(hexDigit(s[i+1])<<4 | hexDigit(s[i+2])))
			i += 2
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// cleaned returns a decoded path as a server that resolves it would see it; with params, without
// the parameters of segments.
func cleaned(p string, params bool) string {
	p = strings.ReplaceAll(p, `\`, "/")
	if params {
		segs := strings.Split(p, "/")
		for i, s := range segs {
			segs[i], _, _ = strings.Cut(s, ";")
		}
		p = strings.Join(segs, "/")
	}
	dir := strings.HasSuffix(p, "/") || strings.HasSuffix(p, "/.") || strings.HasSuffix(p, "/..")
	p = path.Clean("/" + p)
	if dir && p != "/" {
		p += "/"
	}
	return p
}
