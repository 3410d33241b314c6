package report

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/api"
)

// Bounds of what is drawn of tool calls: the document has more.
const (
	htmlCalls     = 300
	markdownLimit = 60
)

// toolCount is how often a tool was called, by what an agent reports.
type toolCount struct {
	Tool   string
	N      int
	Failed int
}

// toolCounts counts calls by tool, the most frequent first.
func toolCounts(t *api.ToolCalls) []toolCount {
	var list []toolCount
	for _, c := range t.Calls {
		i := slices.IndexFunc(list, func(o toolCount) bool { return o.Tool == c.Tool })
		if i < 0 {
			i, list = len(list), append(list, toolCount{Tool: c.Tool})
		}
		list[i].N++
		if c.Failed {
			list[i].Failed++
		}
	}
	slices.SortStableFunc(list, func(a, b toolCount) int { return b.N - a.N })
	return list
}

// callEnd is how a call ended, as it is reported.
func callEnd(c api.ToolCall) string {
	switch {
	case !c.Ended:
		return "no result"
	case c.ExitCode != nil:
		return "exit " + strconv.Itoa(*c.ExitCode)
	case c.Failed:
		return "failed"
	}
	return "ok"
}

// callProblems are the reasons why not all calls may be there.
func callProblems(t *api.ToolCalls) []string {
	list := slices.Clone(t.Problems)
	for _, r := range t.Read {
		if r.Problem != "" {
			list = append(list, r.Path+": "+r.Problem)
		}
	}
	return list
}

// seenCalls says how many calls the gateway saw in the answers of models; "" for none.
func seenCalls(r api.Run) string {
	var n int64
	if r.Network != nil {
		for _, m := range r.Network.Models {
			n += m.Calls
		}
	}
	if n == 0 {
		return ""
	}
	return "Observed: the gateway saw " + count(int(n), "call") + " of tools in the answers of models."
}

func markdownCalls(b *strings.Builder, r *api.Report) {
	t := r.ToolCalls
	if t == nil {
		return
	}
	b.WriteString("\n## Tool calls, as the agent reports them\n\n")
	fmt.Fprintf(b, "%s. These are the agent's words, read from its own files in the cell: nothing of them is a fact.\n", count(len(t.Calls)+t.More, "call"))
	if s := seenCalls(r.Run); s != "" {
		b.WriteString("\n" + s + "\n\n")
	}
	for _, p := range callProblems(t) {
		fmt.Fprintf(b, "- not complete: %s\n", text(p))
	}
	if len(t.Calls) == 0 {
		return
	}
	b.WriteString("\n| tool | calls | failed |\n|---|---:|---:|\n")
	for _, c := range toolCounts(t) {
		fmt.Fprintf(b, "| %s | %d | %d |\n", cell(c.Tool), c.N, c.Failed)
	}
	b.WriteString("\n| when | tool | what | end, as reported |\n|---|---|---|---|\n")
	for i, c := range t.Calls {
		if i == markdownLimit {
			fmt.Fprintf(b, "\nAnd %s: %s\n", count(len(t.Calls)-i+t.More, "more call"), code("pando report "+r.Run.ID+" --json"))
			break
		}
		when := ""
		if !c.Time.IsZero() {
			when = c.Time.UTC().Format("15:04:05")
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", when, cell(c.Tool), cell(c.What), callEnd(c))
	}
}
