package finding

import (
	"bytes"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
)

func tooLarge(err error) bool { return cell.KindOf(err) == cell.TooLarge }

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

func secretAdded(e *Evidence, f *found) {
	for i := range e.Changed {
		c := &e.Changed[i]
		after := e.after(c)
		if !text(after) || bytes.Equal(after, []byte(secretShapes.String(string(after)))) {
			continue
		}
		for _, l := range added(e.before(c), after) {
			if shown := secretShapes.String(l.text); shown != l.text {
				f.at(c.Path, l.number, "%s", clip(strings.TrimSpace(shown)))
			}
		}
	}
}

// misleading reports whether a character is not seen, or changes the order of what is seen. See "Trojan Source"
// (CVE-2021-42574), and the tags of Unicode's plane 14. A mark of a file's encoding at its start is neither.
func misleading(r rune) bool {
	switch {
	case r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r >= 0xe0000 && r <= 0xe007f:
		return true
	case r == 0x200b || r == 0x2060 || r == 0x00ad || r == 0x3164 || r == 0x115f || r == 0x1160:
		return true
	}
	return unicode.Is(unicode.Cc, r) && r != '\t' && r != '\f' && r != '\r' && r != 0x1b
}

func hiddenText(e *Evidence, f *found) {
	for i := range e.Changed {
		c := &e.Changed[i]
		if misled := strings.IndexFunc(c.Path, misleading); misled >= 0 {
			r, _ := utf8.DecodeRuneInString(c.Path[misled:])
			f.at(c.Path, 0, "its name has the character %U", r)
		}
		after := e.after(c)
		if !text(after) || !utf8.Valid(after) || bytes.IndexFunc(after, misleading) < 0 {
			continue
		}
		for _, l := range added(e.before(c), after) {
			if at := strings.IndexFunc(l.text, misleading); at >= 0 {
				r, _ := utf8.DecodeRuneInString(l.text[at:])
				f.at(c.Path, l.number, "character %U", r)
			}
		}
	}
}
