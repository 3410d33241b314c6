package gitdir

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"
)

// configValue returns the last value of "section.key" in a git config, without includes: git
// takes the description of the repository itself from no other file. It skips sections with a
// subsection, and reads nothing after a syntax error.
func configValue(conf []byte, name string) (value string) {
	c := configReader{rest: bytes.TrimPrefix(conf, []byte("\xef\xbb\xbf"))}
	for c.next() {
		if c.section+"."+c.key == name {
			value = c.value
		}
	}
	return value
}

// A configReader parses a git config, as git-config(1) describes it.
type configReader struct {
	rest                []byte
	section, key, value string
	bare                bool // the variable has no "=", which means true
}

func (c *configReader) peek() byte {
	if len(c.rest) == 0 {
		return 0
	}
	return c.rest[0]
}

func (c *configReader) line() {
	if _, after, ok := bytes.Cut(c.rest, []byte("\n")); ok {
		c.rest = after
		return
	}
	c.rest = nil
}

// next reads the next variable; false is the end.
func (c *configReader) next() bool { return c.seek() && c.variable() }

// seek skips to the next variable; false is the end.
func (c *configReader) seek() bool {
	for len(c.rest) > 0 {
		switch b := c.peek(); {
		case b == ' ' || b == '\t' || b == '\r' || b == '\n':
			c.rest = c.rest[1:]
		case b == '#' || b == ';':
			c.line()
		case b == '[':
			if !c.header() {
				return false
			}
		default:
			return true
		}
	}
	return false
}

// header reads "[section]" or "[section "subsection"]".
func (c *configReader) header() bool {
	quoted := false
	for i := 1; i < len(c.rest); i++ {
		switch b := c.rest[i]; {
		case b == '\n':
			return false
		case quoted && b == '\\':
			i++
		case b == '"':
			quoted = !quoted
		case b == ']' && !quoted:
			name, sub, has := strings.Cut(string(c.rest[1:i]), " ")
			c.section = strings.ToLower(name)
			if has {
				c.section += " " + sub
			}
			c.rest = c.rest[i+1:]
			return true
		}
	}
	return false
}

// variable reads "key = value", or "key" alone, for which the value is "".
func (c *configReader) variable() bool {
	n := 0
	for n < len(c.rest) && (c.rest[n] == '-' || c.rest[n] < utf8.RuneSelf && (unicode.IsLetter(rune(c.rest[n])) || unicode.IsDigit(rune(c.rest[n])))) {
		n++
	}
	if n == 0 {
		return false
	}
	c.key, c.value, c.bare = strings.ToLower(string(c.rest[:n])), "", false
	c.rest = bytes.TrimLeft(c.rest[n:], " \t")
	switch c.peek() {
	case '=':
		c.rest = c.rest[1:]
		return c.text()
	case '#', ';', '\n', '\r', 0:
		c.bare = true
		c.line()
		return true
	}
	return false
}

// text reads a value to the end of its line: it removes quotes, surrounding blanks and comments,
// and resolves escapes.
func (c *configReader) text() bool {
	var out []byte
	blanks := 0 // at the end of out, outside quotes
	for quoted := false; ; {
		b := c.peek()
		if len(c.rest) > 0 {
			c.rest = c.rest[1:]
		}
		switch {
		case b == 0 || b == '\n' || b == '\r' && (c.peek() == '\n' || c.peek() == 0):
			c.value = string(out[:len(out)-blanks])
			return !quoted
		case !quoted && (b == '#' || b == ';'):
			c.line()
			c.value = string(out[:len(out)-blanks])
			return true
		case !quoted && (b == ' ' || b == '\t'):
			if len(out) > 0 {
				out, blanks = append(out, b), blanks+1
			}
			continue
		case b == '"':
			quoted = !quoted
		case b == '\\':
			e := c.peek()
			if e == '\r' {
				c.rest = c.rest[1:]
				e = c.peek()
			}
			if e == 0 {
				return false
			}
			c.rest = c.rest[1:]
			i := strings.IndexByte("ntb\\\"\n", e)
			if i < 0 {
				return false
			}
			if e != '\n' { // a continued line
				out = append(out, "\n\t\b\\\""[i])
			} else {
				continue
			}
		default:
			out = append(out, b)
		}
		blanks = 0
	}
}

// clean removes characters that belong in no name: control characters and invalid text.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return -1
		}
		return r
	}, s)
	if len(s) > 1000 {
		return ""
	}
	return s
}
