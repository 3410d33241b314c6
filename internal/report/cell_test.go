package report

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
)

// fill sets all texts below a value to s, and gives lists n elements; numbers are 1. Types of a report that are added are filled, too.
func fill(v reflect.Value, s string, n int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(s)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), s, n)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), s, n)
		}
	case reflect.Slice:
		if v.Type() == rawJSON {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(v.Index(i), s, n)
		}
	}
}

// wholeCell is the report of a cell in which all texts are s, but for the words that pando chooses.
func wholeCell(s string) *api.CellReport {
	r := &api.CellReport{}
	fill(reflect.ValueOf(r).Elem(), s, 2)
	r.Cell.Isolation, r.Evidence = "isolated", verified
	for i := range r.Findings {
		r.Findings[i].Severity = api.SeverityHigh
	}
	for i := range r.Runs {
		r.Runs[i].Outcome, r.Runs[i].Evidence = "succeeded", broken
	}
	for i := range r.Files {
		r.Files[i].File.Status, r.Files[i].File.NewMode, r.Files[i].File.OldMode = "added", "100755", "100644"
		for j := range r.Files[i].Lines {
			r.Files[i].Lines[j].Kind = "+"
		}
	}
	for i := range r.Steps {
		r.Steps[i].Kind = []string{"tool", "turn"}[i%2]
	}
	return r
}

func drawnCell(t testing.TB, draw func(io.Writer, *api.CellReport) error, r *api.CellReport) string {
	t.Helper()
	var b bytes.Buffer
	if err := draw(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Whatever a cell has for text, its page has the same elements, and its Markdown the same headings.
func TestCellHostile(t *testing.T) {
	t.Parallel()
	want := tags(t, drawnCell(t, CellHTML, wholeCell("x")))
	headings := func(s string) int { return strings.Count("\n"+drawnCell(t, CellMarkdown, wholeCell(s)), "\n#") }
	heads := headings("x")
	for _, s := range []string{`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onload='x`, "</style><b>", "<!--", "javascript:alert(1)", "{{.Runs}}", "\u202eabc", "a | b", "\x00\x1b[31m", "\xff\xfe"} {
		page := drawnCell(t, CellHTML, wholeCell(s))
		if got := tags(t, page); strings.Join(got, "") != strings.Join(want, "") {
			t.Errorf("%q makes other elements", s)
		}
		if strings.ContainsAny(page, "\u202e\x1b\x00") {
			t.Errorf("%q is on the page as it is", s)
		}
		if n := headings(s); n != heads {
			t.Errorf("%q makes %d headings of %d", s, n, heads)
		}
		rows := 0
		for l := range strings.Lines(drawnCell(t, CellMarkdown, wholeCell(s))) {
			if strings.HasPrefix(l, "| @1 |") || strings.HasPrefix(l, "| (@1) |") {
				if rows++; strings.Count(strings.ReplaceAll(l, `\|`, ""), "|") != 7 {
					t.Errorf("%q makes other columns: %s", s, l)
				}
			}
		}
		if rows != 2 {
			t.Errorf("%q: %d steps are drawn", s, rows)
		}
	}
}

func FuzzCell(f *testing.F) {
	f.Add("<a href=x>")
	want := len(tags(f, drawnCell(f, CellHTML, wholeCell("x"))))
	f.Fuzz(func(t *testing.T, s string) {
		if s == "" {
			return
		}
		if got := len(tags(t, drawnCell(t, CellHTML, wholeCell(s)))); got != want {
			t.Errorf("%q makes %d elements of %d", s, got, want)
		}
	})
}

// A cell with more than a page has says how much more, and where.
func TestCellBounds(t *testing.T) {
	t.Parallel()
	r := &api.CellReport{Cell: api.Cell{Name: "web"}, MoreSteps: 7, MoreRuns: 3}
	for i := range htmlSteps + 10 {
		r.Steps = append(r.Steps, api.Step{Number: i + 1, Kind: "exec", Text: fmt.Sprintf("step-%d.", i)})
	}
	for i := range markdownRuns + 5 {
		r.Runs = append(r.Runs, api.CellRun{Run: fmt.Sprintf("r-%d.", i)})
	}
	page, md := drawnCell(t, CellHTML, r), drawnCell(t, CellMarkdown, r)
	for _, want := range []string{"17 steps before these", "3 runs before these"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for _, want := range []string{"417 steps before these: `pando timeline web`", "8 runs before these"} {
		if !strings.Contains(md, want) {
			t.Errorf("Markdown does not say %q", want)
		}
	}
	if strings.Contains(page, "step-9.") || !strings.Contains(page, "step-10.") || strings.Contains(md, "r-4.") || !strings.Contains(md, "r-5.") {
		t.Error("the newest are not what is shown")
	}
}

// What runs did is added up; what was found in several is said once.
func TestAddRun(t *testing.T) {
	t.Parallel()
	zero, one := 0, 1
	network := func(host string, sent int64) *api.Network {
		return &api.Network{Decisions: 2, Denied: 1, Sent: sent, Peers: []api.Peer{{Host: host, Port: 443, Requests: 1, Sent: sent, Credential: []string{"c"}}},
			Denials: []api.Denial{{Want: "resolve x", Rule: "r", Times: 2}}, Models: []api.ModelUse{{Model: "m", Input: 10, Output: 1}}}
	}
	r := &api.CellReport{Cell: api.Cell{Isolation: "isolated"}, From: "the source", To: "web@3", Files: make([]api.ReportFile, 1)}
	found := api.RunFinding{Rule: "unchecked", Severity: api.SeverityInfo, What: "1 file changed"}
	ok := &api.Verification{OK: true}
	for i, run := range []api.Run{
		{ID: "r-1", ExitCode: &zero, Network: network("a", 5), Usage: api.Usage{WallMS: 10, PeakMemory: 7}, DowngradeWords: []string{"w"}, Receipts: []string{"x"}},
		{ID: "r-2", ExitCode: &one, Network: network("a", 6), Usage: api.Usage{WallMS: 20, PeakMemory: 5}, DowngradeWords: []string{"w"}, Receipts: []string{"x"}},
		{ID: "r-3", ExitCode: &zero, Network: network("b", 7), Check: &api.Check{ExitCode: 3}, Receipts: []string{"x"}},
	} {
		one := &api.Report{Run: run, Evidence: verified, Verification: ok}
		if i != 1 {
			one.Findings = []api.RunFinding{found}
		}
		AddRun(r, one)
	}
	CompleteCell(r)
	n := r.Network
	if n.Decisions != 6 || n.Denied != 3 || n.Sent != 18 || len(n.Peers) != 2 || n.Peers[0].Requests != 2 || n.Peers[0].Sent != 11 || len(n.Peers[0].Credential) != 1 ||
		len(n.Denials) != 1 || n.Denials[0].Times != 6 || len(n.Models) != 1 || n.Models[0].Input != 30 {
		t.Errorf("the network is %+v", n)
	}
	if r.Usage != (api.CellUsage{WallMS: 30, PeakMemory: 7}) || len(r.Weaker) != 1 {
		t.Errorf("%+v, weaker %q", r.Usage, r.Weaker)
	}
	if len(r.Findings) != 1 || strings.Join(r.Findings[0].Runs, " ") != "r-1 r-3" {
		t.Errorf("findings %+v", r.Findings)
	}
	if want := "3 runs, of which 2 did not succeed; 1 changed file."; r.Headline != want {
		t.Errorf("%q, not %q", r.Headline, want)
	}
	if r.Evidence != verified || r.Unjudged() != "" {
		t.Errorf("%s, %q", r.Evidence, r.Unjudged())
	}
}

// The findings of a cell stand for it only if all of its evidence could be looked at.
func TestCellUnjudged(t *testing.T) {
	t.Parallel()
	zero := 0
	with := func(change func(*api.Report, *api.CellReport)) *api.CellReport {
		c := &api.CellReport{To: "web@1"}
		one := &api.Report{Run: api.Run{ID: "r-1", Phase: "ended", ExitCode: &zero, Receipts: []string{"x"}}, Verification: &api.Verification{OK: true}}
		change(one, c)
		Complete(one)
		AddRun(c, one)
		CompleteCell(c)
		return c
	}
	for name, x := range map[string]struct {
		change func(*api.Report, *api.CellReport)
		why    string
		is     string
	}{
		"as it should be": {func(*api.Report, *api.CellReport) {}, "", verified},
		"edited": {func(r *api.Report, _ *api.CellReport) {
			r.Verification = &api.Verification{Problems: []api.Problem{{}}}
		}, "run r-1: its evidence does not hold", broken},
		"not verified": {func(r *api.Report, _ *api.CellReport) { r.Verification = nil }, "run r-1: its evidence could not be verified", unproven},
		"goes on":      {func(r *api.Report, _ *api.CellReport) { r.Run.ExitCode, r.Run.Phase = nil, "running" }, "run r-1: it is under way", verified},
		"never started": {func(r *api.Report, _ *api.CellReport) {
			r.Run.ExitCode, r.Run.Receipts, r.Run.Error = nil, nil, &api.Error{}
		}, "", unproven},
		"output gone":   {func(r *api.Report, _ *api.CellReport) { r.Problems = []string{"stdout: gone"} }, "run r-1: stdout: gone", verified},
		"more runs":     {func(_ *api.Report, c *api.CellReport) { c.MoreRuns = 1 }, "it has more runs than are looked at", unproven},
		"no changes":    {func(_ *api.Report, c *api.CellReport) { c.Problems = []string{"changes: gone"} }, "changes: gone", verified},
		"many findings": {func(_ *api.Report, c *api.CellReport) { c.Findings = make([]api.RunFinding, cellFindings+1) }, "findings: 1 more of the same or lower severity are not listed", verified},
	} {
		c := with(x.change)
		if c.Unjudged() != x.why || c.Evidence != x.is {
			t.Errorf("%s: %q, %s; want %q, %s", name, c.Unjudged(), c.Evidence, x.why, x.is)
		}
	}
	if c := (&api.CellReport{}); c.Unjudged() == "" {
		t.Error("a cell without runs is judged")
	}
}
