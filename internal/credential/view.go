package credential

import (
	"bytes"
	"math"
	"unicode/utf16"
	"unicode/utf8"
)

// An undo takes one kind of escape out of a stream of bytes: what is escaped is
// then as it was. It keeps what it needs to know across pieces, a few bytes.
type undo interface {
	// idle reports whether a text without special bytes would be left as it is.
	idle() bool
	// special are the bytes that something begins with.
	special() string
	// feed appends to out what a piece means.
	feed(out, piece []byte) []byte
}

// untouched reports whether a piece means itself.
func untouched(u undo, piece []byte) bool {
	return u.idle() && plain(piece, u.special()) == len(piece)
}

// plain is how many bytes at the beginning of a piece are none of special.
func plain(piece []byte, special string) int {
	n := math.MaxInt
	for i := range len(special) {
		if at := bytes.IndexByte(piece[:min(n, len(piece))], special[i]); at >= 0 {
			n = at
		}
	}
	return min(n, len(piece))
}

// colours undoes escape sequences of terminals (ECMA-48), which mean nothing.
type colours struct{ at int } // 0: text; 1: after ESC; 2: in parameters; 3: in intermediates

func (u *colours) idle() bool      { return u.at == 0 }
func (u *colours) special() string { return "\x1b" }

func (u *colours) feed(out, piece []byte) []byte {
	for i := 0; i < len(piece); i++ {
		if u.at == 0 {
			n := plain(piece[i:], "\x1b")
			out = append(out, piece[i:i+n]...)
			if i += n; i == len(piece) {
				break
			}
		}
		c := piece[i]
		switch {
		case c == 0x1b:
			u.at = 1
		case u.at == 1 && c == '[':
			u.at = 2
		case u.at == 2 && c >= 0x30 && c <= 0x3f:
		case c >= 0x20 && c <= 0x2f:
			u.at = 3
		case c >= 0x30 && c <= 0x7e:
			u.at = 0 // the sequence ends
		default: // it is none
			u.at = 0
			out = append(out, c)
		}
	}
	return out
}

// backslashes undoes escapes as in JSON, C, Python and shells.
type backslashes struct {
	seq  []byte // of an escape that is not complete
	high rune   // first half of a character in two escapes
}

func (u *backslashes) idle() bool      { return len(u.seq) == 0 && u.high == 0 }
func (u *backslashes) special() string { return "\\" }

func (u *backslashes) feed(out, piece []byte) []byte {
	for i := 0; i < len(piece); i++ {
		if len(u.seq) == 0 {
			n := plain(piece[i:], "\\")
			out = append(out, piece[i:i+n]...)
			if n > 0 {
				u.high = 0
			}
			if i += n; i < len(piece) {
				u.seq = append(u.seq, '\\')
			}
			continue
		}
		c := piece[i]
		u.seq = append(u.seq, c)
		if len(u.seq) == 2 && (c == 'u' || c == 'x') {
			continue
		}
		if len(u.seq) == 2 {
			u.seq = u.seq[:0]
			out = append(out, plainEscape(c)...)
			continue
		}
		want := 4 // \x41
		if u.seq[1] == 'u' {
			want = 6
		}
		if !isHex(c) { // it is no escape after all
			out = append(out, u.seq...)
			u.seq = u.seq[:0]
			continue
		}
		if len(u.seq) < want {
			continue
		}
		r := number(u.seq[2:])
		u.seq = u.seq[:0]
		switch {
		case want == 4:
			out = append(out, byte(r))
		case utf16.IsSurrogate(r) && u.high == 0:
			u.high = r
		case u.high != 0:
			out = utf8.AppendRune(out, utf16.DecodeRune(u.high, r))
			u.high = 0
		default:
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

func plainEscape(c byte) []byte {
	switch c {
	case 'n':
		return []byte{'\n'}
	case 'r':
		return []byte{'\r'}
	case 't':
		return []byte{'\t'}
	case 'b':
		return []byte{'\b'}
	case 'f':
		return []byte{'\f'}
	case 'e':
		return []byte{0x1b}
	case '\n':
		return nil
	}
	return []byte{c}
}

// percents undoes escapes as in URLs.
type percents struct{ seq []byte }

func (u *percents) idle() bool      { return len(u.seq) == 0 }
func (u *percents) special() string { return "%" }

func (u *percents) feed(out, piece []byte) []byte {
	for i := 0; i < len(piece); i++ {
		if len(u.seq) == 0 {
			n := plain(piece[i:], "%")
			out = append(out, piece[i:i+n]...)
			if i += n; i == len(piece) {
				break
			}
		}
		c := piece[i]
		switch {
		case len(u.seq) > 0 && isHex(c):
			if u.seq = append(u.seq, c); len(u.seq) == 3 {
				out = append(out, byte(number(u.seq[1:])))
				u.seq = u.seq[:0]
			}
		case c == '%':
			out = append(out, u.seq...)
			u.seq = append(u.seq[:0], c)
		default:
			out = append(append(out, u.seq...), c)
			u.seq = u.seq[:0]
		}
	}
	return out
}

// lines joins lines, without the spaces that indent the next.
type lines struct{ starting bool }

func (u *lines) idle() bool      { return !u.starting }
func (u *lines) special() string { return "\r\n" }

func (u *lines) feed(out, piece []byte) []byte {
	for i := 0; i < len(piece); i++ {
		if !u.starting {
			n := plain(piece[i:min(i+256, len(piece))], "\r\n")
			out = append(out, piece[i:i+n]...)
			if i += n; i == len(piece) {
				break
			}
			if n == 256 { // a long line: looked for in parts, or a far \n would be found again for each \r
				i--
				continue
			}
		}
		c := piece[i]
		switch {
		case c == '\n' || c == '\r':
			u.starting = true
		case u.starting && (c == ' ' || c == '\t'):
		default:
			u.starting = false
			out = append(out, c)
		}
	}
	return out
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f'
}

func number(digits []byte) (n rune) {
	for _, c := range digits {
		if c <= '9' {
			n = n<<4 | rune(c-'0')
		} else {
			n = n<<4 | rune(c|0x20-'a'+10)
		}
	}
	return n
}
