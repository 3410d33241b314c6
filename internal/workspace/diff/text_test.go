package diff

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// A hunk names the function before it, cut between two letters.
func TestHunkNamesFunction(t *testing.T) {
	f := functionNames{lines: []string{"func é" + strings.Repeat("x", 72) + "ééé\n", " indented\n", "$ shell\n", "\n"}}
	if got := f.before(2); got != "func é"+strings.Repeat("x", 72) {
		t.Errorf("%q", got)
	}
	if got := f.before(4); got != "$ shell" {
		t.Errorf("%q", got)
	}
}

func textOf(t testing.TB, d *Diff, colour bool) string {
	t.Helper()
	var b bytes.Buffer
	if err := d.Text(context.Background(), &b, TextOptions{Colour: colour}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// No content and no name reaches the terminal as a command.
func TestTextDrivesNoTerminal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		evil := rapid.SampledFrom([]string{"\x1b[2J", "\x1b]0;x\a", "\u009b31m", "\x9b", "\xc2", "\r", "\b", "\u202e", "\u2066", "\x7f", "é", "a", "\t", "\x00", "\u2028", "\U000e0041", "@@"})
		word := func(l string) string { return strings.Join(rapid.SliceOfN(evil, 1, 6).Draw(t, l), "") }
		name := strings.ReplaceAll(word("name"), "\x00", "") + "n"
		head := "func " + strings.ReplaceAll(word("fn"), "\x00", "") + "\n1\n2\n3\n4\n"
		a := wt.Model{name: wt.Plain(head + word("a"))}
		b := wt.Model{name: wt.Plain(head + word("b")), name + "2": wt.Plain(word("c"))}
		tt := &testing.T{}
		d := mustCompare(tt, a.Side(tt, nil), b.Side(tt, nil), Options{})
		for _, colour := range []bool{false, true} {
			out := textOf(tt, d, colour)
			for _, c := range []string{colourBold, colourCyan, colourRed, colourGreen, colourReset} {
				if colour {
					out = strings.ReplaceAll(out, c, "")
				}
			}
			out += statOf(tt, d, TextOptions{})
			for i, r := range out {
				if (r < ' ' && r != '\n' && r != '\t') || r == 0x7f || (r >= 0x80 && hidden(r)) || (r == '\ufffd') {
					t.Fatalf("%q at %d of %q", r, i, out)
				}
			}
		}
	})
}

func TestTextLooksLikeGit(t *testing.T) {
	a := wt.Model{"x.go": wt.Plain("func a() {\n\tx\n\ty\n\tz\n\tq\n}\n"), "bin": wt.Plain("\x00")}
	b := wt.Model{"x.go": wt.Plain("func a() {\n\tx\n\ty\n\tz\n\tq\x1b[0m\r\n}"), "bin": wt.Plain("\x00\x00"), "ign/x": wt.Plain("")}
	ignored := func(p string, dir bool) bool { return strings.HasPrefix(p, "ign") }
	d := mustCompare(t, a.Side(t, nil), b.Side(t, nil), Options{Ignored: ignored})
	const want = `<bold>diff --git a/bin b/bin<>
Binary files: a/bin and b/bin differ
<bold>diff --git a/x.go b/x.go<>
<bold>--- a/x.go<>
<bold>+++ b/x.go<>
<cyan>@@ -2,5 +2,5 @@<> func a() {
 	x
 	y
 	z
<red>-	q<>
<red>-}<>
<green>+	q^[[0m^M<>
<green>+}<>
\ No newline at end of file
+ 1 ignored file (ign)
`
	got := strings.NewReplacer(colourBold, "<bold>", colourCyan, "<cyan>", colourRed, "<red>", colourGreen, "<green>", colourReset, "<>").Replace(textOf(t, d, true))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
