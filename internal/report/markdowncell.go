package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/policy"
)

// Bounds of what Markdown has of a cell.
const (
	markdownSteps = 100
	markdownRuns  = 50
)

// CellMarkdown writes the report of a cell as Markdown.
func CellMarkdown(w io.Writer, raw *api.CellReport) error {
	r, err := safe(raw)
	if err != nil {
		return err
	}
	var b strings.Builder
	name := r.Cell.Name
	fmt.Fprintf(&b, "# %s: %s\n\n| | |\n|---|---|\n", text(name), text(r.Headline))
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "| %s | %s |\n", cell(name), cell(value))
		}
	}
	row("cell", r.Cell.ID)
	row("source", r.Cell.Source)
	row("agent", r.Cell.Agent)
	if r.To != "" {
		row("changes", fmt.Sprintf("%s from %s to %s, %d ignored by git", count(len(r.Files)+r.More, "file"), r.From, r.To, r.Ignored))
	}
	row("evidence", evidenceWords[r.Evidence])
	row("isolation", r.Cell.Isolation+", backend "+r.Cell.Backend)
	row("weaker than by default", strings.Join(r.Weaker, ", "))
	row("time of its runs", (time.Duration(r.Usage.WallMS) * time.Millisecond).String())
	row("processor", fmt.Sprintf("%d ms", r.Usage.CPUMS))
	if r.Usage.PeakMemory > 0 {
		row("peak memory", policy.FormatSize(r.Usage.PeakMemory))
	}
	if len(r.Problems) > 0 {
		b.WriteString("\n## Parts that could not be drawn\n\n")
		for _, p := range r.Problems {
			fmt.Fprintf(&b, "- %s\n", text(p))
		}
	}
	markdownFindings(&b, r.Findings)
	markdownTimeline(&b, r)
	markdownFiles(&b, r.Files, r.More, name)
	list := func(title string, items []string) {
		if len(items) == 0 {
			return
		}
		fmt.Fprintf(&b, "\n## %s\n\n", title)
		for _, x := range items {
			fmt.Fprintf(&b, "- %s\n", text(x))
		}
	}
	list("Notes", r.Notes)
	markdownNetwork(&b, r.Network)
	list("What cannot be concluded from this", r.Unknown)
	markdownProofs(&b, r)
	fmt.Fprintf(&b, "\nVerify one: %s. What one did: %s\n", code("pando receipt verify RUN"), code("pando report RUN"))
	_, err = io.WriteString(w, b.String())
	return err
}

func markdownTimeline(b *strings.Builder, r *api.CellReport) {
	b.WriteString("\n## Timeline\n\n")
	steps := r.Steps[max(0, len(r.Steps)-markdownSteps):]
	if len(steps) == 0 {
		b.WriteString("Nothing was done in it.\n")
		return
	}
	if n := len(r.Steps) - len(steps) + r.MoreSteps; n > 0 {
		fmt.Fprintf(b, "%s before these: %s\n\n", count(n, "step"), code("pando timeline "+r.Cell.Name))
	}
	b.WriteString("| before | when | kind | what | end | changed, spoke with |\n|---|---|---|---|---|---|\n")
	for _, s := range steps {
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s |\n", stepNumber(s), stepTime(s), cell(stepKind(s)), cell(stepText(s)), cell(stepEnd(s)), cell(stepEffect(s)))
	}
}

func markdownProofs(b *strings.Builder, r *api.CellReport) {
	b.WriteString("\n## Runs and their receipts\n\n")
	runs := r.Runs[max(0, len(r.Runs)-markdownRuns):]
	if len(runs) == 0 {
		b.WriteString("It has no runs.\n")
		return
	}
	if n := len(r.Runs) - len(runs) + r.MoreRuns; n > 0 {
		fmt.Fprintf(b, "%s before these: %s\n\n", count(n, "run"), code("pando runs "+r.Cell.Name))
	}
	b.WriteString("| run | command | outcome | verdict | evidence | receipts |\n|---|---|---|---|---|---|\n")
	for _, x := range runs {
		outcome := x.Outcome
		if x.Check != "" {
			outcome += "; check " + x.Check
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s |\n", cell(x.Run), cell(strings.Join(x.Command, " ")), cell(outcome), cell(x.Verdict), cell(evidenceWords[x.Evidence]), cell(receiptWords(x)))
	}
	for _, x := range runs {
		if v := x.Verification; v != nil {
			for _, p := range v.Problems {
				fmt.Fprintf(b, "\n- run %s: %s: %s\n", text(x.Run), text(p.Reason), text(p.What))
			}
		}
	}
}

// receiptWords are the receipts of a run, in one line.
func receiptWords(x api.CellRun) string {
	var list []string
	for _, p := range x.Receipts {
		list = append(list, fmt.Sprintf("%d: %s, %s", p.Index, p.Summary, p.ID))
	}
	return first(list, 5)
}

// evidenceWords say whether evidence holds.
var evidenceWords = map[string]string{verified: "verified", unproven: "not all of it verified", broken: "DOES NOT VERIFY"}

// What a line of a timeline says of a step.

func stepNumber(s api.Step) string {
	switch {
	case s.Number == 0:
		return "–"
	case s.Undone:
		return "(@" + strconv.Itoa(s.Number) + ")"
	}
	return "@" + strconv.Itoa(s.Number)
}

func stepTime(s api.Step) string { return s.Began.UTC().Format("2006-01-02 15:04:05") }

func stepKind(s api.Step) string {
	kind := s.Kind
	if s.Kind == "tool" {
		kind = "tool " + s.Tool
	} else if s.Turn > 0 {
		kind += " " + strconv.Itoa(s.Turn)
	}
	if s.Within != "" && s.Within != s.ID {
		kind = "↳ " + kind
	}
	return kind
}

// stepText is the text of a step in one line.
func stepText(s api.Step) string {
	const most = 200
	t := strings.Join(strings.Fields(s.Text), " ")
	if r := []rune(t); len(r) > most {
		t = string(r[:most]) + "…"
	}
	return t
}

func stepEnd(s api.Step) string {
	end := ""
	switch {
	case s.Running:
		end = "goes on"
	case s.Cause != "":
		end = s.Cause
	case s.Signal != "":
		end = s.Signal
	case s.ExitCode != nil && *s.ExitCode != 0:
		end = "exit " + strconv.Itoa(*s.ExitCode)
	case s.ExitCode != nil || s.Kind == "tool":
		end = "ok"
	case s.Kind == "exec" || s.Kind == "eval":
		end = "end not known"
	}
	for _, more := range []string{s.Verdict, map[bool]string{true: "undone"}[s.Undone], s.Basis} {
		if more != "" {
			end = strings.TrimPrefix(end+", "+more, ", ")
		}
	}
	return end
}

// stepBad reports whether a step ended otherwise than it should.
func stepBad(s api.Step) bool {
	return s.Cause != "" || s.Signal != "" || s.ExitCode != nil && *s.ExitCode != 0
}

// stepEffect is what a step changed, and spoke with.
func stepEffect(s api.Step) string {
	var list []string
	switch {
	case s.Unknown != "":
		list = append(list, "changes not known: "+s.Unknown)
	case s.Files > 0:
		what := count(s.Files, "file")
		var names []string
		for _, f := range s.Changed {
			names = append(names, f.Status+" "+f.Path)
		}
		if len(names) > 0 {
			what += ": " + first(names, 3)
		}
		list = append(list, what)
	}
	if len(s.Hosts) > 0 {
		list = append(list, first(slices.Clone(s.Hosts), 3))
	}
	if s.Denied > 0 {
		list = append(list, fmt.Sprintf("%d denied", s.Denied))
	}
	if s.Without != "" {
		list = append(list, "no checkpoint of its own: "+s.Without)
	}
	return strings.Join(list, "; ")
}
