package diff

import (
	"context"
	"strconv"
	"strings"
)

// Line is one line of a unified diff for people. What could control a terminal or change the direction of text is escaped.
type Line struct {
	Kind byte // '@': the head of a hunk; ' ', '-', '+': a line; '\\': the line before has no newline
	Text string
	Old  int // number of the line in the old file, from 1; 0: it is not there
	New  int // in the new one
}

// Why a file has no lines.
const (
	WhyBinary = "binary"
	WhyLarge  = "too large to be compared by line"
)

// Hunks returns the unified diff of one file, the first lines of it, and the number of further ones. A file that isn't
// compared by line has none, and why says so.
func (d *Diff) Hunks(ctx context.Context, c *FileChange, most int) (lines []Line, more int, why string, err error) {
	if c.old != nil && c.new != nil && c.OldDigest == c.NewDigest {
		return nil, 0, "", nil
	}
	f, err := d.load(ctx, c)
	switch {
	case err != nil:
		return nil, 0, "", err
	case f.large:
		return nil, 0, WhyLarge, nil
	case !f.text:
		return nil, 0, WhyBinary, nil
	}
	x, y := 0, 0 // the next lines
	err = writeHunks(f.a, f.b, diffLines(f.a, f.b), func(kind byte, text string) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		l := Line{Kind: kind}
		switch kind {
		case '@':
			x, y = firstOf(text, '-'), firstOf(text, '+')
		case '-':
			l.Old, x = x, x+1
		case '+':
			l.New, y = y, y+1
		case ' ':
			l.Old, l.New, x, y = x, y, x+1, y+1
		}
		if len(lines) == most {
			more++
			return nil
		}
		l.Text = visible(text)
		lines = append(lines, l)
		return nil
	})
	return lines, more, "", err
}

// firstOf reads the number after a sign in the head of a hunk: 3 in "@@ -3,7 +3,8 @@".
func firstOf(head string, sign byte) int {
	_, rest, _ := strings.Cut(head, " "+string(sign))
	end := strings.IndexAny(rest, ", ")
	if end < 0 {
		return 0
	}
	n, _ := strconv.Atoi(rest[:end])
	return n
}
