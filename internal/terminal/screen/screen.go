// Package screen follows what a program writes to a terminal, and knows what is on its screen:
// for a client that attaches later, and for one that looks for a text there. What a program writes is not trusted: whatever it is, it
// costs no more than a bounded screen, and what is drawn of it holds text, colours and modes alone.
package screen

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/x/vt"

	"github.com/pando-dev/pando/internal/terminal"
)

const (
	// maxRows and maxCols bound the screen that is kept: of a larger terminal the upper
	// left part.
	maxRows, maxCols = 200, 320
	// emulateAt is how much text waits before some of it is emulated, in bytes: less waits for
	// more, or for the question what is on the screen.
	emulateAt = 64 << 10
	// maxPending is how much text waits at most. Of a program that writes faster than it is
	// emulated, the older half of it is left out: it has scrolled away.
	maxPending = 512 << 10
	// atOnce is how long text is emulated at once, and rest how long it is not afterwards, in
	// the time that it took: a program that writes without end costs a tenth of a processor, and
	// is held back by no more.
	atOnce = 20 * time.Millisecond
	rest   = 9
	// toDraw is how long text is emulated at most before the screen is drawn. If more of it
	// waits then, only the last lastText bytes follow.
	toDraw   = 300 * time.Millisecond
	lastText = 8 << 10
	// piece is how much the emulator gets at once. It ends a character with its marks at the
	// end of a piece, which bounds how much one place on the screen can hold.
	piece = 256
)

// A Screen follows what a program writes to its terminal, and knows what is on it. The
// emulator is charmbracelet/x/vt; what it gets was filtered, so that its time and memory
// are bounded whatever the program writes. When it panics its screen is lost, and nothing
// else. A Screen is not safe for concurrent use.
type Screen struct {
	Now func() time.Time // time.Now, but in tests

	modes   terminal.Modes
	filter  filter
	rows    int
	cols    int
	pending []byte // not yet emulated
	next    time.Time

	main, alt *vt.Emulator // nil: nothing came
	onAlt     bool
}

// New returns the screen of a terminal of this size; 0 is a usual one.
func New(rows, cols uint16) *Screen {
	s := &Screen{Now: time.Now}
	s.rows, s.cols = bounds(rows, cols)
	return s
}

func bounds(rows, cols uint16) (int, int) {
	if rows == 0 || cols == 0 {
		rows, cols = 24, 80
	}
	return min(int(rows), maxRows), min(int(cols), maxCols)
}

// Write implements io.Writer. It never fails.
func (s *Screen) Write(b []byte) (int, error) {
	s.modes.Write(b)
	for left := b; len(left) > 0; { // a filter makes a few bytes of one at most
		n := min(len(left), emulateAt)
		s.filter.write(left[:n])
		s.pending = append(s.pending, s.filter.out...)
		s.filter.out, left = s.filter.out[:0], left[n:]
		if len(s.pending) > maxPending {
			s.cut(maxPending / 2)
		}
	}
	if len(s.pending) < emulateAt {
		return len(b), nil
	}
	if began := s.Now(); !began.Before(s.next) {
		s.emulate(began.Add(atOnce))
		end := s.Now()
		s.next = end.Add(rest * end.Sub(began))
	}
	return len(b), nil
}

// cut leaves out what waits, but for the last bytes of it.
func (s *Screen) cut(keep int) {
	at := max(len(s.pending)-keep, 0)
	if i := bytes.IndexAny(s.pending[at:], "\n\x1b"); i >= 0 { // no sequence is across it
		at += i
	}
	gone := s.pending[:at]
	in, out := bytes.LastIndex(gone, []byte(enterAlt)), bytes.LastIndex(gone, []byte(leaveAlt))
	if in != out {
		s.turn(in > out)
	}
	s.pending = append(s.pending[:0], s.pending[at:]...)
}

// turn selects the main or the alternate screen. The alternate one is empty when it is entered.
func (s *Screen) turn(alt bool) {
	if alt && !s.onAlt {
		s.alt = nil
	}
	s.onAlt = alt
	if !alt {
		s.alt = nil
	}
}

// screen is the emulator of the screen that is selected.
func (s *Screen) screen() *vt.Emulator {
	at := &s.main
	if s.onAlt {
		at = &s.alt
	}
	if *at == nil {
		*at = vt.NewEmulator(s.cols, s.rows)
		(*at).SetScrollbackSize(1)
	}
	return *at
}

// emulate draws what waits, from its beginning, until a time.
func (s *Screen) emulate(until time.Time) {
	done := 0
	for done < len(s.pending) {
		b := s.pending[done:]
		n := min(piece, len(b))
		i := bytes.Index(b[:min(len(b), n+len(enterAlt))], []byte(enterAlt[:len(enterAlt)-1]))
		switch {
		case i == 0:
			n = len(enterAlt)
			s.turn(b[n-1] == 'h')
		case i > 0:
			n = min(n, i)
			fallthrough
		default:
			s.draw(b[:n])
		}
		if done += n; !s.Now().Before(until) {
			break
		}
	}
	s.pending = append(s.pending[:0], s.pending[done:]...)
}

func (s *Screen) draw(b []byte) {
	defer func() {
		if recover() != nil {
			s.main, s.alt = nil, nil
		}
	}()
	s.screen().Write(b)
}

// Resize changes the size of the terminal.
func (s *Screen) Resize(rows, cols uint16) {
	r, c := bounds(rows, cols)
	if r == s.rows && c == s.cols {
		return
	}
	s.flush()
	s.rows, s.cols, s.filter.region = r, c, ""
	defer func() {
		if recover() != nil {
			s.main, s.alt = nil, nil
		}
	}()
	for _, e := range []*vt.Emulator{s.main, s.alt} {
		if e != nil {
			e.Resize(c, r)
		}
	}
}

// flush draws all that waits, or, where that takes too long, the end of it.
func (s *Screen) flush() {
	s.emulate(s.Now().Add(toDraw))
	if len(s.pending) > lastText {
		s.cut(lastText)
	}
	for len(s.pending) > 0 {
		s.emulate(s.Now().Add(toDraw))
	}
}

// Draw is what a terminal as it usually is has to be sent so that it shows this screen,
// with its modes and its cursor. What the terminal showed before is scrolled up, unless the
// program uses the alternate screen.
func (s *Screen) Draw() []byte {
	s.flush()
	var b bytes.Buffer
	if !s.onAlt {
		b.WriteString("\x1b[999;1H" + strings.Repeat("\n", s.rows))
	}
	b.WriteString(s.modes.Set()) // which enters the alternate screen, too
	b.WriteString("\x1b[0m\x1b[H\x1b[2J\x1b[?7l")
	x, y, text := s.content()
	for i, line := range strings.Split(text, "\n") {
		if line != "" && i < s.rows {
			fmt.Fprintf(&b, "\x1b[%d;1H%s\x1b[0m", i+1, line)
		}
	}
	b.WriteString("\x1b[?7h")
	b.WriteString(s.filter.region)
	for i, c := range s.filter.charsets {
		if c != 0 && c != 'B' {
			b.Write([]byte{0x1b, "()"[i], c})
		}
	}
	if s.filter.shifted {
		b.WriteByte(0x0e)
	}
	fmt.Fprintf(&b, "\x1b[%d;%dH%s", y+1, x+1, s.filter.pen)
	return b.Bytes()
}

// Lines are the texts of the rows on the screen, from the first, without colours.
func (s *Screen) Lines() (lines []string) {
	defer func() {
		if recover() != nil {
			s.main, s.alt, lines = nil, nil, nil
		}
	}()
	s.flush()
	return strings.Split(s.screen().String(), "\n")
}

// content is what is on the screen, in lines with their colours, and where the cursor is.
func (s *Screen) content() (x, y int, text string) {
	defer func() {
		if recover() != nil {
			s.main, s.alt = nil, nil
			x, y, text = 0, 0, ""
		}
	}()
	e := s.screen()
	at := e.CursorPosition()
	return at.X, at.Y, e.Render()
}
