package diff

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// TextOptions configure Text and Stat.
type TextOptions struct {
	Colour bool
	Width  int // of the terminal in columns, for Stat; 0 is 80
}

// The colours of git diff.
const (
	colourBold  = "\x1b[1m"
	colourCyan  = "\x1b[36m"
	colourRed   = "\x1b[31m"
	colourGreen = "\x1b[32m"
	colourReset = "\x1b[m"
)

// Text writes d as a unified diff for people. Bytes of names and contents that could control a
// terminal or change the direction of text are escaped. So the output is no patch; Patch writes
// one.
func (d *Diff) Text(ctx context.Context, w io.Writer, opt TextOptions) error {
	t := &texter{ctx: ctx, d: d, w: bufio.NewWriter(w), colour: opt.Colour}
	if err := d.each(t.file); err != nil {
		return err
	}
	if s := d.Ignored.String(); s != "" {
		t.line("", "+ "+s)
	}
	return t.w.Flush()
}

type texter struct {
	ctx    context.Context
	d      *Diff
	w      *bufio.Writer
	colour bool
}

// line writes one line of safe text.
func (t *texter) line(colour, text string) {
	if t.colour && colour != "" {
		t.w.WriteString(colour)
		t.w.WriteString(text)
		text = colourReset
	}
	t.w.WriteString(text)
	t.w.WriteByte('\n')
}

func (t *texter) file(c *FileChange) error {
	for _, l := range headLines(c, false) {
		t.line(colourBold, l)
	}
	if c.old != nil && c.new != nil && c.OldDigest == c.NewDigest {
		return nil
	}
	f, err := t.d.load(t.ctx, c)
	if err != nil {
		return err
	}
	if !f.text {
		what := "Binary files"
		if f.large {
			what = "Files too large to be shown"
		}
		from, to := fileLines(c, false)
		t.line("", fmt.Sprintf("%s: %s and %s differ", what, strings.TrimSpace(from[4:]), strings.TrimSpace(to[4:])))
		return nil
	}
	if f.old == "" && f.new == "" {
		return nil
	}
	from, to := fileLines(c, false)
	t.line(colourBold, strings.TrimSuffix(from, "\t"))
	t.line(colourBold, strings.TrimSuffix(to, "\t"))
	return writeHunks(f.a, f.b, diffLines(f.a, f.b), func(kind byte, text string) error {
		if t.ctx.Err() != nil {
			return context.Cause(t.ctx)
		}
		switch kind {
		case '@':
			end := strings.Index(text[2:], "@@") + 4
			name := visible(text[end:])
			if t.colour {
				text, name = colourCyan+text[:end]+colourReset+name, ""
				end = len(text)
			}
			t.line("", text[:end]+name)
		case '-':
			t.line(colourRed, "-"+visible(text))
		case '+':
			t.line(colourGreen, "+"+visible(text))
		default:
			t.line("", string(kind)+visible(text))
		}
		return nil
	})
}

// contextLines is the number of unchanged lines around a change.
const contextLines = 3

// writeHunks gives the lines of a unified diff to emit: kind is '@' for a
// hunk's header, ' ', '-' or '+' for a line, and '\\' for the remark that a
// line has no newline. Text comes without kind and newline.
func writeHunks(a, b []string, edits []edit, emit func(kind byte, text string) error) error {
	fn := functionNames{lines: a}
	for len(edits) > 0 {
		n := 1
		for n < len(edits) && edits[n].a0-edits[n-1].a1 <= 2*contextLines {
			n++
		}
		if err := writeHunk(a, b, edits[:n], &fn, emit); err != nil {
			return err
		}
		edits = edits[n:]
	}
	return nil
}

func writeHunk(a, b []string, edits []edit, fn *functionNames, emit func(byte, string) error) error {
	first, last := edits[0], edits[len(edits)-1]
	lead := min(contextLines, first.a0)
	trail := min(contextLines, len(a)-last.a1)
	a0, a1, b0, b1 := first.a0-lead, last.a1+trail, first.b0-lead, last.b1+trail
	head := fmt.Sprintf("@@ -%s +%s @@", lineRange(a0, a1), lineRange(b0, b1))
	if name := fn.before(a0); name != "" {
		head += " " + name
	}
	if err := emit('@', head); err != nil {
		return err
	}
	lines := func(kind byte, ls []string) error {
		for _, l := range ls {
			text, whole := strings.CutSuffix(l, "\n")
			if err := emit(kind, text); err != nil {
				return err
			}
			if !whole {
				if err := emit('\\', " No newline at end of file"); err != nil {
					return err
				}
			}
		}
		return nil
	}
	at := a0
	for _, e := range edits {
		if err := lines(' ', a[at:e.a0]); err != nil {
			return err
		}
		if err := lines('-', a[e.a0:e.a1]); err != nil {
			return err
		}
		if err := lines('+', b[e.b0:e.b1]); err != nil {
			return err
		}
		at = e.a1
	}
	return lines(' ', a[at:a1])
}

// lineRange writes lines from:to as a hunk's header does: an empty range
// names the line before it.
func lineRange(from, to int) string {
	switch to - from {
	case 0:
		return fmt.Sprintf("%d,0", from)
	case 1:
		return fmt.Sprintf("%d", from+1)
	}
	return fmt.Sprintf("%d,%d", from+1, to-from)
}

// functionNames finds the line that a hunk's header quotes: git's default is
// the last line before it that begins with a letter, '_' or '$'.
type functionNames struct {
	lines []string
	next  int
	last  string
}

func (f *functionNames) before(line int) string {
	for i := line - 1; i >= f.next; i-- {
		l := f.lines[i]
		if c := l[0]; c == '_' || c == '$' || ('a' <= c|0x20 && c|0x20 <= 'z') {
			n := min(len(l), 80)
			for n < len(l) && !utf8.RuneStart(l[n]) {
				n--
			}
			f.last = strings.TrimRight(l[:n], " \t\r\n")
			break
		}
	}
	f.next = max(f.next, line)
	return f.last
}
