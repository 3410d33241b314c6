// Package terminal follows which of a terminal's modes a program switched on, so that they can
// be taken back.
package terminal

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Modes follows what a program tells a terminal, and knows how to take back what it left
// switched on: a program that was killed in the alternate screen leaves it there, with
// its mouse and a hidden cursor. Sequences are those of xterm (ctlseqs, "Private Mode
// Set", "Set/reset key modifier options") and of kitty's keyboard protocol. The zero value
// is a terminal as it usually is.
type Modes struct {
	seq    []byte       // of a sequence under way, from the escape on
	on     map[int]bool // private modes that differ from usual
	keypad bool         // application keypad
	keys   []string     // the flags on kitty's stack
	other  string       // xterm's modifyOtherKeys; "": as usual
}

// maxKeys bounds kitty's stack, as kitty does.
const maxKeys = 16

// leftOver are the private modes that are taken back, with what they usually are. What
// people set themselves in their own terminal (its colours, say) is none of ours.
var leftOver = map[int]bool{
	1: false, 9: false, 25: true, 47: false, 66: false, 1000: false, 1001: false, 1002: false, 1003: false, 1004: false, 1005: false, 1006: false,
	1015: false, 1016: false, 1047: false, 1049: false, 2004: false, 2026: false,
}

// MaxSequence bounds what is kept of a sequence: a longer one is none of these.
const MaxSequence = 64

// Write implements io.Writer. It never fails.
func (m *Modes) Write(b []byte) (int, error) {
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
				m.on, m.keys, m.other = nil, nil, ""
			}
			m.seq = m.seq[:0]
		case c >= 0x40 && c <= 0x7e:
			m.sequence(string(m.seq[2:]), c)
			m.seq = m.seq[:0]
		case len(m.seq) < MaxSequence:
			m.seq = append(m.seq, c)
		default:
			m.seq = m.seq[:0]
		}
	}
	return len(b), nil
}

// sequence takes a whole control sequence: its parameters and its last byte.
func (m *Modes) sequence(params string, last byte) {
	private, is := strings.CutPrefix(params, "?")
	switch {
	case strings.Trim(strings.TrimLeft(params, "?<>!"), "0123456789;") != "": // no parameters that mean anything
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
		if len(m.keys) == maxKeys {
			m.keys = slices.Delete(m.keys, 0, 1)
		}
		m.keys = append(m.keys, params[1:])
	case strings.HasPrefix(params, "<") && last == 'u':
		n, err := strconv.Atoi(params[1:])
		if err != nil {
			n = 1
		}
		m.keys = m.keys[:max(0, len(m.keys)-max(n, 0))]
	case strings.HasPrefix(params, ">4") && last == 'm':
		m.other = strings.Trim(params[2:], ";")
		if m.other == "0" {
			m.other = ""
		}
	case params == "!" && last == 'p': // soft reset
		m.on, m.keypad = nil, false
	}
}

// TakeBack is what a terminal is told so that it is as it was.
func (m *Modes) TakeBack() string {
	var b strings.Builder
	if len(m.keys) > 0 {
		fmt.Fprintf(&b, "\x1b[<%du", len(m.keys))
	}
	if m.other != "" {
		b.WriteString("\x1b[>4m")
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

// Set is what brings a terminal that is as usual to these modes.
func (m *Modes) Set() string {
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(m.on)) {
		to := 'h'
		if leftOver[n] {
			to = 'l'
		}
		fmt.Fprintf(&b, "\x1b[?%d%c", n, to)
	}
	if m.keypad {
		b.WriteString("\x1b=")
	}
	if m.other != "" {
		fmt.Fprintf(&b, "\x1b[>4;%sm", m.other)
	}
	for _, flags := range m.keys {
		fmt.Fprintf(&b, "\x1b[>%su", flags)
	}
	return b.String()
}
