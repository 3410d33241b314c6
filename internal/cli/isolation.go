package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
)

// mark makes every line that say prints from here on end in "not isolated", when the run or cell
// has no isolation.
func (a *app) mark(isolation string) {
	if isolation == api.NotIsolated {
		a.bare = true
	}
}

// isolationIn returns the isolation of the runs or cells in an answer; NotIsolated when one of
// several is not isolated.
func isolationIn(v any) string {
	var all []string
	cells := func(list []api.Cell) {
		for _, c := range list {
			all = append(all, c.Isolation)
		}
	}
	switch v := v.(type) {
	case api.Run:
		return v.Isolation
	case api.Cell:
		return v.Isolation
	case api.Plan:
		return v.Isolation
	case api.Exec:
		return v.Isolation
	case api.Diff:
		return v.Isolation
	case api.Stats:
		return v.Isolation
	case api.Checkpoint:
		return v.Isolation
	case api.Receipt:
		return v.Isolation
	case api.Replay:
		return v.Isolation
	case api.AcceptResult:
		return v.Isolation
	case api.DiscardResult:
		return v.Cell.Isolation
	case api.RevertResult:
		return v.Cell.Isolation
	case api.RestoreResult:
		return v.Cell.Isolation
	case api.ForkResult:
		cells(v.Cells)
	case api.BranchResult:
		cells(v.Cells)
	}
	if slices.Contains(all, api.NotIsolated) {
		return api.NotIsolated
	}
	return ""
}

// marked returns a line for people with the mark of this isolation.
func marked(line, isolation string) string {
	if isolation != api.NotIsolated || strings.Contains(line, api.NotIsolated) {
		return line
	}
	first, rest, more := strings.Cut(line, "\n")
	end := ""
	if r, ok := strings.CutSuffix(first, "\r"); ok { // of a terminal in raw mode
		first, end = r, "\r"
	}
	first += " (" + api.NotIsolated + ")" + end
	if more {
		return first + "\n" + rest
	}
	return first
}

// bareRun warns before the first output of a run without isolation.
func (a *app) bareRun(what, isolation, verb string) {
	if a.mark(isolation); a.bare {
		a.say("pando: %s %s %s: its command can read and change everything that the daemon's user can", what, verb, api.NotIsolated)
	}
}

// isolationRow adds a column to a table when an entry has no isolation.
func isolationRow(any bool, at int, isolation string, words ...string) []string {
	if !any {
		return words
	}
	return slices.Insert(words, at, isolation)
}

// bareField prints the warning for a cell, a run or a plan.
func bareField(w io.Writer, isolation string) {
	if isolation == api.NotIsolated {
		field(w, "isolation", fmt.Sprintf("%s: commands run on the host and can read and change everything that the daemon's user can", api.NotIsolated))
	}
}
