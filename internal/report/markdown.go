package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/policy"
)

// Bounds of what Markdown has of changes: a person reads it in a terminal or a merge request. HTML has more.
const (
	markdownFileLimit = 30
	markdownLines     = 60
)

// Markdown writes a report as Markdown, as GitHub, GitLab and terminals show it.
func Markdown(w io.Writer, raw *api.Report) error {
	r, err := safe(raw)
	if err != nil {
		return err
	}
	var b strings.Builder
	run := &r.Run
	fmt.Fprintf(&b, "# %s\n\n", text(r.Headline))
	fmt.Fprintf(&b, "%s\n\n", code(strings.Join(run.Command, " ")))
	b.WriteString("| | |\n|---|---|\n")
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "| %s | %s |\n", cell(name), cell(value))
		}
	}
	row("run", run.ID)
	row("cell", run.CellName)
	row("asked for by", run.Asked.String())
	row("reference", run.Ref)
	row("outcome", Outcome(run))
	row("verdict", strings.TrimSuffix(run.Verdict+", "+run.Reason, ", "))
	if c := run.Check; c != nil {
		row("check", fmt.Sprintf("%s: exit code %d", c.Command, c.ExitCode))
		row("checked with these as they were before", strings.Join(c.Pins, ", "))
	}
	row("changes", fmt.Sprintf("%s, %d added, %d deleted, %d ignored by git", count(run.Changes.Files, "file"), run.Changes.Added, run.Changes.Deleted, r.Ignored))
	row("evidence", evidenceWords[r.Evidence])
	row("isolation", run.Isolation+", backend "+run.Backend)
	row("weaker than by default", strings.Join(run.DowngradeWords, ", "))
	row("took", Took(run))

	if len(r.Problems) > 0 {
		b.WriteString("\n## Parts that could not be drawn\n\n")
		for _, p := range r.Problems {
			fmt.Fprintf(&b, "- %s\n", text(p))
		}
	}
	markdownFindings(&b, r.Findings)
	markdownFiles(&b, r.Files, r.More, run.ID)
	list := func(title string, items []string) {
		if len(items) == 0 {
			return
		}
		fmt.Fprintf(&b, "\n## %s\n\n", title)
		for _, x := range items {
			fmt.Fprintf(&b, "- %s\n", text(x))
		}
	}
	list("Not in a patch", r.Notes)

	b.WriteString("\n## Check and output\n\n")
	if c := run.Check; c != nil {
		fmt.Fprintf(&b, "Check %s, exit code %d:\n\n", code(c.Command), c.ExitCode)
		block(&b, "", c.Output)
		b.WriteString("\n")
	}
	for _, o := range r.Output {
		fmt.Fprintf(&b, "%s, %s:\n\n", o.Name, policy.FormatSize(o.Bytes))
		block(&b, "", o.Text)
		b.WriteString("\n")
	}

	markdownCalls(&b, r)
	markdownProcesses(&b, r)
	markdownNetwork(&b, run.Network)
	if rec := run.Recording; rec != nil {
		fmt.Fprintf(&b, "\nRecorded for a replay: %s.\n", text(rec.Words(policy.FormatSize)))
	}
	b.WriteString("\n## Safety\n\n| | | |\n|---|---|---|\n")
	for _, f := range r.Posture {
		weak := ""
		if f.Weak {
			weak = "**weak**: "
		}
		fmt.Fprintf(&b, "| %s | %s%s | %s |\n", cell(f.Name), weak, cell(f.Text), f.Basis)
	}
	list("What cannot be concluded from this", r.Unknown)
	if n := run.NeedsSignOff; n != nil || len(run.SignOffs) > 0 {
		b.WriteString("\n## Approvals\n\n")
		if n != nil {
			fmt.Fprintf(&b, "The policy demanded %s: %s.\n\n", count(int(n.Needs), "sign-off"), text(strings.Join(n.Why, "; ")))
		}
		for _, s := range run.SignOffs {
			fmt.Fprintf(&b, "- %s\n", text(SignOffLine(s)))
		}
	}
	b.WriteString("\n## Integrity\n\n| | |\n|---|---|\n")
	if v := r.Verification; v != nil {
		row("checked", fmt.Sprintf("%s, %s, ledger of %d", count(int(v.Receipts), "receipt"), count(v.Files, "file"), v.Head))
		row("key", v.KeyID)
		for _, p := range v.Problems {
			row("problem", p.Reason+": "+p.What)
		}
	}
	if p := run.Before; p != nil {
		row("before", fmt.Sprintf("@%d %s", p.Number, p.TreeDigest))
	}
	if p := run.After; p != nil {
		row("after", fmt.Sprintf("@%d %s", p.Number, p.TreeDigest))
	}
	for _, x := range r.Receipts {
		row(fmt.Sprintf("receipt %d", x.Index), x.Summary+", "+x.ID)
	}
	fmt.Fprintf(&b, "\nVerify: %s. Have it again: %s; execute it again and compare: %s\n", code("pando receipt verify "+run.ID), code("pando replay "+run.ID), code("pando replay "+run.ID+" --verify"))
	_, err = io.WriteString(w, b.String())
	return err
}

// markdownFindings writes the part with findings.
func markdownFindings(b *strings.Builder, list []api.RunFinding) {
	b.WriteString("\n## Findings\n\n")
	if len(list) == 0 {
		b.WriteString("No rule found anything. That says what was looked for, and not that there is nothing.\n")
	}
	for _, f := range list {
		where := ""
		if f.Path != "" {
			where = code(f.Path)
			if f.Line > 0 {
				where += fmt.Sprintf(", line %d", f.Line)
			}
			where += ": "
		}
		fmt.Fprintf(b, "- **%s**: %s (%s). %s%s%s. %s\n", f.Severity, text(f.Title), code(f.Rule), where, text(f.What), text(inRuns(f)), code(f.See))
	}
}

// inRuns says in which runs it was found, in the report of a cell.
func inRuns(f api.RunFinding) string {
	if len(f.Runs) == 0 {
		return ""
	}
	return " (in " + first(f.Runs, 3) + ")"
}

// markdownFiles writes the part with changes. name is a selector of what they are of.
func markdownFiles(b *strings.Builder, files []api.ReportFile, more int, name string) {
	b.WriteString("\n## Changes\n\n")
	if len(files) == 0 {
		b.WriteString("No file that git would see changed.\n")
	}
	for i, f := range files {
		if i == markdownFileLimit {
			fmt.Fprintf(b, "\nAnd %s: %s\n", count(len(files)-i+more, "more file"), code("pando diff "+name+" --stat"))
			break
		}
		path := f.File.Path
		if f.File.OldPath != "" {
			path = f.File.OldPath + " → " + f.File.Path
		}
		fmt.Fprintf(b, "### %s %s, +%d −%d\n\n", text(f.File.Status), code(path), f.File.Added, f.File.Deleted)
		for _, why := range []string{f.Held, f.First} {
			if why != "" {
				fmt.Fprintf(b, "Look at it first: %s.\n\n", text(why))
				break
			}
		}
		if f.NoLines != "" {
			fmt.Fprintf(b, "%s\n\n", text(f.NoLines))
		}
		if len(f.Lines) == 0 {
			continue
		}
		var lines strings.Builder
		left := f.MoreLines
		for n, l := range f.Lines {
			if n == markdownLines {
				left += len(f.Lines) - n
				break
			}
			kind := l.Kind
			if kind == "@" {
				kind = ""
			}
			lines.WriteString(kind + l.Text + "\n")
		}
		block(b, "diff", lines.String())
		if left > 0 {
			fmt.Fprintf(b, "\nand %s: %s\n", count(left, "more line"), code("pando diff "+name))
		}
		b.WriteString("\n")
	}
}

// markdownNetwork writes the part with the network, if there was one.
func markdownNetwork(b *strings.Builder, n *api.Network) {
	if n == nil {
		return
	}
	fmt.Fprintf(b, "\n## Network\n\n%d decisions, %d denied; %s out, %s in.\n", n.Decisions, n.Denied, policy.FormatSize(n.Sent), policy.FormatSize(n.Received))
	for _, p := range n.Peers {
		fmt.Fprintf(b, "- %s: %d requests, %s out, %s in\n", code(fmt.Sprintf("%s:%d", p.Host, p.Port)), p.Requests, policy.FormatSize(p.Sent), policy.FormatSize(p.Received))
	}
	for _, d := range n.Denials {
		fmt.Fprintf(b, "- denied: %s\n", text(d.String()))
	}
}

// text escapes what Markdown and HTML would read in text of one line.
func text(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case strings.ContainsRune("\\`*_{}[]<>#|~!&@", r):
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n' || r == '\r' || r == '\t':
			b.WriteByte(' ')
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// cell is text in a table.
func cell(s string) string { return text(s) }

// code is text in a fence that is longer than any in it.
func code(s string) string {
	s = strings.NewReplacer("\n", " ", "\r", " ").Replace(s)
	fence := strings.Repeat("`", longestRun(s)+1)
	if fence == "`" {
		return fence + s + fence
	}
	return fence + " " + s + " " + fence
}

// block writes lines in a fence that is longer than any in them.
func block(b *strings.Builder, language, s string) {
	fence := strings.Repeat("`", max(3, longestRun(s)+1))
	fmt.Fprintf(b, "%s%s\n%s", fence, language, s)
	if s != "" && !strings.HasSuffix(s, "\n") {
		b.WriteByte('\n')
	}
	b.WriteString(fence + "\n")
}

// longestRun is the length of the longest run of back quotes.
func longestRun(s string) (longest int) {
	n := 0
	for i := range len(s) {
		if s[i] != '`' {
			n = 0
			continue
		}
		n++
		longest = max(longest, n)
	}
	return longest
}
