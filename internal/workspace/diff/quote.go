package diff

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// quoteName writes a name as git does: plain, or as a C string when it has bytes that would
// mislead a reader. With octal, bytes outside ASCII are written in octal too (core.quotePath,
// git's default); without, letters of all languages stay readable, and only invisible and
// bidirectional characters are written in octal.
func quoteName(name string, octal bool) string {
	plain := true
	for i := 0; i < len(name) && plain; {
		n := plainAt(name[i:], octal)
		plain, i = n > 0, i+n
	}
	if plain {
		return name
	}
	return cString(name, octal)
}

// Quote writes a name for people: plain, or as a C string when it has bytes that would mislead a
// reader or control a terminal.
func Quote(name string) string { return quoteName(name, false) }

// cString writes a name as a C string.
func cString(name string, octal bool) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(name); {
		if n := plainAt(name[i:], octal); n > 0 {
			b.WriteString(name[i : i+n])
			i += n
			continue
		}
		c := name[i]
		if j := strings.IndexByte("\a\b\t\n\v\f\r\"\\", c); j >= 0 {
			b.WriteByte('\\')
			b.WriteByte(`abtnvfr"\`[j])
			i++
			continue
		}
		// All bytes of one character, so that it is not split.
		_, n := utf8.DecodeRuneInString(name[i:])
		for ; n > 0; n-- {
			fmt.Fprintf(&b, `\%03o`, name[i])
			i++
		}
	}
	b.WriteByte('"')
	return b.String()
}

// plainAt returns the length of the character at the start of s if it can
// stand unquoted, else 0.
func plainAt(s string, octal bool) int {
	c := s[0]
	switch {
	case c < ' ' || c == 0x7f || c == '"' || c == '\\':
		return 0
	case c < utf8.RuneSelf:
		return 1
	case octal:
		return 0
	}
	r, n := utf8.DecodeRuneInString(s)
	if (r == utf8.RuneError && n == 1) || hidden(r) {
		return 0
	}
	return n
}

// hidden reports whether a character controls a terminal, changes the direction of text, or is
// invisible. The two joiners are allowed: Persian, Hindi and many emoji need them.
func hidden(r rune) bool {
	switch r {
	case '\u200c', '\u200d':
		return false
	case '\u2028', '\u2029':
		return true
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co)
}

// ShellWord quotes a path for a command line if it needs that.
func ShellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+,@:=", r)
	}
	if s != "" && strings.TrimFunc(s, plain) == "" && !strings.HasPrefix(s, "-") {
		return s
	}
	for _, r := range s {
		if r == '\ufffd' || r < ' ' || hidden(r) {
			quoted := cString(s, true)
			return "$'" + strings.ReplaceAll(quoted[1:len(quoted)-1], "'", `\'`) + "'"
		}
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func visible(text string) string { return Visible(text) }

// Visible makes a line safe for terminals and people: control characters become ^X, invalid bytes <XX>, and
// invisible or bidirectional characters <U+XXXX>. Tabs stay.
func Visible(text string) string {
	clean := true
	for _, r := range text {
		if r != '\t' && (r < ' ' || r == utf8.RuneError || r == 0x7f || (r >= utf8.RuneSelf && hidden(r))) {
			clean = false
			break
		}
	}
	if clean {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == '\t':
			b.WriteByte('\t')
		case r < ' ' || r == 0x7f:
			b.WriteByte('^')
			b.WriteByte(byte(r) ^ 0x40)
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, "<%02X>", text[i])
		case hidden(r):
			fmt.Fprintf(&b, "<U+%04X>", r)
		default:
			b.WriteString(text[i : i+n])
		}
		i += n
	}
	return b.String()
}
