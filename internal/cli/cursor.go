package cli

import (
	"io"
	"os"
	"sync"

	"golang.org/x/term"
)

// cursor knows whether what stands on standard error ends in the middle of a line: a
// command may have written the beginning of one. Lines of pando begin at a line's beginning.
type cursor struct {
	mu  sync.Mutex // guards what follows
	mid bool
	raw bool   // the terminal is in raw mode: a line ends with a carriage return, too
	esc escape // where in a control sequence the output is
}

type escape int

const (
	noEscape   escape = iota
	escapeHas         // behind the escape itself
	escapeCSI         // up to a letter
	escapeText        // a title, say: up to BEL or another escape
)

// Write implements io.Writer: it follows what a command writes. Control sequences and
// carriage returns leave the line as it is.
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

// setRaw says that the terminal is in raw mode, or is no longer.
func (c *cursor) setRaw(raw bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw = raw
}

// eol ends a line. The caller holds the lock.
func (c *cursor) eol() string {
	if c.raw {
		return "\r\n"
	}
	return "\n"
}

// end is what ends the line that a command has begun on standard error.
func (c *cursor) end() (s string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mid {
		s = c.eol()
	}
	c.mid = false
	return s
}

// line is text as a line of its own.
func (c *cursor) line(text string) string {
	end := c.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	return end + text + c.eol()
}

// followed is w for the output of commands, which is followed where it goes to the same
// place as standard error.
func (a *app) followed(w io.Writer) io.Writer {
	if w == a.stderr || samePlace(w, a.stderr) {
		return io.MultiWriter(w, &a.cursor)
	}
	return w
}

// samePlace reports whether two writers are one file, or a terminal each.
func samePlace(a, b io.Writer) bool {
	x, isFile := a.(*os.File)
	y, areFiles := b.(*os.File)
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
