package cli

import (
	"errors"
	"io"
	"strings"
	"testing"

	"golang.org/x/term"
)

// pieces are reads of a terminal.
type pieces []string

func (p *pieces) Read(b []byte) (int, error) {
	if len(*p) == 0 {
		return 0, io.EOF
	}
	n := copy(b, (*p)[0])
	*p = (*p)[1:]
	return n, nil
}

// Ctrl-C drops the line that was begun, and nothing else.
func TestCtrlCDropsTheLine(t *testing.T) {
	for typed, want := range map[string]string{
		"half\x03":                      "^half",
		"half\x03|x\r":                  "^half x",
		"half\x03x\r":                   "^half x",
		"done\rhalf\x03x\ry\r":          "done ^half x y",
		"\x03\x03x\r":                   "^ ^ x",
		"a|b|\x03|c\r":                  "^ab c",
		"ab\x1b[D\x03x\r":               "^ab x", // after the left arrow
		"ab\x1b|\x03|x\r":               "^ab x", // after escape alone
		"ab\x1b[\x03x\r":                "^ab x",
		"\x1b[200~x\ry\x1b[201~\x03z\r": "x ^y z", // a paste
		"done\r\x03":                    "done ^",
		strings.Repeat("n", 200) + "|" + strings.Repeat("n", 200) + "\x03z\r": "^" + strings.Repeat("n", 400) + " z",
	} {
		p := pieces(strings.Split(typed, "|"))
		keys := &keyboard{in: &p}
		tm := term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{keys, io.Discard}, "")
		tm.SetSize(400, 24)
		var got []string
		for {
			line, err := tm.ReadLine()
			if err != nil && !errors.Is(err, term.ErrPasteIndicator) {
				break
			}
			if keys.interrupted {
				keys.interrupted = false
				line = "^" + line
			}
			got = append(got, line)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%q: %q, want %q", typed, s, want)
		}
	}
}
