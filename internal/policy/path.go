package policy

import (
	"path"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// CanonicalPath gives the one form of a request's path: letters, digits and
// -._~ are not encoded, hexadecimal digits are capitals. False when it has none:
// what a server makes of an encoded slash or backslash, of a dot segment, an
// empty segment, a backslash or a control character, only the server knows.
func CanonicalPath(p string) (string, bool) {
	if p == "" || p[0] != '/' {
		return "", p == "*" // OPTIONS *
	}
	plain := true
	for i := 0; i < len(p); i++ {
		c := p[i]
		if c <= ' ' || c == 0x7f || c == '\\' || c == '?' || c == '#' {
			return "", false
		}
		if c == '/' && i+1 < len(p) && p[i+1] == '/' {
			return "", false
		}
		plain = plain && c != '%'
	}
	if !plain {
		var ok bool
		if p, ok = decodePlain(p); !ok {
			return "", false
		}
	}
	if cell.Overlong(unescaped(p)) {
		return "", false
	}
	if !strings.Contains(p, "/.") {
		return p, true
	}
	for seg := range strings.SplitSeq(p, "/") {
		seg, _, _ = strings.Cut(seg, ";") // "..;" is ".." to some
		if seg == "." || seg == ".." {
			return "", false
		}
	}
	return p, true
}

// decodePlain decodes what needs no encoding, and refuses what must not be
// hidden in one.
func decodePlain(p string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(p); i++ {
		if p[i] != '%' {
			b.WriteByte(p[i])
			continue
		}
		if i+2 >= len(p) {
			return "", false
		}
		hi, ok1 := unhex(p[i+1])
		lo, ok2 := unhex(p[i+2])
		if !ok1 || !ok2 {
			return "", false
		}
		c := hi<<4 | lo
		switch {
		case c == '/' || c == '\\' || c < ' ' || c == 0x7f || c == '%':
			return "", false // a second decoding would make something else of it
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0:
			b.WriteByte(c)
		default:
			const digits = "0123456789ABCDEF"
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		}
		i += 2
	}
	return b.String(), true
}

// unescaped decodes every escape of a path in which all are whole.
func unescaped(p string) string {
	var b strings.Builder
	for i := 0; i < len(p); i++ {
		if c := p[i]; c != '%' || i+2 >= len(p) {
			b.WriteByte(c)
			continue
		}
		hi, _ := unhex(p[i+1])
		lo, _ := unhex(p[i+2])
		b.WriteByte(hi<<4 | lo)
		i += 2
	}
	return b.String()
}

func unhex(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// ParsePathPattern gives the one form of a pattern of paths. A * stands for
// characters of one segment, ** as a whole segment for any number of segments,
// none included: /repos/me/** is /repos/me and all below it.
func ParsePathPattern(s string) (string, error) {
	bad := func(why string) (string, error) {
		return "", cell.Errorf(cell.Invalid, "policy.path", "write a path such as /repos/me/**, with * for one segment and ** for any number", "%q is no path: %s", s, why)
	}
	if !strings.HasPrefix(s, "/") {
		return bad("it does not begin with /")
	}
	p, ok := CanonicalPath(s)
	if !ok {
		return bad("it has no one form")
	}
	if strings.ContainsAny(p, "[]{}") {
		return bad("the only wildcard is *")
	}
	for seg := range strings.SplitSeq(p, "/") {
		if seg != "**" && strings.Contains(seg, "**") {
			return bad("** must be a segment by itself")
		}
	}
	if strings.Contains(p, "/**/**") {
		return bad("one ** is enough")
	}
	return p, nil
}

// ParseProgram gives the one form of a name ("curl": in any directory) or of a
// path ("/usr/bin/ssh*").
func ParseProgram(s string) (string, error) {
	bad := func(why string) (string, error) {
		return "", cell.Errorf(cell.Invalid, "policy.program", "write a name such as curl, or a path such as /usr/bin/ssh*", "%q is no program: %s", s, why)
	}
	switch {
	case s == "" || s == "." || s == "..":
		return bad("it is empty")
	case strings.ContainsAny(s, "\x00\n"):
		return bad("it has a NUL or a new line")
	case strings.Contains(s, "/") && s[0] != '/':
		return bad("a path begins with /")
	case strings.Contains(s, "/") && path.Clean(s) != s:
		return bad("its one form is " + path.Clean(s))
	case strings.Contains(s, "**"):
		return bad("one * is enough")
	case strings.Contains(path.Dir(s), "*"):
		return bad("only the last part of a path can have a *")
	}
	return s, nil
}
