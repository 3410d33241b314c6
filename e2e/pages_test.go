package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/testenv"
)

// A step is a command of a page, and what the page says that it prints.
type step struct {
	line    int
	command string
	prints  []string
}

// steps reads the blocks of a page that begin with ```console. A command's line begins with
// "$ ", further lines of it with ">".
func steps(page string) (list []step) {
	in := false
	for i, line := range strings.Split(page, "\n") {
		command, ok := strings.CutPrefix(line, "$ ")
		more, goesOn := strings.CutPrefix(line, ">")
		switch {
		case strings.HasPrefix(line, "```"):
			in = line == "```console"
		case !in:
		case ok:
			list = append(list, step{line: i + 1, command: command})
		case goesOn:
			list[len(list)-1].command += "\n" + strings.TrimPrefix(more, " ")
		default:
			last := &list[len(list)-1]
			last.prints = append(last.prints, line)
		}
	}
	return list
}

// pattern is what a step may print: "…" stands for any text, and as a line for any lines.
// Empty lines and space at the end of lines do not count.
func (s step) pattern() *regexp.Regexp {
	var b strings.Builder
	for _, line := range s.prints {
		switch line = strings.TrimRight(line, " "); line {
		case "":
		case "…":
			b.WriteString(`(?:[^\n]*\n)*?`)
		default:
			b.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), "…", `[^\n]*?`) + `\n`)
		}
	}
	return regexp.MustCompile(`\A` + b.String() + `\z`)
}

// The commands of the pages for new users print what the pages say, on a machine that has
// never seen pando.
func TestPages(t *testing.T) {
	testenv.Python(t)
	for _, page := range []string{"tutorial.md", "howto/transactions.md", "howto/receipts.md", "howto/policy.md", "howto/race.md", "howto/replay.md"} {
		t.Run(page, func(t *testing.T) { playPage(t, page) })
	}
}

func playPage(t *testing.T, page string) {
	h := newHost(t)
	h.env = append(h.env, "PATH="+filepath.Dir(h.bin)+":/usr/bin:/bin")
	text, err := os.ReadFile("../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	list := steps(string(text))
	var script strings.Builder
	script.WriteString("exec 2>&1\n")
	for i, s := range list {
		fmt.Fprintf(&script, "%s\necho \"== %d\"\n", s.command, i)
	}
	o := h.exec(h.cmd("bash", "-c", script.String()))
	rest := o.out
	for i, s := range list {
		at := fmt.Sprintf("docs/%s:%d: %s", page, s.line, s.command)
		printed, after, ok := strings.Cut(rest, fmt.Sprintf("== %d\n", i))
		if !ok {
			t.Fatalf("%s\nended with %d:\n%s%s", at, o.code, rest, o.stderr)
		}
		rest = after
		printed = regexp.MustCompile(`(?m)[ \t]+$|^\n`).ReplaceAllString(printed, "")
		if !s.pattern().MatchString(printed) {
			t.Errorf("%s\nprints\n%s\nand not\n%s", at, printed, strings.Join(s.prints, "\n"))
		}
	}
}
