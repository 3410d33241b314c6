package screen

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// shown is what a terminal has on its screen that is sent what s.Draw returns: line by line,
// without colours, and where its cursor is.
func shown(s *Screen) (lines []string, x, y int) {
	other := New(uint16(s.rows), uint16(s.cols))
	other.Write(s.Draw())
	return texts(other)
}

func texts(s *Screen) (lines []string, x, y int) {
	s.flush()
	x, y, text := s.content()
	text = regexp.MustCompile("\x1b\\[[0-9:;]*m").ReplaceAllString(text, "")
	for _, l := range strings.Split(text, "\n") {
		lines = append(lines, strings.TrimRight(l, " "))
	}
	return lines, x, y
}

// What is drawn for a client that attaches is what the program drew: text, cursor, alternate
// screen, modes, colours of what comes next.
func TestX39ScreenIsDrawnAgain(t *testing.T) {
	for _, c := range []struct {
		name, said string
		want       []string
		x, y       int
		drawn      []string // is in what is drawn
		not        []string
	}{
		{"lines", "one\r\ntwo\r\n", []string{"one", "two"}, 0, 2, nil, []string{enterAlt}},
		{"a full screen", "shell$ \x1b[?1049h\x1b[2J\x1b[2;3Hhere\x1b[?25l\x1b[?1000;1006h\x1b[?2004h", []string{"", "  here"}, 6, 1,
			[]string{"\x1b[?1049h", "\x1b[?25l", "\x1b[?1000h", "\x1b[?1006h", "\x1b[?2004h"}, []string{"shell"}},
		{"a full screen that was left", "shell$ \x1b[?1049hfull\x1b[?1049l", []string{"shell$"}, 7, 0, nil, []string{enterAlt, "full"}},
		{"the old alternate screen", "a\x1b[?47hb\x1b[?47lc", []string{"ac"}, 2, 0, nil, nil},
		{"wide characters", "日本\x1b[1;5Hx", []string{"日本x"}, 5, 0, nil, nil},
		{"a character with a mark", "e\u0301x", []string{"e\u0301x"}, 2, 0, nil, nil},
		{"scrolled", strings.Repeat("x\r\n", 30) + "end", append(repeated("x", 9), "end"), 3, 9, nil, nil},
		{"a scroll region", "\x1b[3;5r\x1b[3;1Ha\r\nb\r\nc\r\nd", []string{"", "", "b", "c", "d"}, 1, 4, []string{"\x1b[3;5r"}, nil},
		{"colours", "\x1b[1m\x1b[31mred\x1b[0m plain\x1b[44m", []string{"red plain"}, 9, 0, []string{"\x1b[0m\x1b[44m"}, nil},
		{"line drawing", "\x1b(0lqk\x1b(B", []string{"┌─┐"}, 3, 0, nil, nil},
		{"line drawing goes on", "\x1b(0lq", []string{"┌─"}, 2, 0, []string{"\x1b(0"}, nil},
		{"a title, a link and a question", "\x1b]0;title\x07\x1b]8;;https://x.example\x1b\\link\x1b]8;;\x1b\\\x1b[6n\x1b[c\x1b[>0q", []string{"link"}, 4, 0, nil, []string{"title", "x.example", "\x1b[6n", "\x1b[c"}},
		{"keys", "\x1b[>1u\x1b[>4;2m", nil, 0, 0, []string{"\x1b[>1u", "\x1b[>4;2m"}, nil},
		{"a reset", "\x1b[?1049h\x1b[?25lx\x1bcy", []string{"y"}, 1, 0, nil, []string{enterAlt, "\x1b[?25l"}},
		{"bytes that are no text", "a\xffb\x9d0;x\x07c\xc3", []string{"ab0;xc"}, 6, 0, nil, nil},
	} {
		for _, pieces := range []int{1, len(c.said)} {
			s := New(10, 40)
			for i := 0; i < len(c.said); i += max(len(c.said)/pieces, 1) {
				n := max(len(c.said)/pieces, 1)
				s.Write([]byte(c.said[i:min(i+n, len(c.said))]))
			}
			lines, x, y := shown(s)
			want := append(c.want[:len(c.want):len(c.want)], repeated("", 10-len(c.want))...)
			if strings.Join(lines, "\n") != strings.Join(want, "\n") || x != c.x || y != c.y {
				t.Errorf("%s, in %d pieces: the cursor is at %d, %d of\n%q", c.name, pieces, x, y, lines)
			}
			drawn := string(s.Draw())
			for _, has := range c.drawn {
				if !strings.Contains(drawn, has) {
					t.Errorf("%s: %q is not in what is drawn: %q", c.name, has, drawn)
				}
			}
			for _, has := range c.not {
				if strings.Contains(drawn, has) {
					t.Errorf("%s: %q is in what is drawn: %q", c.name, has, drawn)
				}
			}
		}
	}
}

func repeated(s string, n int) (out []string) {
	for range n {
		out = append(out, s)
	}
	return out
}

// What is drawn has no sequence but those of text, colours, cursor and modes, whatever was written.
func TestX39OnlyTextAndModesAreDrawn(t *testing.T) {
	allowed := regexp.MustCompile("^(\x1b\\[[0-9:;]*[mHrJ]|\x1b\\[\\?[0-9]+[hl]|\x1b\\[>[0-9;]*[mu]|\x1b[=()][0AB]?|\x0e|\n|[^\x00-\x1f\x7f\u0080-\u009f])*$")
	random := rand.New(rand.NewPCG(3, 9))
	alphabet := []string{"\x1b", "\x1b[", "\x1b]", "\x1bP", "\x1b_", "\x9b", "\x9d", "\u009b", "\u009d", "\u0090", "\x07", "\x1b\\", "?", ">", "=", "!", ";", "0", "9", "1049", "52", "c", "n", "t", "q", "h", "l", "u", "m", "r", "\r", "\n", "日", "\u0301", "\xff", "text", "\x18", "J", "b", "\x0e", "(0"}
	for range 300 {
		s := New(5, 20)
		var said bytes.Buffer
		for range 40 {
			said.WriteString(alphabet[random.IntN(len(alphabet))])
		}
		s.Write(said.Bytes())
		if drawn := s.Draw(); !allowed.Match(drawn) {
			t.Fatalf("of %q is drawn: %q", said.Bytes(), drawn)
		}
	}
}

// What a program writes has no way to a large screen, or to much memory or time.
func TestX39ScreenIsBounded(t *testing.T) {
	long := strings.Repeat("x", 1<<19)
	for name, said := range map[string]string{
		"a string without end": "\x1b]8;;https://" + long,
		"links":                strings.Repeat("\x1b]8;;https://"+long[:1<<10]+"\x07x\x1b]8;;\x07", 1<<10),
		"marks":                "e" + strings.Repeat("\u0301", 1<<19),
		"fewer marks":          "e" + strings.Repeat("\u0301", 20_000),
		"marks everywhere":     strings.Repeat("e"+strings.Repeat("\u0301", 100), 1<<12),
		"a repetition":         strings.Repeat("x\x1b[999999999b", 100),
		"tabs":                 strings.Repeat("\x1b[999999999I", 1<<10),
		"lines":                strings.Repeat("\x1b[999999999L\x1b[999999999S", 1<<10),
		"a long sequence":      "\x1b[" + strings.Repeat("1;", 1<<19) + "m",
		"attributes":           strings.Repeat("\x1b[1m", 1<<18),
		"kitty's stack":        strings.Repeat("\x1b[>1u", 1<<18),
		"the alternate screen": strings.Repeat("\x1b[?1049h\x1b[?1049l", 1<<15),
		"a scrolling one":      "\x1b[?1049h" + strings.Repeat("line\r\n", 1<<17),
	} {
		s := New(24, 80)
		calls := 0
		s.Now = func() time.Time { // emulating takes a second: it rests nine
			calls++
			return time.Unix(int64(calls), 0)
		}
		s.Write([]byte(said))
		drawn := s.Draw()
		if len(drawn) > 1<<20 {
			t.Errorf("%s: %d bytes are drawn", name, len(drawn))
		}
		if bytes.Contains(drawn, []byte(strings.Repeat("\u0301", 256))) {
			t.Errorf("%s: one place on the screen has more than 256 marks", name)
		}
		said, drawn = "", nil
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		size := cap(s.pending) + cap(s.filter.out) + cap(s.filter.seq) + cap(s.filter.pen)
		if s = nil; size > 4<<20 {
			t.Errorf("%s: %d bytes wait", name, size)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if held := int64(before.HeapAlloc) - int64(after.HeapAlloc); held > 24<<20 {
			t.Errorf("%s: the screen holds %d bytes", name, held)
		}
	}
	if s := New(65535, 65535); s.rows*s.cols > maxRows*maxCols {
		t.Errorf("a screen of %d by %d", s.rows, s.cols)
	}
}

// A program that writes faster than it is emulated is held back by a tenth at most: what has
// scrolled away is left out. Its last screen, and where it is drawn, are right all the same.
func TestX39FastProgramsLeaveTheirLastScreen(t *testing.T) {
	s := New(10, 40)
	at := time.Unix(0, 0)
	calls := 0
	s.Now = func() time.Time {
		calls++
		at = at.Add(time.Second) // so that emulating takes a second, and the rest nine
		return at
	}
	var b bytes.Buffer
	for i := range 100_000 {
		if i == 20_000 { // while nothing is emulated
			b.WriteString("\x1b[?1049h")
		}
		fmt.Fprintf(&b, "line %d\r\n", i)
		if b.Len() > 32<<10 {
			s.Write(b.Bytes())
			b.Reset()
		}
	}
	s.Write(b.Bytes())
	if len(s.pending) > maxPending+emulateAt {
		t.Errorf("%d bytes wait", len(s.pending))
	}
	lines, _, _ := shown(s)
	if lines[0] != "line 99991" || lines[8] != "line 99999" || !s.onAlt {
		t.Errorf("the last screen: %q, alternate %v", lines, s.onAlt)
	}
}

// The screen follows the size of the terminal.
func TestX39ScreenIsResized(t *testing.T) {
	s := New(10, 40)
	s.Write([]byte("here\x1b[10;38Hend"))
	s.Resize(5, 20)
	lines, x, y := shown(s)
	if len(lines) != 5 || lines[0] != "here" || x > 19 || y > 4 {
		t.Errorf("%q, the cursor at %d, %d", lines, x, y)
	}
	s.Write([]byte("\x1b[5;1Hlast\x1b[999;999Hx"))
	if lines, _, _ = shown(s); lines[4] != "last               x" {
		t.Errorf("%q", lines)
	}
}

func FuzzScreen(f *testing.F) {
	f.Add([]byte("\x1b[?1049h\x1b[2J\x1b[3;5Hhello\x1b[0m"), uint16(24), uint16(80))
	f.Add([]byte("\x1b(0lqk\x1b[5;3r\x1b[?6h\x1b[9b\x1b[L"), uint16(1), uint16(1))
	f.Fuzz(func(t *testing.T, said []byte, rows, cols uint16) {
		s := New(rows%50, cols%100)
		s.Write(said)
		s.Resize(cols%40, rows%60)
		s.Write(said)
		s.Draw()
	})
}
