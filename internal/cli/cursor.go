package cli

import (
	"io"
	"os"
	"sync"

	"golang.org/x/term"
)

// cursor tracks whether the output on standard error ends within a line, which a command may
// have begun. Messages of pando start on a new line.
type cursor struct {
	mu  sync.Mutex // guards the fields below
	mid bool
	raw bool   // the terminal is in raw mode: line ends need a carriage return
	esc escape // position of the output within a control sequence
}

type escape int

const (
	noEscape   escape = iota
	escapeHas         // after the escape character
	escapeCSI         // until a letter
	escapeText        // a title, for example: until BEL or another escape
)

// Write implements io.Writer. It tracks the output of a command; control sequences and carriage
// returns do not change the line's state.
func (c *cursor) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range b {
		switch {
		case x == 0x1b:
			c.esc = escapeHas
		case c.esc == escapeHas:
			switch x {
			case '[':
				c.esc = escapeCSI
			case ']', 'P', 'X', '^', '_':
				c.esc = escapeText
			default:
				c.esc = noEscape
			}
		case c.esc == escapeCSI && x >= 0x20:
			if x >= 0x40 {
				c.esc = noEscape
			}
		case c.esc == escapeText && x != '\n':
			if x == 0x07 {
				c.esc = noEscape
			}
		case x == '\n':
			c.mid, c.esc = false, noEscape
		case x >= ' ' || x == '\t':
			c.mid = true
		}
	}
	return len(b), nil
}

// setRaw says whether the terminal is in raw mode.
func (c *cursor) setRaw(raw bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw = raw
}

// eol returns the end of a line. The caller holds mu.
func (c *cursor) eol() string {
	if c.raw {
		return "\r\n"
	}
	return "\n"
}

// end returns the text that ends the line which a command began on standard error.
func (c *cursor) end() (s string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mid {
		s = c.eol()
	}
	c.mid = false
	return s
}

// line returns text as a line of its own.
func (c *cursor) line(text string) string {
	end := c.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	return end + text + c.eol()
}

// followed returns w for the output of commands. It tracks the output if w is the same place as
// standard error.
func (a *app) followed(w io.Writer) io.Writer {
	if w == a.stderr || samePlace(w, a.stderr) {
		return io.MultiWriter(w, &a.cursor)
	}
	return w
}

// samePlace reports whether two writers are one file, or a terminal each.
func samePlace(a, b io.Writer) bool {
	x, isFile := fileOf(a)
	y, areFiles := fileOf(b)
	if !isFile || !areFiles {
		return false
	}
	if term.IsTerminal(int(x.Fd())) && term.IsTerminal(int(y.Fd())) {
		return true
	}
	sx, errX := x.Stat()
	sy, errY := y.Stat()
	return errX == nil && errY == nil && os.SameFile(sx, sy)
}
