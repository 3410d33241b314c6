package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/api"
)

func TestWords(t *testing.T) {
	for got, want := range map[string]string{
		plural(1, "file"):                      "1 file",
		plural(0, "file"):                      "0 files",
		plural(2, "process"):                   "2 processes",
		size(0):                                "0 B",
		size(1023):                             "1023 B",
		size(1536):                             "1.5 KiB",
		size(5 << 40):                          "5.0 TiB",
		short("sha256:0123456789abcdef"):       "0123456789ab",
		cut("häuser", 4):                       "häu…",
		cut("haus", 4):                         "haus",
		ago(time.Time{}):                       "–",
		ago(time.Now().Add(-90 * time.Minute)): "1 h ago",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// No byte from a cell drives a person's terminal.
func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain ü":          "plain ü",
		"\x1b]0;title\x07": `\x1b]0;title\a`,
		"a\rb":             `a\rb`,
		"x\u202eright":     `x\u202eright`,
		"bad \xff":         `bad \xff`,
		"c1 \u009b31m":     `c1 \u009b31m`,
	} {
		if got := printable(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

// A table aligns its columns, is cut on a terminal, and never for a program.
func TestTable(t *testing.T) {
	fill := func(a *app) string {
		var b strings.Builder
		tab := a.newTable(&b)
		tab.row("NAME", "SAID")
		tab.row("häuser", "a long story\x1b[31m")
		tab.flush()
		return b.String()
	}
	for _, c := range []struct {
		a    *app
		want string
	}{
		{&app{width: 12}, "NAME    SAID\nhäuser  a long story\\x1b[31m\n"},
		{&app{width: 12, terminalOut: true}, "NAME    SAID\nhäuser  a l…\n"},
	} {
		if d := cmp.Diff(c.want, fill(c.a)); d != "" {
			t.Error(d)
		}
	}
}

// The last line of a run says what became of it and what to do next.
func TestSummary(t *testing.T) {
	code := func(n int) *int { return &n }
	point := func(n int) *api.Point { return &api.Point{Number: n} }
	for _, c := range []struct {
		run  api.Run
		want string
	}{
		{api.Run{ExitCode: code(0), Verdict: "pending", Changes: api.Changes{Files: 3}},
			"r-1 ok, 3 files changed, source untouched: pando diff | accept --apply | discard"},
		{api.Run{ExitCode: code(7), Verdict: "restored", Before: point(1), After: point(4)},
			"r-1 failed (exit 7), restored; the result is kept as web@4 for 7 days: pando restore web@4"},
		{api.Run{ExitCode: code(1), Verdict: "restored", Before: point(1), After: point(1)},
			"r-1 failed (exit 1), nothing changed"},
		{api.Run{ExitCode: code(137), Signal: "SIGKILL", Cause: "memory limit", Verdict: "restored", Before: point(1), After: point(2)},
			"r-1 failed (memory limit), restored; the result is kept as web@2 for 7 days: pando restore web@2"},
		{api.Run{ExitCode: code(143), Cause: "timeout", Verdict: "pending", Changes: api.Changes{Files: 1}},
			"r-1 timeout, 1 file changed, source untouched: pando diff | accept --apply | discard"},
		{api.Run{ExitCode: code(0), Verdict: "accepted", Reason: "no changes"}, "r-1 ok, no changes"},
		{api.Run{ExitCode: code(0), Verdict: "pending", Error: &api.Error{Kind: "internal", Message: "cannot finish run r-1: x"}},
			"r-1 not finished: the command ended (exit 0), its changes are not known; the cell's checkpoints are intact: pando history web"},
		{api.Run{ExitCode: code(0), Verdict: "pending", Check: &api.Check{ExitCode: 2}},
			"r-1 check failed (exit 2), 0 files changed, source untouched: pando diff | accept --apply | discard"},
	} {
		c.run.ID, c.run.CellName = "r-1", "web"
		if got := summary(c.run); got != c.want {
			t.Errorf("%q\nwant %q", got, c.want)
		}
	}
}

// The picture of a family: checkpoints below those they grew from, forks where
// they left.
func TestDrawTree(t *testing.T) {
	k := func(n, parent int, kind string, head bool) api.Checkpoint {
		c := api.Checkpoint{Number: n, Parent: parent, Kind: kind, Head: head, TreeDigest: "sha256:abc"}
		if kind == "after" {
			c.Run = "r-1"
		}
		return c
	}
	node := api.TreeNode{
		Cell: api.Cell{Name: "web", State: "idle", Verdict: "accepted"},
		Checkpoints: []api.Checkpoint{k(1, 0, "base", false), k(2, 1, "after", false), k(3, 2, "after", false), k(4, 2, "after", true),
			k(7, 6, "after", false)}, // 6 has expired
		Children: []api.TreeNode{
			{Cell: api.Cell{Name: "api", State: "running", Parent: &api.Parent{Number: 1}}, Checkpoints: []api.Checkpoint{k(1, 0, "fork", true)}},
		},
	}
	var b strings.Builder
	b.WriteString(nodeTitle(node) + "\n")
	drawTree(&b, node, "")
	want := `web  idle, latest run accepted
├─ ○ @1 abc  the source
│  ├─ api  running
│  │  ● @1 abc
│  └─ ○ @2 abc  after r-1
│     ├─ ○ @3 abc  after r-1
│     └─ ● @4 abc  after r-1
└─ ○ @7 abc  after r-1
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
}

// Of a budget the part with the least left is named.
func TestBudgetWord(t *testing.T) {
	for want, b := range map[string]*api.Budget{
		"–":                   nil,
		"412 of 500 requests": {Parts: []api.BudgetPart{{Name: "time", Used: 1000, Granted: 7_200_000}, {Name: "requests", Used: 412, Granted: 500}, {Name: "usd", Used: 1, Granted: 5_000_000}}},
		"$4.20 of $5.00":      {Parts: []api.BudgetPart{{Name: "tokens", Used: 5, Granted: 10}, {Name: "usd", Used: 4_200_000, Granted: 5_000_000}}},
		"1m30s of 2h0m0s":     {Parts: []api.BudgetPart{{Name: "time", Used: 90_750, Granted: 7_200_000}}},
	} {
		if got := budgetWord(b); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
