//go:build linux

package gitdir

import (
	"strings"
)

// An ignoreRule is one line of an ignore file, compiled.
type ignoreRule struct {
	text     string // the pattern
	from     *ignoreRules
	line     int
	negative bool   // "!": a match is not ignored
	dirOnly  bool   // "…/": only folders match
	anywhere bool   // no slash inside: the last component is matched
	literal  string // prefix of the path or name
	glob     ignoreGlob
	tail     string // suffix, for a quick test
}

// parseIgnoreRule compiles a pattern. Patterns that can match nothing, empty
// ones included, are not ok.
func parseIgnoreRule(s string) (r ignoreRule, ok bool) {
	r.text = s
	s, r.negative = strings.CutPrefix(s, "!")
	s, r.dirOnly = strings.CutSuffix(s, "/")
	r.anywhere = !strings.Contains(s, "/")
	s = strings.TrimPrefix(s, "/")
	if s == "" {
		return r, false
	}
	n := strings.IndexAny(s, `*?[\`)
	if n < 0 {
		n = len(s)
	}
	// As in git, the part after the literal is a pattern of its own: the "**" of "a**/b" counts
	// as one at the beginning.
	if r.anywhere {
		n = 0
		if !strings.ContainsAny(s, `*?[\`) {
			n = len(s)
		}
	}
	r.literal = s[:n]
	r.glob, ok = compileIgnoreGlob(s[n:])
	if last := len(r.glob) - 1; last < 0 {
		r.tail = r.literal
	} else if r.glob[last].kind == globLiteral {
		r.tail = r.glob[last].text
	}
	return r, ok
}

// match matches a path relative to the folder of the rule's file. The caller checks dirOnly.
func (r *ignoreRule) match(path, name string, steps *int64) bool {
	if r.anywhere {
		path = name
	}
	rest, ok := strings.CutPrefix(path, r.literal)
	return ok && r.glob.match(rest, steps)
}

// An ignoreGlob is a pattern as a list of parts.
type ignoreGlob []globPart

type globPart struct {
	kind globKind
	text string     // literal
	set  *[4]uint64 // oneOf
}

type globKind uint8

const (
	globLiteral globKind = iota // exactly text
	globOneOf                   // one byte of set, which never has a slash
	globStar                    // "*": bytes other than slashes, any number
	globFolders                 // "**/": nothing, or anything that ends in a slash
	globFolder                  // "**\/": anything that ends in a slash
	globAll                     // "**" at the end
)

// match counts its steps: their number is at most that of s times that of g.
func (g ignoreGlob) match(s string, steps *int64) bool {
	// Where to continue after a mismatch: after the last "*" with one more byte, else after the
	// last "**/" with one more folder. Earlier ones need no retry: the last one covers the same
	// text.
	i, at := 0, 0
	starPart, starAt := -1, 0
	dirPart, dirAt := -1, 0
	for ; ; *steps++ {
		if i == len(g) {
			if at == len(s) {
				return true
			}
		} else {
			switch p := &g[i]; p.kind {
			case globLiteral:
				if strings.HasPrefix(s[at:], p.text) {
					i, at = i+1, at+len(p.text)
					continue
				}
			case globOneOf:
				if at < len(s) && p.set[s[at]/64]>>(s[at]%64)&1 != 0 {
					i, at = i+1, at+1
					continue
				}
			case globStar:
				i++
				starPart, starAt = i, at
				continue
			case globFolders, globFolder:
				i++
				starPart, dirPart, dirAt = -1, i, at
				if p.kind == globFolders {
					continue
				}
			case globAll:
				return true
			}
		}
		if starPart >= 0 && starAt < len(s) && s[starAt] != '/' {
			starAt++
			i, at = starPart, starAt
			continue
		}
		if dirPart < 0 {
			return false
		}
		n := strings.IndexByte(s[dirAt:], '/')
		if n < 0 {
			return false
		}
		dirAt += n + 1
		starPart = -1
		i, at = dirPart, dirAt
	}
}

// compileIgnoreGlob is not ok for a pattern that matches nothing because it
// ends within a bracket or an escape.
func compileIgnoreGlob(s string) (g ignoreGlob, ok bool) {
	var text []byte // a literal not yet in g
	add := func(p globPart) {
		if len(text) > 0 {
			g, text = append(g, globPart{kind: globLiteral, text: string(text)}), nil
		}
		g = append(g, p)
	}
	for i := 0; i < len(s); {
		switch c := s[i]; c {
		case '*':
			end := i + 1
			for end < len(s) && s[end] == '*' {
				end++
			}
			rest := s[end:]
			part := globPart{kind: globStar}
			// Two stars mean folders only as a whole component.
			if end-i >= 2 && (i == 0 || s[i-1] == '/') {
				switch {
				case rest == "":
					part.kind = globAll
				case rest[0] == '/':
					part.kind = globFolders
					end++
				case strings.HasPrefix(rest, `\/`):
					part.kind = globFolder
					end += 2
				}
			}
			add(part)
			i = end
		case '?':
			add(oneOfSet([4]uint64{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}))
			i++
		case '[':
			set, n := parseBracket(s[i:])
			if n == 0 {
				return nil, false
			}
			add(oneOfSet(set))
			i += n
		default:
			if c == '\\' {
				if i++; i == len(s) {
					return nil, false
				}
			}
			text = append(text, s[i])
			i++
		}
	}
	if len(text) > 0 {
		g = append(g, globPart{kind: globLiteral, text: string(text)})
	}
	return g, true
}

func oneOfSet(set [4]uint64) globPart {
	set['/'/64] &^= 1 << ('/' % 64)
	return globPart{kind: globOneOf, set: &set}
}

// parseBracket reads a bracket expression and returns its bytes and length, which is 0 if it
// does not end or names an unknown class. A "]" at its beginning, a "-" at either end and a "[:"
// without ":]" are literal; the end of a range begins no other.
func parseBracket(s string) (set [4]uint64, n int) {
	add := func(lo, hi byte) {
		for c := int(lo); c <= int(hi); c++ {
			set[c/64] |= 1 << (c % 64)
		}
	}
	i := 1
	negative := i < len(s) && (s[i] == '!' || s[i] == '^')
	if negative {
		i++
	}
	last := byte(0) // possible start of a range
	for first := true; ; first = false {
		if i >= len(s) {
			return set, 0
		}
		c := s[i]
		if c == ']' && !first {
			break
		}
		i++
		switch {
		case c == '\\':
			if i >= len(s) {
				return set, 0
			}
			c = s[i]
			i++
			add(c, c)
		case c == '-' && last != 0 && i < len(s) && s[i] != ']':
			c = s[i]
			i++
			if c == '\\' {
				if i >= len(s) {
					return set, 0
				}
				c = s[i]
				i++
			}
			add(last, c)
			c = 0
		case c == '[' && i < len(s) && s[i] == ':':
			end := strings.IndexByte(s[i+1:], ']')
			if end < 0 {
				return set, 0
			}
			class, ok := strings.CutSuffix(s[i+1:i+1+end], ":")
			if !ok {
				add(c, c)
				break
			}
			in := ignoreClasses[class]
			if in == nil {
				return set, 0
			}
			for b := range 128 {
				if in(byte(b)) {
					add(byte(b), byte(b))
				}
			}
			i += end + 2
			c = 0
		default:
			add(c, c)
		}
		last = c
	}
	if negative {
		for w := range set {
			set[w] = ^set[w]
		}
	}
	return set, i + 1
}

// ignoreClasses are the named classes, in the C locale.
var ignoreClasses = map[string]func(c byte) bool{
	"alnum":  func(c byte) bool { return ignoreAlpha(c) || ignoreDigit(c) },
	"alpha":  ignoreAlpha,
	"blank":  func(c byte) bool { return c == ' ' || c == '\t' },
	"cntrl":  func(c byte) bool { return c < ' ' || c == 0x7f },
	"digit":  ignoreDigit,
	"graph":  func(c byte) bool { return c > ' ' && c < 0x7f },
	"lower":  func(c byte) bool { return 'a' <= c && c <= 'z' },
	"print":  func(c byte) bool { return c >= ' ' && c < 0x7f },
	"punct":  func(c byte) bool { return c > ' ' && c < 0x7f && !ignoreAlpha(c) && !ignoreDigit(c) },
	"space":  func(c byte) bool { return c == ' ' || '\t' <= c && c <= '\r' },
	"upper":  func(c byte) bool { return 'A' <= c && c <= 'Z' },
	"xdigit": func(c byte) bool { return ignoreDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' },
}

func ignoreAlpha(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func ignoreDigit(c byte) bool { return '0' <= c && c <= '9' }
