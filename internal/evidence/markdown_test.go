package evidence

import (
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// Each kind of receipt says in Markdown what it has, and has no section for what it has not.
func TestMarkdownOfReceipts(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	code := 3
	for name, c := range map[string]struct {
		said said
		want []string
	}{
		"run": {&runPredicate{Run: "r-1", Cell: "c-1", CellName: "w", Command: []string{"sh", "a`b"}, Backend: "namespace", ExitCode: &code, Started: at, Ended: at.Add(1500 * time.Millisecond),
			Verdict: state.Verdict{Verdict: cell.Pending, Reason: "failed", By: "pando"}, Downgrades: []string{"no seccomp"}, Before: &state.Point{Number: 1}, Files: map[string]cell.Digest{"stdout": {}},
			Network: &state.Network{Decisions: 2, Denied: 1, Denials: []state.Denial{{Want: "resolve a|b", Times: 2, Rule: "default", Origin: "p:1", Reason: "no rule"}}}},
			[]string{"# Run r-1: failed (exit 3)\n", "`sh a'b`\n", "| verdict | **pending**, failed (by pando) |\n", "| later | **discarded** on 2026-01-02T03:04:05Z: gone, receipt sha256:1 |\n",
				"| time | 2026-01-02T03:04:05Z, 1.5s |\n", "| checkpoint | @1 | – |\n", "\nWeaker than it could be:\n\n- no seccomp\n", "2 decisions: 1 denied", "| `resolve a\\|b` | 2 | default (p:1) | no rule |\n"}},
		"act": {&act{Act: "revert", Cell: "c-1", Backend: "none", At: at, Source: "/src", Reverted: []string{"a", "b"}, Already: []string{"c"}, Held: []state.Held{{Path: ".git/hooks/x", Why: "a hook"}},
			Runs: []state.Decided{{Run: "r-1", Receipt: "sha256:1", Verdict: cell.Pending}}},
			[]string{"# Revert in cell c-1\n", "| isolation | **not isolated**, backend none |\n", "| run r-1 | **pending**, its receipt sha256:1 |\n", "\nTaken back from /src:\n\n- `a`\n- `b`\n",
				"\nIn /src as before the accept already:\n\n- `c`\n", "\nHeld back, because it controls what runs on the host:\n\n- `.git/hooks/x`: a hook\n"}},
		"batch": {&Batch{Act: state.BatchFork, Template: "py", Cell: "c-1", Backend: "namespace", At: at, Cells: []state.BatchCell{{Cell: "c-2", Name: "x"}}, Failed: []string{"y: no memory"}},
			[]string{"# Fork of template py into 1 cell\n", "| at | 2026-01-02T03:04:05Z |\n", "\nNot made:\n\n- y: no memory\n", "| x | c-2 |  |  |\n"}},
	} {
		var b strings.Builder
		c.said.markdown(&b, []api.Receipt{{ID: "sha256:1", Verdict: "discarded", At: at, Summary: "gone"}})
		for _, w := range c.want {
			if !strings.Contains(b.String(), w) {
				t.Errorf("%s: no %q in\n%s", name, w, b.String())
			}
		}
		for _, none := range []string{"Applied to", "Left out of the import", "## Credentials"} {
			if strings.Contains(b.String(), none) {
				t.Errorf("%s: there is %q", name, none)
			}
		}
	}
}
