package finding

import (
	"bytes"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/receipt"
)

// clip bounds text of a file.
func clip(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	for end := most; ; end-- {
		if utf8.RuneStart(s[end]) {
			return s[:end] + "…"
		}
	}
}

// line is a line of a file after the run, without its end.
type line struct {
	number int
	text   string
}

// added are the lines of a file that it did not have before, wherever they are.
func added(before, after []byte) (out []line) {
	had := map[string]int{}
	for l := range bytes.Lines(before) {
		had[string(bytes.TrimRight(l, "\r\n"))]++
	}
	n := 0
	for l := range bytes.Lines(after) {
		n++
		text := string(bytes.TrimRight(l, "\r\n"))
		if had[text] > 0 {
			had[text]--
			continue
		}
		out = append(out, line{n, text})
	}
	return out
}

// text reports whether content is lines that a person could read.
func text(b []byte) bool { return b != nil && bytes.IndexByte(b, 0) < 0 }

// longLine is from which length on a line of code is not read by people, in bytes.
const longLine = 5000

func minifiedAdded(e *Evidence, f *found) {
	for i := range e.Changed {
		c := &e.Changed[i]
		if !slices.Contains([]string{".js", ".mjs", ".cjs", ".css", ".ts", ".py", ".go", ".rb", ".php", ".sh"}, path.Ext(c.Path)) {
			continue
		}
		after := e.after(c)
		if !text(after) || strings.HasSuffix(c.Path, ".min.js") && c.Status != "added" {
			continue
		}
		for _, l := range added(e.before(c), after) {
			if len(l.text) >= longLine {
				f.at(c.Path, l.number, "a line of %d bytes", len(l.text))
				break
			}
		}
	}
}

// secretShapes knows the shapes of tokens.
var secretShapes receipt.Redactor

// exampleLogins are logins in addresses as examples have them: with a password that is a word or a variable, or for no real host.
var exampleLogins = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`://[^\s:/]*:(?:[A-Za-z_-]{0,12}[0-9]{0,3}@|[^\s/@]*[%$<{*][^\s/@]*@|[^\s/@]*@(?:localhost|127\.0\.0\.1|[\w.-]*example(?:\.\w+)?|h(?:ost(?:name)?)?|foo|bar)\b)`)
})

// secretAdded leaves out what the source has, and was left outside for being secret: it is not new there.
func secretAdded(e *Evidence, f *found) {
	for i := range e.Changed {
		c := &e.Changed[i]
		if slices.ContainsFunc(e.Run.LeftOut, func(l api.LeftOut) bool { return l.Path == c.Path }) {
			continue
		}
		after := e.after(c)
		if !text(after) || bytes.Equal(after, []byte(secretShapes.String(string(after)))) {
			continue
		}
		for _, l := range added(e.before(c), after) {
			if plain := exampleLogins().ReplaceAllString(l.text, "://"); secretShapes.String(plain) != plain {
				shown := secretShapes.String(l.text)
				f.at(c.Path, l.number, "%s", clip(strings.TrimSpace(shown)))
			}
		}
	}
}

// misleading reports whether a character changes the order of what is seen, is a letter that is not seen, or one of the tags of
// Unicode's plane 14, in which text can be hidden from people and read by programs. See "Trojan Source" (CVE-2021-42574).
func misleading(r rune) bool {
	switch {
	case r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r >= 0xe0000 && r <= 0xe007f:
		return true
	}
	return r == 0x3164 || r == 0xffa0 || r == 0x115f || r == 0x1160
}

// invisible reports whether a character is not seen, and has its uses in texts.
func invisible(r rune) bool {
	return r == 0x200b || r == 0x2060 || r == 0x00ad || unicode.Is(unicode.Cc, r) && r != '\t' && r != '\f' && r != '\r' && r != '\n' && r != 0x1b
}

func hiddenText(e *Evidence, f *found) {
	for i := range e.Changed {
		c := &e.Changed[i]
		if at := strings.IndexFunc(c.Path, func(r rune) bool { return misleading(r) || invisible(r) }); at >= 0 {
			r, _ := utf8.DecodeRuneInString(c.Path[at:])
			f.at(c.Path, 0, "its name has the character %U", r)
		}
	}
	e.characters(f, misleading)
}

func invisibleText(e *Evidence, f *found) { e.characters(f, invisible) }

// characters finds characters in lines that were added.
func (e *Evidence) characters(f *found, is func(rune) bool) {
	for i := range e.Changed {
		c := &e.Changed[i]
		after := e.after(c)
		if !text(after) || !utf8.Valid(after) || bytes.IndexFunc(after, is) < 0 {
			continue
		}
		for _, l := range added(e.before(c), after) {
			if at := strings.IndexFunc(l.text, is); at >= 0 {
				r, _ := utf8.DecodeRuneInString(l.text[at:])
				f.at(c.Path, l.number, "character %U", r)
			}
		}
	}
}
