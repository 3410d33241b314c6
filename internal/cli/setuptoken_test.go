package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/terminal/screen"
)

const exampleToken = "sk-ant-oat01-aB3_dE6-gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hI6kL9nO2qR5tU8wX1zA4cD7fG0iJ3lM6oP9rS2uV5xY8aB1dE4-gH7jKAA"

// shownBy is how Claude Code 2.1.328 shows a token in a terminal of so many columns: it moves the cursor in
// place of spaces, and goes on below at the same column.
func shownBy(token string, cols int) string {
	const indent = 2
	var b strings.Builder
	b.WriteString("\x1b[38;5;114m\x1b[2GLong-lived\x1b[13Gauthentication\x1b[28Gtoken\x1b[34Gcreated\x1b[39m\r\r\n\r\r\n\x1b[2GYour\x1b[7GOAuth\x1b[13Gtoken:\r\r\n\r\r\n\x1b[38;5;220m")
	for len(token) > 0 {
		n := min(len(token), cols-indent)
		b.WriteString("\x1b[3G" + token[:n] + "\r\r\n")
		token = token[n:]
	}
	b.WriteString("\x1b[39m\r\r\n\x1b[2GStore\x1b[8Gthis\x1b[13Gtoken\x1b[19Gsecurely.\r\r\n")
	return b.String()
}

// A token that a program shows is found however it is wrapped and in whichever pieces it comes, and
// nothing of it is passed on.
func TestTokenIsFoundAndNotShown(t *testing.T) {
	t.Parallel()
	for _, cols := range []int{24, 80, 104, 110, 200} {
		for _, piece := range []int{1, 7, 4096} {
			var shown bytes.Buffer
			w := &tokenWatch{setup: agent.Setup{Begins: "sk-ant-oat", Least: 80}, scr: screen.New(24, uint16(cols))}
			w.to = &shown
			for b := []byte("Welcome\r\n" + strings.Repeat("=", cols) + "\r\n" + shownBy(exampleToken, cols)); len(b) > 0; {
				n := min(piece, len(b))
				w.Write(b[:n])
				b = b[n:]
			}
			if w.token != exampleToken {
				t.Errorf("%d columns, %d bytes at once: the token found is %q", cols, piece, w.token)
			}
			if s := shown.String(); strings.Contains(s, "oat01") || piece < 100 && !strings.Contains(s, "Welcome") {
				t.Errorf("%d columns, %d bytes at once: shown is %q", cols, piece, s)
			}
		}
	}
}

// What is drawn over an older screen is no part of the token, and what only begins as one is none.
func TestTokenAmongOtherText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text, want string }{
		{"text after it", "\x1b[2J\x1b[H" + exampleToken + " is it\r\nandmore", exampleToken},
		{"a row below at another column", "\x1b[2J\x1b[H  " + exampleToken + "\r\nandmore", exampleToken},
		{"a sentence below", "\x1b[2J\x1b[H" + exampleToken + "\r\nand more", exampleToken},
		{"too short", "\x1b[2J\x1b[Hsk-ant-oat01-abc", ""},
		{"drawn over rows", "\x1b[2J\x1b[H\r\nold\r\nolder\x1b[H" + exampleToken + "\x1b[2;1H\x1b[K", exampleToken},
	} {
		w := &tokenWatch{setup: agent.Setup{Begins: "sk-ant-oat", Least: 80}, scr: screen.New(24, 120)}
		w.to = &bytes.Buffer{}
		w.Write([]byte(c.text))
		if w.token != c.want || !w.seen {
			t.Errorf("%s: the token found is %q", c.name, w.token)
		}
	}
}
