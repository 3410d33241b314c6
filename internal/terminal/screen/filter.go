package screen

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pando-dev/pando/internal/terminal"
)

// maxPen bounds what is kept of attributes that were set one after the other, in bytes.
const maxPen = 256

// largest bounds the numbers in a control sequence: no screen is larger, and a sequence
// that repeats something costs no more than a line or two of text.
const largest = 1000

// filter reduces what a program writes to what the emulator has to see. Strings (titles,
// hyperlinks, images, the clipboard), questions to the terminal, what selects how keys and
// the mouse are reported, and characters that are no UTF-8 stay out: they do not change
// what is on the screen, and some have no bound or would be answered. Numbers are bounded.
//
// The alternate screen is entered with enterAlt and left with leaveAlt, whichever of
// xterm's modes was used.
type filter struct {
	out   []byte // what passed
	state state
	seq   []byte // of a sequence under way, behind the escape or ESC [
	char  []byte // of a character under way

	pen      []byte // the sequences that made the attributes of what is written next
	region   string // the sequence that set the scroll region; "": the whole screen
	charsets [2]byte
	shifted  bool // the second character set is in use
}

const (
	enterAlt = "\x1b[?1049h"
	leaveAlt = "\x1b[?1049l"
)

type state int

const (
	inText   state = iota
	inEscape       // behind the escape
	inCSI          // up to a letter
	inString       // up to BEL or an escape
)

func (f *filter) write(b []byte) {
	for _, c := range b {
		switch f.state {
		case inText:
			f.text(c)
		case inEscape:
			f.escape(c)
		case inCSI:
			f.control(c)
		case inString:
			switch c {
			case 0x07, 0x18, 0x1a: // BEL, CAN, SUB
				f.state = inText
			case 0x1b:
				f.state, f.seq = inEscape, f.seq[:0]
			}
		}
	}
}

func (f *filter) text(c byte) {
	if len(f.char) > 0 || c >= utf8.RuneSelf {
		f.rune(c)
		return
	}
	switch {
	case c == 0x1b:
		f.state, f.seq = inEscape, f.seq[:0]
	case c == 0x0e || c == 0x0f: // SO, SI
		f.shifted = c == 0x0e
		f.out = append(f.out, c)
	case c >= ' ' && c < 0x7f, c >= '\b' && c <= '\r':
		f.out = append(f.out, c)
	}
}

// rune takes a byte of a character of several.
func (f *filter) rune(c byte) {
	if c < utf8.RuneSelf || len(f.char) > 0 && utf8.RuneStart(c) { // the one before was cut short
		f.char = f.char[:0]
		f.text(c)
		return
	}
	f.char = append(f.char, c)
	if !utf8.FullRune(f.char) {
		return
	}
	if r, n := utf8.DecodeRune(f.char); r >= 0xa0 && n == len(f.char) && r != utf8.RuneError {
		f.out = append(f.out, f.char...)
	}
	f.char = f.char[:0]
}

func (f *filter) escape(c byte) {
	switch {
	case c == 0x1b:
		f.seq = f.seq[:0]
	case c == 0x18 || c == 0x1a:
		f.state = inText
	case len(f.seq) == 0 && c == '[':
		f.state = inCSI
	case len(f.seq) == 0 && strings.IndexByte("]PX^_k", c) >= 0:
		f.state = inString
	case c >= 0x20 && c <= 0x2f:
		if len(f.seq) < terminal.MaxSequence {
			f.seq = append(f.seq, c)
		}
	case c >= 0x30 && c <= 0x7e:
		f.state = inText
		f.escaped(append(f.seq, c))
	}
}

// escaped takes a whole sequence that is no control sequence.
func (f *filter) escaped(seq []byte) {
	switch {
	case len(seq) == 2 && (seq[0] == '(' || seq[0] == ')') && strings.IndexByte("0AB", seq[1]) >= 0:
		f.charsets[seq[0]-'('] = seq[1]
	case string(seq) == "E": // next line
		f.out = append(f.out, "\r\n"...)
		return
	case string(seq) == "c":
		f.out = append(f.out, leaveAlt...)
		f.pen, f.region, f.charsets, f.shifted = f.pen[:0], "", [2]byte{}, false
	case len(seq) != 1 || strings.IndexByte("78DMH", seq[0]) < 0:
		return
	}
	f.out = append(append(f.out, 0x1b), seq...)
}

func (f *filter) control(c byte) {
	switch {
	case c == 0x1b:
		f.state, f.seq = inEscape, f.seq[:0]
	case c == 0x18 || c == 0x1a:
		f.state = inText
	case c >= 0x40 && c <= 0x7e:
		f.state = inText
		if len(f.seq) < 2*terminal.MaxSequence {
			f.controlled(string(f.seq), c)
		}
	case c >= 0x20 && len(f.seq) < 2*terminal.MaxSequence:
		f.seq = append(f.seq, c)
	}
}

// controlled takes a whole control sequence: its parameters and its last byte.
func (f *filter) controlled(params string, last byte) {
	if private, is := strings.CutPrefix(params, "?"); is && (last == 'h' || last == 'l') {
		for p := range strings.SplitSeq(private, ";") {
			f.mode(p, last)
		}
		return
	}
	if params == "!" && last == 'p' { // soft reset
		f.pen, f.region, f.charsets, f.shifted = f.pen[:0], "", [2]byte{}, false
		f.out = append(f.out, "\x1b7\x1b[?6l\x1b[?7h\x1b[r\x1b8\x1b[m\x1b(B\x0f"...)
		return
	}
	if strings.TrimLeft(params, "0123456789:;") != "" || strings.IndexByte("@ABCDEFGHIJKLMPSTXZ`abdefgmrsu", last) < 0 {
		return
	}
	seq := "\x1b[" + bounded(params) + string(last)
	switch last {
	case 'm':
		if len(f.pen)+len(seq) > maxPen || params == "" || params == "0" || strings.HasPrefix(params, "0;") {
			f.pen = f.pen[:0]
		}
		f.pen = append(f.pen, seq...)
	case 'r':
		f.region = seq
	}
	f.out = append(f.out, seq...)
}

// mode passes on the private modes that decide where text goes.
func (f *filter) mode(p string, last byte) {
	switch p {
	case "6", "7", "69":
		f.out = append(append(append(f.out, "\x1b[?"...), p...), last)
	case "47", "1047", "1049":
		if last == 'h' {
			f.out = append(f.out, enterAlt...)
		} else {
			f.out = append(f.out, leaveAlt...)
		}
	case "1048":
		f.out = append(f.out, 0x1b, map[byte]byte{'h': '7', 'l': '8'}[last])
	}
}

// bounded is params with no number above largest.
func bounded(params string) string {
	var b strings.Builder
	for len(params) > 0 {
		i := strings.IndexAny(params, ":;")
		if i < 0 {
			i = len(params)
		}
		n := strings.TrimLeft(params[:i], "0")
		switch {
		case n == "" && i > 0:
			n = "0"
		case len(n) > 3:
			n = strconv.Itoa(largest)
		}
		b.WriteString(n)
		if i < len(params) {
			b.WriteByte(params[i])
			i++
		}
		params = params[i:]
	}
	return b.String()
}
