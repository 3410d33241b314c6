package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// modes follows what a program tells a terminal, and knows how to take back what it left
// switched on: a program that was killed in the alternate screen leaves it there, with
// its mouse and a hidden cursor. Sequences are those of xterm (ctlseqs, "Private Mode
// Set") and of kitty's keyboard protocol.
type modes struct {
	seq    []byte       // of a sequence under way, from the escape on
	on     map[int]bool // private modes that differ from usual
	keypad bool         // application keypad
	keys   int          // how many sets of flags are on kitty's stack
}

// leftOver are the private modes that are taken back, with what they usually are. What
// people set themselves in their own terminal (its colours, say) is none of ours.
var leftOver = map[int]bool{
	1: false, 9: false, 25: true, 47: false, 66: false, 1000: false, 1001: false, 1002: false, 1003: false, 1004: false, 1005: false, 1006: false,
	1015: false, 1016: false, 1047: false, 1049: false, 2004: false, 2026: false,
}

// maxSequence bounds what is kept of a sequence: a longer one is none of these.
const maxSequence = 64

// Write implements io.Writer. It never fails.
func (m *modes) Write(b []byte) (int, error) {
	for _, c := range b {
		switch {
		case c == 0x1b:
			m.seq = append(m.seq[:0], c)
		case len(m.seq) == 0:
		case len(m.seq) == 1 && c == '[':
			m.seq = append(m.seq, c)
		case len(m.seq) == 1:
			switch c {
			case '=':
				m.keypad = true
			case '>', 'c': // c: everything is as usual
				m.keypad = false
			}
			if c == 'c' {
				m.on, m.keys = nil, 0
			}
			m.seq = m.seq[:0]
		case c >= 0x40 && c <= 0x7e:
			m.sequence(string(m.seq[2:]), c)
			m.seq = m.seq[:0]
		case len(m.seq) < maxSequence:
			m.seq = append(m.seq, c)
		default:
			m.seq = m.seq[:0]
		}
	}
	return len(b), nil
}

// sequence takes a whole control sequence: its parameters and its last byte.
func (m *modes) sequence(params string, last byte) {
	private, is := strings.CutPrefix(params, "?")
	switch {
	case is && (last == 'h' || last == 'l'):
		for _, p := range strings.Split(private, ";") {
			n, err := strconv.Atoi(p)
			usual, known := leftOver[n]
			if err != nil || !known {
				continue
			}
			if m.on == nil {
				m.on = map[int]bool{}
			}
			if m.on[n] = (last == 'h') != usual; !m.on[n] {
				delete(m.on, n)
			}
		}
	case strings.HasPrefix(params, ">") && last == 'u':
		m.keys++
	case strings.HasPrefix(params, "<") && last == 'u':
		n, err := strconv.Atoi(params[1:])
		if err != nil {
			n = 1
		}
		m.keys = max(0, m.keys-n)
	case params == "!" && last == 'p': // soft reset
		m.on, m.keypad = nil, false
	}
}

// takeBack is what a terminal is told so that it is as it was.
func (m *modes) takeBack() string {
	var b strings.Builder
	if m.keys > 0 {
		fmt.Fprintf(&b, "\x1b[<%du", m.keys)
	}
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(m.on))) {
		to := 'l'
		if leftOver[n] {
			to = 'h'
		}
		fmt.Fprintf(&b, "\x1b[?%d%c", n, to)
	}
	if m.keypad {
		b.WriteString("\x1b>")
	}
	if b.Len() > 0 {
		b.WriteString("\x1b[0m")
	}
	return b.String()
}
