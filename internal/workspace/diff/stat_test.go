package diff

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

func statOf(t testing.TB, d *Diff, opt TextOptions) string {
	t.Helper()
	var b bytes.Buffer
	if err := d.Stat(context.Background(), &b, opt); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// gitStat asks git for the same table.
func gitStat(t testing.TB, a, b wt.Model, width int) string {
	t.Helper()
	dir := cloneOf(t, a)
	run := func(args ...string) string {
		out, err := runGit(t, dir, nil, args...)
		if err != nil {
			t.Fatalf("git %v: %s", args, out)
		}
		return out
	}
	run("add", "-A", ".")
	run("commit", "-qm", "a", "--allow-empty")
	run("rm", "-rqf", "--ignore-unmatch", ".")
	b.Write(t, dir)
	run("add", "-A", ".")
	return run("-c", "core.quotePath=false", "diff", "--cached", "-M", "--patience", fmt.Sprintf("--stat=%d", width), "HEAD")
}

// The table is git's, but for the remark on modes.
func TestStatLikeGit(t *testing.T) {
	long := strings.Repeat("a line\n", 400)
	deep := "a/very/deep/folder/with/many/parts/and/a/long/name/at/its/end/file.txt"
	a := wt.Model{"keep": wt.Plain("1\n"), "small": wt.Plain("1\n2\n3\n"), "big": wt.Plain(long), "gone": wt.Plain("x\ny\n"), "bin": wt.Plain("\x00abc"),
		"mode": wt.Plain("1\n"), "src/old/name.go": wt.Plain(long + "z\n"), deep: wt.Plain("1\n"), "only/moved": wt.Plain(long + "q\n"), "d/typ": wt.Plain("a\n"), "bin2": wt.Plain("\x00")}
	b := wt.Model{"keep": wt.Plain("1\n"), "small": wt.Plain("1\nnew\n3\n"), "big": wt.Plain("other\n" + strings.Repeat("b line\n", 130)), "new": wt.Plain("1\n2\n"),
		"bin": wt.Plain("\x00abcdefghijklmn"), "mode": wt.Script("1\n"), "src/new/name.go": wt.Plain(long + "y\n"), deep: wt.Plain("2\n"), "moved/only/moved": wt.Plain(long + "q\n"),
		"d/typ": wt.Link("x"), "empty": wt.Plain("")}
	plainA, plainB := a.With("mode", wt.Plain("1\n")), b.With("mode", wt.Plain("1\n")).With("d/typ", wt.Plain("b\n"))
	delete(plainB, "empty")
	for _, width := range []int{40, 60, 80, 200} {
		got := statOf(t, mustCompare(t, plainA.Side(t, nil), plainB.Side(t, nil), Options{}), TextOptions{Width: width})
		if diff := cmp.Diff(gitStat(t, plainA, plainB, width), got); diff != "" {
			t.Errorf("width %d:\n%s", width, diff)
		}
	}
	for _, width := range []int{30, 60, 80, 200} {
		got := statOf(t, mustCompare(t, a.Side(t, nil), b.Side(t, nil), Options{}), TextOptions{Width: width})
		got = regexp.MustCompile(` \(mode [+-][xl]\)`).ReplaceAllStringFunc(got, func(s string) string { return strings.Repeat(" ", 0) })
		want := gitStat(t, a, b, width)
		if width >= 80 && squeeze(got) != squeeze(want) {
			t.Errorf("width %d:\n%s\ngit:\n%s", width, got, want)
		}
		for _, l := range strings.Split(got, "\n") {
			if columns(l) > max(width, 30)+12 && !strings.Contains(l, "changed") && !strings.Contains(l, "Bin") {
				t.Errorf("width %d: %d columns in %q", width, columns(l), l)
			}
		}
	}
}

// A binary file and little text: "Bin" needs three columns.
func TestStatOfBinaryLikeGit(t *testing.T) {
	a, b := wt.Model{"bin": wt.Plain("\x00"), "a": wt.Plain("1\n")}, wt.Model{"bin": wt.Plain("\x00\x00"), "a": wt.Plain("2\n")}
	got := statOf(t, mustCompare(t, a.Side(t, nil), b.Side(t, nil), Options{}), TextOptions{})
	if diff := cmp.Diff(gitStat(t, a, b, 80), got); diff != "" {
		t.Error(diff)
	}
}

// squeeze takes the padding out.
func squeeze(s string) string { return regexp.MustCompile(` +`).ReplaceAllString(s, " ") }

// Of random changes the numbers are git's. Names stay plain, as git and we
// quote renames differently.
func TestStatNumbersLikeGit(t *testing.T) {
	t.Parallel()
	for seed := range 25 {
		r := rand.New(rand.NewSource(int64(seed)))
		a := wt.Model{}
		for i := range 8 {
			a[fmt.Sprintf("d%d/f%d", i%3, i)] = wt.Plain(strings.ReplaceAll(wt.RandomText(r), "\x00", ""))
		}
		b := wt.Model{}
		for p, f := range a {
			switch r.Intn(4) {
			case 0:
				f.Text = wt.EditLines(r, f.Text)
			case 1:
				f.Mode = 0o755
			case 2:
				continue
			}
			b[p] = f
		}
		got := statOf(t, mustCompare(t, a.Side(t, nil), b.Side(t, nil), Options{}), TextOptions{})
		want := gitStat(t, a, b, 80)
		if lines := strings.Split(strings.TrimSpace(got), "\n"); len(lines) > 0 && !strings.Contains(want, lines[len(lines)-1]) {
			t.Errorf("seed %d:\n%s\ngit:\n%s", seed, got, want)
		}
	}
}

func TestStatDetails(t *testing.T) {
	a := wt.Model{"run": wt.Plain("1\n"), "to": wt.Plain("1\n"), "evil\x1b[2J": wt.Plain("1\n")}
	b := wt.Model{"run": wt.Script("1\n"), "to": wt.Link("x"), "evil\x1b[2J": wt.Plain("2\n"), "node_modules/a/b.js": wt.Plain("1\n"), "node_modules/c.js": wt.Plain("1\n"), "x.log": wt.Plain("1\n")}
	ignored := func(p string, dir bool) bool {
		return p == "x.log" || p == "node_modules" || strings.HasPrefix(p, "node_modules/")
	}
	d := mustCompare(t, a.Side(t, nil), b.Side(t, nil), Options{Ignored: ignored})
	s := statOf(t, d, TextOptions{Colour: true})
	for _, want := range []string{"run (mode +x) | 0\n", "to (mode +l)  | 2 ", colourGreen + "+" + colourReset + colourRed + "-" + colourReset,
		`evil\033[2J`, " + 3 ignored files (node_modules, x.log)\n", " 3 files changed, 2 insertions(+), 2 deletions(-)\n"} {
		if !strings.Contains(s, want) {
			t.Errorf("no %q in\n%s", want, s)
		}
	}
	if d.Ignored.Count != 3 || len(d.Files) != 3 {
		t.Errorf("%+v, %d files", d.Ignored, len(d.Files))
	}
	if got := (IgnoredFiles{Count: 1204, Folders: []string{"node_modules", "target"}}).String(); got != "1,204 ignored files (node_modules, target)" {
		t.Error(got)
	}
	if got := statOf(t, mustCompare(t, a.Side(t, nil), a.Side(t, nil), Options{}), TextOptions{}); got != "" {
		t.Errorf("no change gives %q", got)
	}
}

func TestRenameName(t *testing.T) {
	for _, c := range [][3]string{
		{"a/b/c", "a/x/c", "a/{b => x}/c"}, {"a", "b", "a => b"}, {"a/b/c", "a/c", "a/{b => }/c"},
		{"a/c", "a/b/c", "a/{ => b}/c"}, {"x/c", "y/c", "{x => y}/c"}, {"a/x", "a/y", "a/{x => y}"},
		{"a/a/a", "a/a", "a/{a => }/a"}, {"a\t", "b", `"a\t" => b`},
	} {
		if got := renameName(c[0], c[1]); got != c[2] {
			t.Errorf("%s to %s is %q, want %q", c[0], c[1], got, c[2])
		}
	}
}
