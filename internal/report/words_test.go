package report

import (
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
)

func TestDuration(t *testing.T) {
	for ms, want := range map[float64]string{0.05: "0.05 ms", 17.46: "17.5 ms", 999.7: "1.00 s", 25912.5: "25.91 s", 90_400: "1m30s"} {
		if got := duration(ms); got != want {
			t.Errorf("%v ms are %q, not %q", ms, got, want)
		}
	}
}

// A reader has to see where a word of a command ends.
func TestCommandLine(t *testing.T) {
	if got, want := commandLine([]string{"sh", "-c", "echo a; ls", "--x=1", ""}), "sh -c 'echo a; ls' --x=1 ''"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

func TestGroups(t *testing.T) {
	f := func(rule, path, see string) api.RunFinding {
		return api.RunFinding{Rule: rule, Severity: api.SeverityHigh, Title: "t", Why: "w", Path: path, See: see}
	}
	list := groups([]api.RunFinding{f("a", "1", "see 1"), f("a", "2", "see 2"), f("b", "3", "see 3")})
	if len(list) != 2 || list[0].Times != 2 || list[1].Times != 0 || list[0].Places[1].Path != "2" || list[1].Places[0].See != "see 3" {
		t.Errorf("%+v", list)
	}
	r := whole("x")
	r.Findings = []api.RunFinding{f("a", "1", "see 1"), f("a", "2", "see 2")}
	page := drawn(t, HTML, r)
	if n := strings.Count(page, "<strong>T</strong>"); n != 1 || !strings.Contains(page, ">2</code>") {
		t.Errorf("the title of two findings of one rule is there %d times", n)
	}
}

// The bar of times ends where the time does: a check and the receipt have no phases of their own.
func TestPhasesFillTheBar(t *testing.T) {
	list := phases(api.Timings{Import: 10, Run: 30, Total: 100})
	last := list[len(list)-1]
	if last.X+last.W != 100 || last.MS != 60 {
		t.Errorf("%+v", list)
	}
	if list := phases(api.Timings{Import: 50, Run: 50, Total: 100}); len(list) != 2 {
		t.Errorf("%+v", list)
	}
}

// A file without lines has nothing to open; one with many is closed, also on paper.
func TestFilesThatAreOpen(t *testing.T) {
	r := whole("x")
	line := api.DiffLine{Kind: "+", Text: "x", New: 1}
	long := make([]api.DiffLine, 201)
	for i := range long {
		long[i] = line
	}
	r.Files = []api.ReportFile{{File: api.FileChange{Path: "none", Binary: true}, NoLines: "binary"}, {File: api.FileChange{Path: "short"}, Lines: []api.DiffLine{line}}, {File: api.FileChange{Path: "long"}, Lines: long}}
	page := drawn(t, HTML, r)
	if n := strings.Count(page, `<details class="file" open>`); n != 1 {
		t.Errorf("%d of three files are open", n)
	}
	if n := strings.Count(page, ">binary<"); n != 1 {
		t.Errorf("it is said %d times that a file is binary", n)
	}
}
