package terminal

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// What a killed program left switched on in the terminal is switched off, and nothing else
// is told to it.
func TestX36TerminalIsLeftAsItWas(t *testing.T) {
	for _, c := range []struct{ name, said, back string }{
		{"nothing", "hello \x1b[1mbold\x1b[0m\r\n", ""},
		{"an editor that ended", "\x1b[?1049h\x1b[?25l\x1b[?2004htext\x1b[?2004l\x1b[?25h\x1b[?1049l", ""},
		{"an editor that was killed", "\x1b[?1049h\x1b[22;0;0t\x1b[?1h\x1b=\x1b[?25ltext", "\x1b[?1049l\x1b[?25h\x1b[?1l\x1b>\x1b[0m"},
		{"mouse", "\x1b[?1002;1006h", "\x1b[?1006l\x1b[?1002l\x1b[0m"},
		{"kitty's keys", "\x1b[>1u\x1b[>3u\x1b[<u", "\x1b[<1u\x1b[0m"},
		{"kitty's keys, given back", "\x1b[>1u\x1b[<1u", ""},
		{"a reset", "\x1b[?1049h\x1b=\x1bc", ""},
		{"an unknown mode", "\x1b[?12345h\x1b[?7l", ""},
		{"half a sequence", "\x1b[?1049", ""},
		{"no sequence", "\x1b[?" + string(make([]byte, 1000)) + "h\x1b[?25l", "\x1b[?25h\x1b[0m"},
	} {
		m := &Modes{}
		m.Write([]byte(c.said))
		if got := m.TakeBack(); got != c.back {
			t.Errorf("%s: %q, want %q", c.name, got, c.back)
		}
		pieces := &Modes{}
		for i := range c.said {
			pieces.Write([]byte(c.said[i : i+1]))
		}
		if got := pieces.TakeBack(); got != c.back {
			t.Errorf("%s, byte by byte: %q, want %q", c.name, got, c.back)
		}
	}
}

// Taking back takes back: after it nothing is left, whatever was said.
func TestX36TakingBackIsWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &Modes{}
		said := rapid.SliceOf(rapid.OneOf(
			rapid.SampledFrom([]string{"\x1b[>1u", "\x1b[<u", "\x1b[?1049h", "\x1b[?25l", "\x1b[?1002;2004h", "\x1b[?1l", "\x1b[!p", "\x1b="}),
			rapid.StringOfN(rapid.RuneFrom([]rune("\x1b[[??;0124579><=uhlpc!")), 1, 12, -1),
		)).Draw(t, "said")
		m.Write([]byte(strings.Join(said, "")))
		m.Write([]byte("\x1b[m")) // the end of a sequence that is open
		m.Write([]byte(m.TakeBack()))
		if left := m.TakeBack(); left != "" {
			t.Fatalf("%q is left", left)
		}
	})
}
