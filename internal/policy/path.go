package policy

import (
	"strings"

	"github.com/cedar-policy/cedar-go/types"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/glob"
)

// canonicalPath gives the one form of a request's path: letters, digits and
// -._~ are not encoded, hexadecimal digits are capitals. False when it has none:
// what a server makes of an encoded slash or backslash, of a dot segment, an
// empty segment, a backslash or a control character, only the server knows.
func canonicalPath(p string) (string, bool) {
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

// parsePathPattern gives the one form of a pattern of paths. A * stands for
// characters of one segment, ** as a whole segment for any number of segments,
// none included: /repos/me/** is /repos/me and all below it.
func parsePathPattern(s string) (string, error) {
	bad := func(why string) (string, error) {
		return "", cell.Errorf(cell.Invalid, "policy.path", "write a path such as /repos/me/**, with * for one segment and ** for any number", "%q is no path: %s", s, why)
	}
	if !strings.HasPrefix(s, "/") {
		return bad("it does not begin with /")
	}
	p, ok := canonicalPath(s)
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

// pathPattern is a pattern, ready to match.
type pathPattern struct {
	text  string
	begin string   // all that comes before the first part with a wildcard
	segs  []string // without the first, empty one; nil for a pattern without wildcards
	// What Cedar is told when a path matches: this pattern, and it alone.
	value, alone types.Value
}

func newPathPattern(text string) pathPattern {
	p := pathPattern{text: text, value: types.String(text), alone: types.NewSet(types.String(text))}
	if strings.Contains(text, "*") {
		p.segs = strings.Split(text[1:], "/")
		before, _, _ := strings.Cut(text, "*")
		p.begin = before[:strings.LastIndexByte(before, '/')] // /x/** is also /x
	}
	return p
}

// match reports whether a canonical path matches.
func (p *pathPattern) match(path string) bool {
	if p.segs == nil {
		return p.text == path
	}
	if path == "" || path[0] != '/' || !strings.HasPrefix(path, p.begin) {
		return false
	}
	return matchSegments(p.segs, path[1:], false)
}

// matchSegments matches the segments of rest. Ended says that rest has no
// segment left, as opposed to one empty segment. It goes back to the latest **
// only, which is enough, so that its time is bounded by the product of both
// lengths.
func matchSegments(segs []string, rest string, ended bool) bool {
	next := func(s string) (seg, tail string, last bool) {
		seg, tail, more := strings.Cut(s, "/")
		return seg, tail, !more
	}
	var starSegs []string
	var starRest string
	starEnded, haveStar := true, false
	for {
		switch {
		case len(segs) > 0 && segs[0] == "**":
			if len(segs) == 1 {
				return true
			}
			segs = segs[1:]
			starSegs, starRest, starEnded, haveStar = segs, rest, ended, true
			continue
		case len(segs) == 0 && ended:
			return true
		case len(segs) > 0 && !ended:
			seg, tail, last := next(rest)
			if matchSegment(segs[0], seg) {
				segs, rest, ended = segs[1:], tail, last
				continue
			}
		}
		if !haveStar || starEnded {
			return false
		}
		_, starRest, starEnded = next(starRest)
		segs, rest, ended = starSegs, starRest, starEnded
	}
}

// matchSegment matches one segment; * stands for any characters, and alone for
// at least one.
func matchSegment(pattern, s string) bool {
	return glob.Match(pattern, s) && (s != "" || pattern != "*")
}
