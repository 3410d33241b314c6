package report

import (
	"bytes"
	"encoding/xml"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
)

// whole is a report in which all texts are s.
func whole(s string) *api.Report {
	code := 1
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	r := &api.Report{
		Run: api.Run{ID: "r-1", Cell: "c-1", CellName: s, Command: []string{s, s}, Source: "/" + s, Backend: "namespace", Isolation: "isolated", Image: s, Phase: "ended", Started: now, Ended: now.Add(time.Second), ExitCode: &code,
			Verdict: "pending", Reason: s, Receipts: []string{"sha256:1"}, Before: &api.Point{TreeDigest: s}, After: &api.Point{TreeDigest: s}, Check: &api.Check{Command: s, ExitCode: 1, Output: s, Cause: s},
			LeftOut: []api.LeftOut{{Path: s, Kind: "secret"}}, Changes: api.Changes{Files: 2, Ignored: 1}, Downgrades: []string{s}, DowngradeWords: []string{s}, Agent: s, Timings: api.Timings{Import: 1, Run: 2, Total: 4},
			Network:  &api.Network{Peers: []api.Peer{{Host: s, Credential: []string{s}}}, Denials: []api.Denial{{Want: s, Reason: s, Times: 2, Permit: s}}, Models: []api.ModelUse{{Model: s}}},
			Secrets:  &api.Secrets{Lent: []api.SecretLent{{Credential: s, For: []string{s}}}, Scanned: []string{s}},
			Services: []api.ServiceUse{{Name: s, Image: s}}, Caches: []api.CacheUse{{Name: s}}, Assurance: api.Assurance{Isolation: []string{s}, Network: s, Limits: []api.AppliedLimit{{Name: s, Applied: s}}}},
		Drawn: now, Version: s, Findings: []api.RunFinding{{Rule: s, Severity: api.SeverityHigh, Title: s, Path: s, Line: 3, What: s, Why: s, See: s}}, Held: []api.Held{{Path: s, Why: s}},
		Files: []api.ReportFile{{File: api.FileChange{Path: s, OldPath: s, Status: s, OldMode: "100644", NewMode: "100755"}, First: s, Held: s,
			Lines: []api.DiffLine{{Kind: "@", Text: s}, {Kind: "+", Text: s, New: 1}, {Kind: "-", Text: s, Old: 1}, {Kind: " ", Text: s, Old: 1, New: 1}, {Kind: `\`, Text: s}}, MoreLines: 2}, {File: api.FileChange{Path: s}, NoLines: s}},
		More: 3, Notes: []string{s}, Output: []api.ReportOutput{{Name: "stdout", Text: s}}, Events: []api.Event{{Kind: s, Text: s, Time: now, Denied: true}}, MoreEvents: 1,
		Receipts: []api.Receipt{{ID: s, Summary: s, At: now}}, Verification: &api.Verification{Root: s, KeyID: s, Problems: []api.Problem{{Reason: s, File: s, What: s}}, Unproven: []string{s}}, Problems: []string{s},
		Processes: &api.Processes{Starts: 2, Ends: 1, Failed: 1, LostStarts: 3, Why: []string{s}, Unseen: []string{s}, More: 1, List: []api.ReportProcess{{Args: []string{s, s}, Path: s, As: s, Cut: true, Signal: s, ExitCode: &code, Ended: true}, {Path: s, As: s}}},
		ToolCalls: &api.ToolCalls{Basis: api.Reported, Agent: s, Read: []api.Transcript{{Path: s, Problem: s}}, Problems: []string{s}, More: 1, Calls: []api.ToolCall{{Time: now, Tool: s, What: s, Files: []string{s}, Ended: true, Failed: true}, {Tool: s, What: s}}},
	}
	Complete(r)
	return r
}

func drawn(t testing.TB, draw func(io.Writer, *api.Report) error, r *api.Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := draw(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var attribute = regexp.MustCompile(`(?:aria-label|data-ext)="[^"]*"`)

// tags are the elements of a page, in order, with their attributes but for those that have text of a run.
func tags(t testing.TB, page string) (list []string) {
	t.Helper()
	page = regexp.MustCompile(`(?s)<(style|script)>.*?</(style|script)>`).ReplaceAllString(page, "<$1></$1>")
	for _, tag := range regexp.MustCompile(`<[^>]*>`).FindAllString(page, -1) {
		list = append(list, attribute.ReplaceAllString(tag, ""))
	}
	return list
}

// Whatever a run has for text, the page has the same elements.
func TestHTMLHostile(t *testing.T) {
	want := tags(t, drawn(t, HTML, whole("x")))
	for _, s := range []string{`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onload='x`, "</style><b>", "`x`", "]]>", "<!--", "-->", "&lt;b&gt;", "javascript:alert(1)", "{{.Run}}", "\u202eabc", "a\nb", "\x00\x1b[31m", "\xff\xfe"} {
		page := drawn(t, HTML, whole(s))
		got := tags(t, page)
		if strings.Join(got, "") != strings.Join(want, "") {
			t.Errorf("%q makes other elements", s)
		}
		if strings.ContainsAny(page, "\u202e\x1b\x00") {
			t.Errorf("%q is on the page as it is", s)
		}
	}
}

func FuzzHTML(f *testing.F) {
	f.Add("<a href=x>")
	want := len(tags(f, drawn(f, HTML, whole("x"))))
	f.Fuzz(func(t *testing.T, s string) {
		if s == "" || s == "deleted" || s == "added" {
			return
		}
		if got := len(tags(t, drawn(t, HTML, whole(s)))); got != want {
			t.Errorf("%q makes %d elements of %d", s, got, want)
		}
	})
}

// The page needs nothing that is not in it, runs its own script alone, and is made for readers of all kinds.
func TestHTMLStandsAlone(t *testing.T) {
	page := drawn(t, HTML, whole("x"))
	for _, re := range []string{`(?:src|href)="[^#"]`, `url\(`, `@import`, `https?://`} {
		if m := regexp.MustCompile(re).FindString(page); m != "" {
			t.Errorf("the page has %q", m)
		}
	}
	for _, re := range []string{`<html lang="en">`, `name="viewport"`, `default-src 'none'`, `script-src 'sha256-[A-Za-z0-9+/=]+'`, `prefers-color-scheme:dark`, `@media print`} {
		if !regexp.MustCompile(re).MatchString(page) {
			t.Errorf("the page has no %s", re)
		}
	}
	body := page[strings.Index(page, "<body>"):strings.Index(page, "<script>")]
	d := xml.NewDecoder(strings.NewReader(strings.NewReplacer(`type="button" hidden`, `type="button"`, " open>", ">", "&nbsp;", " ").Replace(body) + "</body>"))
	d.Strict = true
	for {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("an element of the page is not closed: %v", err)
		}
	}
}

// Markdown has no text of a run that is read as Markdown or HTML.
func TestMarkdownHostile(t *testing.T) {
	heads := func(s string) (n int) {
		fence := ""
		for l := range strings.Lines(s) {
			switch {
			case fence == "" && strings.HasPrefix(l, "```") && !strings.Contains(strings.TrimLeft(l, "`"), "`"):
				fence = l[:len(l)-len(strings.TrimLeft(l, "`"))]
			case fence != "" && strings.TrimRight(l, "\n") == fence:
				fence = ""
			case fence == "" && strings.HasPrefix(l, "#"):
				n++
			}
		}
		if fence != "" {
			t.Errorf("a fence is open at the end")
		}
		return n
	}
	want := heads(drawn(t, Markdown, whole("x")))
	for _, s := range []string{"# x", "\n# x", "```\n# x", "````\n````\n# x", "| a |\n", "[x](javascript:y)", "<script>", "`", "``"} {
		out := drawn(t, Markdown, whole(s))
		if got := heads(out); got != want {
			t.Errorf("%q makes %d headings of %d", s, got, want)
		}
	}
	out := drawn(t, Markdown, whole("<b>[x](y)"))
	if regexp.MustCompile("(?m)^[^`]*[^\\\\`]<b>[^`]*$").MatchString(regexp.MustCompile("(?s)(`+).*?`+").ReplaceAllString(out, "")) {
		t.Error("there is HTML in it")
	}
}

func TestHeadline(t *testing.T) {
	zero, one := 0, 1
	for want, r := range map[string]api.Report{
		"The command succeeded and changed nothing.":                                              {Run: api.Run{ExitCode: &zero}},
		"The command failed with exit code 1 and changed 1 file.":                                 {Run: api.Run{ExitCode: &one, Changes: api.Changes{Files: 1}}},
		"The command succeeded and changed 2 files; the check failed with exit code 1.":           {Run: api.Run{ExitCode: &zero, Changes: api.Changes{Files: 2}, Check: &api.Check{ExitCode: 1}}},
		"The command ended by timeout and changed nothing.":                                       {Run: api.Run{ExitCode: &one, Cause: "timeout"}},
		"The command never started.":                                                              {Run: api.Run{Error: &api.Error{}}},
		"The command succeeded and changed nothing; 1 thing to look at before anything is taken.": {Run: api.Run{ExitCode: &zero}, Findings: []api.RunFinding{{Severity: api.SeverityHigh}, {Severity: api.SeverityLow}}},
	} {
		if Complete(&r); r.Headline != want {
			t.Errorf("%q, not %q", r.Headline, want)
		}
	}
}

func TestEvidence(t *testing.T) {
	ok := api.Run{Receipts: []string{"x"}}
	for want, r := range map[string]api.Report{
		verified: {Run: ok, Verification: &api.Verification{OK: true}},
		broken:   {Run: ok, Verification: &api.Verification{Problems: []api.Problem{{}}}},
		unproven: {Run: ok, Verification: &api.Verification{OK: true, Unproven: []string{"x"}}},
	} {
		if Complete(&r); r.Evidence != want {
			t.Errorf("%q, not %q", r.Evidence, want)
		}
	}
	r := api.Report{Run: ok}
	if Complete(&r); r.Evidence != unproven || !strings.Contains(strings.Join(r.Unknown, " "), "could not be verified") {
		t.Errorf("without a verification it is %q", r.Evidence)
	}
}

// wide is a comparison in which all texts are s.
func wide(s string) *api.Comparison {
	run := whole(s).Run
	c := &api.Comparison{Version: s, Subjects: []api.CompareSubject{{Name: s, Kind: "run", Run: &run, Outcome: s, From: s, Base: "1", Tokens: 2, USD: 1}, {Name: s, Kind: "cell", From: s, Base: "2", Problem: s}}}
	SideBySide(c, [][]api.FileChange{{{Path: s, Status: s, NewDigest: "1"}, {Path: "a", Status: "added", NewDigest: "1"}}, {{Path: "a", Status: "added", NewDigest: "2"}}}, 10)
	return c
}

func TestCompareHostile(t *testing.T) {
	page := func(s string) string {
		var b bytes.Buffer
		if err := CompareHTML(&b, wide(s)); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	want := strings.Join(tags(t, page("x")), "")
	for _, s := range []string{`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, "</style>", "\u202e", "\x1b[8m", "{{.}}"} {
		if got := page(s); strings.Join(tags(t, got), "") != want || strings.ContainsAny(got, "\u202e\x1b") {
			t.Errorf("%q makes other elements, or is on the page as it is", s)
		}
		var b bytes.Buffer
		if err := CompareMarkdown(&b, wide(s)); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(b.String(), "\n#"); n != 1 {
			t.Errorf("%q makes %d headings", s, n)
		}
	}
}

func TestSideBySide(t *testing.T) {
	file := func(path, digest, mode string) api.FileChange {
		return api.FileChange{Path: path, Status: "modified", NewDigest: digest, OldMode: "100644", NewMode: mode}
	}
	c := &api.Comparison{Subjects: make([]api.CompareSubject, 3)}
	SideBySide(c, [][]api.FileChange{
		{file("all", "1", "100644"), file("mode", "1", "100644"), file("two", "1", "100644"), {Path: "gone", Status: "deleted", NewDigest: "x"}},
		{file("all", "1", "100644"), file("mode", "1", "100755"), file("two", "1", "100644"), {Path: "gone", Status: "deleted", NewDigest: "y"}},
		{file("all", "1", "100644"), file("mode", "1", "100644"), file("own", "1", "100644"), {Path: "gone", Status: "deleted"}},
	}, 3)
	var got []string
	for _, f := range c.Files {
		s := f.Path + " " + f.Is
		for _, x := range f.In {
			s += " " + letter(x.Group)
		}
		got = append(got, s)
	}
	if want := "mode differs A B A|two differs A A |own only   A"; strings.Join(got, "|") != want {
		t.Errorf("%q, not %q", strings.Join(got, "|"), want)
	}
	if c.Same != 2 || c.Differ != 2 || c.Only != 1 || len(c.Notes) != 1 {
		t.Errorf("%d are the same, %d differ, %d are only in one, notes %q", c.Same, c.Differ, c.Only, c.Notes)
	}
}

func TestChart(t *testing.T) {
	start := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	r := &api.Report{Run: api.Run{Started: start, Ended: start.Add(4 * time.Second), Usage: api.Usage{CPUMS: 3000}}}
	if chartOf(r) != nil {
		t.Error("there is a chart of nothing")
	}
	for i, s := range []api.Sample{{CPUMS: 1000, Memory: 1 << 20}, {CPUMS: 3000, Memory: 2 << 20}} {
		s.At = start.Add(time.Duration(i+1) * time.Second)
		r.Samples = append(r.Samples, s)
	}
	c := chartOf(r)
	if c == nil || c.Most != "2.00 cores" || c.MostMem != "2 MiB" || c.Cores != "0.0,62.0 150.0,62.0 150.0,4.0 300.0,4.0 300.0,120.0 600.0,120.0" || c.Memory != "150.0,62.0 300.0,4.0" {
		t.Errorf("%+v", c)
	}
}
