package evidence

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// markdown tells a receipt to people, and what was signed about its run later.
func markdown(entry receipt.Entry, s receipt.Statement, p said, later []api.Receipt) string {
	var b strings.Builder
	if p != nil {
		p.markdown(&b, later)
	}
	fmt.Fprintf(&b, "\n## Evidence\n\n| | |\n|---|---|\n")
	row(&b, "receipt", entry.ID.String())
	row(&b, "ledger", fmt.Sprintf("number %d, after head %s", entry.Index, s.Binding.Ledger.Root.Short()))
	row(&b, "about", s.Binding.Key)
	if p != nil {
		row(&b, "comes from", strings.Join(p.parents(), ", "))
	}
	return b.String()
}

func row(b *strings.Builder, name string, value any) {
	v := strings.ReplaceAll(fmt.Sprint(value), "|", `\|`)
	v = strings.ReplaceAll(v, "\n", " ")
	if v != "" {
		fmt.Fprintf(b, "| %s | %s |\n", name, v)
	}
}

func (p *runPredicate) markdown(b *strings.Builder, later []api.Receipt) {
	fmt.Fprintf(b, "# Run %s: %s\n\n", p.Run, exitWords(p.ExitCode, p.Signal, p.Cause))
	if !policy.Isolates(p.Backend) {
		b.WriteString("**Not isolated:** the command ran on the host, and could read and change whatever its user can.\n\n")
	}
	fmt.Fprintf(b, "`%s`\n\n", strings.ReplaceAll(strings.Join(p.Command, " "), "`", "'"))
	b.WriteString("| | |\n|---|---|\n")
	verdict := "**" + string(p.Verdict.Verdict) + "**"
	if p.Verdict.Reason != "" {
		verdict += ", " + p.Verdict.Reason
	}
	row(b, "verdict", verdict+" (by "+p.Verdict.By+")")
	for _, l := range later {
		row(b, "later", fmt.Sprintf("**%s** on %s: %s, receipt %s", cmp.Or(l.Verdict, "signed"), l.At.Format(time.RFC3339), l.Summary, short(l.ID)))
	}
	if p.Error != nil {
		row(b, "did not start", p.Error.Message)
	}
	row(b, "cell", cmp.Or(p.CellName, p.Cell))
	row(b, "source", p.Source.Path+", "+untouchedWords(p.Source))
	for _, dir := range p.Source.With {
		row(b, "with", dir)
	}
	row(b, "changes", fmt.Sprintf("%s (%d added, %d deleted, %d ignored by git)", counted(p.Changes.Files, "file"), p.Changes.Added, p.Changes.Deleted, p.Changes.Ignored))
	for _, l := range p.Changes.First {
		row(b, "look first", l.Line())
	}
	if p.Changes.FirstMore > 0 {
		row(b, "look first", fmt.Sprintf("and %d more: pando diff --stat", p.Changes.FirstMore))
	}
	if !p.Started.IsZero() && !p.Ended.IsZero() {
		row(b, "time", fmt.Sprintf("%s, %s", p.Started.Format(time.RFC3339), p.Ended.Sub(p.Started).Round(time.Millisecond)))
	}
	if p.Check != nil {
		row(b, "check", fmt.Sprintf("`%s` exit %d", p.Check.Command, p.Check.ExitCode))
		if len(p.Check.Pins) > 0 {
			row(b, "pinned", fmt.Sprintf("`%s`: as before the run, for the check", strings.Join(p.Check.Pins, "`, `")))
		}
		if len(p.Check.Restored) > 0 {
			row(b, "pinned, and changed", fmt.Sprintf("`%s`", strings.Join(p.Check.Restored, "`, `")))
		}
		if len(p.Check.Changed) > 0 {
			row(b, "of the check, and changed", fmt.Sprintf("`%s`", strings.Join(p.Check.Changed, "`, `")))
		}
	}

	b.WriteString("\n## Workspace\n\n| | before | after |\n|---|---|---|\n")
	three := func(name, x, y string) {
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, cmp.Or(x, "–"), cmp.Or(y, "–"))
	}
	x, y := orPoint(p.Before), orPoint(p.After)
	three("checkpoint", numberWords(p.Before), numberWords(p.After))
	three("tree digest", short(x.TreeDigest), short(y.TreeDigest))
	three("content digest", short(x.ContentDigest), short(y.ContentDigest))
	for _, r := range p.Source.Repositories {
		three("tree of `"+r.At+"`", r.Before.Short(), r.After.Short())
	}
	three("source", p.Source.Before.Short(), p.Source.After.Short())
	provider := p.Workspace.Name
	if p.Workspace.Why != "" {
		provider += " (" + p.Workspace.Why + ")"
	}
	fmt.Fprintf(b, "\nKept by %s.", cmp.Or(provider, "nothing"))
	if p.Restore != nil {
		fmt.Fprintf(b, " Restored; proven by %s.", p.Restore.Proof)
	}
	b.WriteString("\n")
	if len(p.Source.LeftOut) > 0 {
		b.WriteString("\nLeft out of the import, and secrets that were not:\n\n")
		for _, l := range p.Source.LeftOut {
			fmt.Fprintf(b, "- `%s`: %s", l.Path, l.Why)
			if len(l.Of) > 0 {
				fmt.Fprintf(b, " (%s)", strings.Join(l.Of, ", "))
			}
			if l.History {
				b.WriteString("; git's objects in the cell have what was committed of it")
			}
			if l.Fix != "" {
				fmt.Fprintf(b, "; let it in with `%s`", l.Fix)
			}
			b.WriteString("\n")
		}
	}

	b.WriteString("\n## Isolation\n\n| | |\n|---|---|\n")
	row(b, "backend", inBackend(p.Backend)+", image "+p.Image+strings.TrimRight(" "+p.ImageID, " "))
	row(b, "measured", strings.Join(p.Assurance.Isolation, ", "))
	if p.Assurance.Canaries.Total > 0 {
		c := p.Assurance.Canaries
		text := fmt.Sprintf("%d/%d stopped, by %s", c.Passed, c.Total, strings.Join(c.Bites, ", "))
		if c.Fresh && !c.At.IsZero() {
			text += "; tried by the command's own process at " + c.At.UTC().Format(time.RFC3339)
		}
		if len(c.Skipped) > 0 {
			text += "; allowed by the policy, so not tried: " + strings.Join(c.Skipped, ", ")
		}
		row(b, "canaries", text)
	}
	row(b, "network", p.Assurance.Network)
	row(b, "users", p.Assurance.IDs)
	row(b, "called, and not there", strings.Join(p.Missing, ", "))
	row(b, "asked for by", p.Asked.API().String())
	row(b, "reference", p.Ref)
	row(b, "mode", p.Mode)
	row(b, "reason of the mode", p.ModeReason)
	row(b, "autonomy", p.Autonomy)
	row(b, "model server", p.ModelURL)
	row(b, "replay of", p.ReplayOf)
	row(b, "weaker than by default", strings.Join(p.Words, ", "))
	row(b, "policy", short(p.Policy.Digest))
	if f := p.Isolation; f.Rule != "" {
		row(b, "at least", f.Least+", by the rule "+f.Rule)
	}
	row(b, "environment", strings.Join(p.EnvNames, ", "))
	for _, l := range p.Assurance.Limits {
		row(b, "limit "+l.Name, limitWords(l))
	}
	section(b, "Weaker than it could be", "- %s\n", p.Downgrades)

	networkMarkdown(b, p.Network)
	secretsMarkdown(b, p.Secrets)
	b.WriteString("\n## Use\n\n| | |\n|---|---|\n")
	used := fmt.Sprintf("%.3f s", float64(p.Usage.CPUMS)/1000)
	if p.Usage.CPUAverage > 0 {
		used += fmt.Sprintf(", %.2f cores on average", p.Usage.CPUAverage)
	}
	row(b, "processor", used)
	row(b, "peak memory", policy.FormatSize(p.Usage.PeakMemory))
	if p.Usage.PeakPIDs > 0 {
		row(b, "processes at most", p.Usage.PeakPIDs)
	}
	row(b, "written", written(p))
	for _, c := range p.Caches {
		read := "read"
		if !c.Read {
			read = "empty before"
		}
		row(b, "cache "+c.Name, read+", "+policy.FormatSize(c.Wrote)+" written")
	}
	for _, s := range p.Services {
		row(b, "service "+s.Name, s.Image+" "+s.ImageID)
	}
	if r := p.Recording; r != nil {
		row(b, "recording", fmt.Sprintf("%d exchanges, %s %s", r.Exchanges, policy.FormatSize(r.Bytes), r.Incomplete))
	}
	row(b, "output", fmt.Sprintf("%s on stdout, %s on stderr", policy.FormatSize(p.Output.Stdout.Bytes), policy.FormatSize(p.Output.Stderr.Bytes)))
	t := p.Timings
	row(b, "times", fmt.Sprintf("import %.1f ms, checkpoint %.1f, start %.1f, run %.1f, freeze %.1f, digest %.1f, restore %.1f, total %.1f",
		t.Import, t.Checkpoint, t.Start, t.Run, t.Freeze, t.Digest, t.Restore, t.Total))

	b.WriteString("\n## Files\n\n| file | digest |\n|---|---|\n")
	var names []string
	for n := range p.Files {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		row(b, n, p.Files[n])
	}
}

func (p *act) markdown(b *strings.Builder, _ []api.Receipt) {
	fmt.Fprintf(b, "# %s%s in cell %s\n\n| | |\n|---|---|\n", strings.ToUpper(p.Act[:1]), p.Act[1:], cmp.Or(p.CellName, p.Cell))
	if !policy.Isolates(p.Backend) {
		row(b, "isolation", "**not isolated**, backend "+p.Backend)
	}
	row(b, "at", p.At.Format(time.RFC3339))
	for _, r := range p.Runs {
		row(b, "run "+r.Run, "**"+string(r.Verdict)+"**, its receipt "+r.Receipt)
	}
	if p.Verdict != nil {
		row(b, "verdict", "**"+string(p.Verdict.Verdict)+"** "+p.Verdict.Reason)
	}
	if s := p.SignOff; s != nil {
		row(b, "approver", s.Approver+", key `"+s.Key+"`")
		row(b, "says", "**"+s.Decision+"** "+s.Message)
		row(b, "signed at", s.At.Format(time.RFC3339))
		row(b, "of runs", strings.Join(s.Runs, ", "))
		row(b, "commit", s.Commit)
	}
	for _, s := range p.SignedBy {
		row(b, "approved by", s.Approver+", "+s.At.Format(time.RFC3339)+", key `"+s.Key+"`")
	}
	row(b, "by", p.By)
	row(b, "reason", p.Reason)
	if p.Forced {
		row(b, "forced", "yes")
	}
	row(b, "from", numberWords(p.From))
	row(b, "to", numberWords(p.To))
	row(b, "proof", p.Proof)
	row(b, "runs no longer in the workspace", strings.Join(p.Lost, ", "))
	row(b, "new cells", strings.Join(p.Children, ", "))
	row(b, "changes", p.Digest)
	section(b, "Taken back from "+p.Source, "- `%s`\n", p.Reverted)
	section(b, "In "+p.Source+" as before the accept already", "- `%s`\n", p.Already)
	section(b, "Applied to "+p.Source, "- `%s`\n", p.Applied)
	section(b, "Of these, some hunks alone", "- `%s`\n", p.Parts)
	section(b, "Brought into the cell from "+p.Source, "- `%s`\n", p.Synced)
	if mv := p.Branch; mv != nil {
		signed := ""
		if mv.Signed != "" {
			signed = ", signed with " + mv.Signed
		}
		row(b, "branch "+mv.Branch, fmt.Sprintf("%s, with %d commits%s; before: %s", mv.Now, mv.Commits, signed, cmp.Or(mv.Was, "none")))
	}
	row(b, "caches kept", strings.Join(p.Caches, ", "))
	section(b, "Committed with it, as "+p.Source+" had it", "- `%s`\n", p.Also)
	fetched := []string{}
	for _, f := range p.Fetched {
		fetched = append(fetched, fmt.Sprintf("`%s`: %s", f.Ref, cmp.Or(f.Commit, "removed")))
	}
	section(b, "Fetched into the repository of "+p.Source, "- %s\n", fetched)
	merged := []string{}
	for _, f := range p.Merged {
		merged = append(merged, fmt.Sprintf("`%s`, %d conflicts", f.Path, f.Conflicts))
	}
	section(b, "Merged", "- %s\n", merged)
	erased := []string{}
	for _, e := range p.Erased {
		text := fmt.Sprintf("`%s` of run %s, %d bytes, %s", e.File, e.Run, e.Bytes, e.Digest)
		if e.Found != "" {
			text += ", and was not that: " + e.Found
		}
		erased = append(erased, text)
	}
	section(b, "Erased", "- %s\n", erased)
	if len(p.Held) > 0 {
		b.WriteString("\nHeld back, because it controls what runs on the host:\n\n")
		for _, h := range p.Held {
			fmt.Fprintf(b, "- `%s`: %s\n", h.Path, h.Why)
		}
	}
}

// section writes a list, if there is anything in it.
func section(b *strings.Builder, title, format string, list []string) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s:\n\n", title)
	for _, x := range list {
		fmt.Fprintf(b, format, x)
	}
}

func untouchedWords(s sourceFacts) string {
	switch {
	case s.Untouched:
		return "untouched"
	case s.Before.IsZero() || s.After.IsZero():
		return "not looked at both before and after"
	}
	return "changed meanwhile, not by the run"
}

func limitWords(l state.AppliedLimit) string {
	v := cmp.Or(amountWords(l.Name, l.Applied), "not in force")
	if l.How != "" {
		v += ", by " + l.How
	}
	if l.Asked != "" {
		v += " (asked: " + amountWords(l.Name, l.Asked) + ")"
	}
	return v
}

// amountWords writes an amount of bytes for people; other amounts stay.
func amountWords(limit, amount string) string {
	n, err := strconv.ParseInt(amount, 10, 64)
	if err != nil || (limit != "memory" && limit != "disk") {
		return amount
	}
	return policy.FormatSize(n)
}

func orPoint(p *state.Point) state.Point {
	if p == nil {
		return state.Point{}
	}
	return *p
}

func numberWords(p *state.Point) string {
	if p == nil {
		return ""
	}
	return fmt.Sprintf("@%d", p.Number)
}

func short(d string) string {
	if len(d) > 19 {
		return d[:19] + "…"
	}
	return d
}

// written says what a run wrote: the files it changed, and what the kernel
// counted on its way to disks, which lags behind.
func written(p *runPredicate) string {
	text := policy.FormatSize(p.Changes.Bytes) + " in changed files"
	if slices.Contains(p.Usage.Measured, "written") {
		text += ", " + policy.FormatSize(p.Usage.Written) + " to disks so far"
	}
	return text
}

func (p *Batch) markdown(b *strings.Builder, _ []api.Receipt) {
	s := p.summary()
	fmt.Fprintf(b, "# %s%s\n\n| | |\n|---|---|\n", strings.ToUpper(s[:1]), s[1:])
	row(b, "at", p.At.Format(time.RFC3339))
	row(b, "from", numberWords(p.From))
	row(b, "files", orPoint(p.From).TreeDigest)
	row(b, "template", strings.TrimSpace(p.Template+" "+p.Digest))
	row(b, "interpreter", strings.TrimSpace(p.Interpreter+" "+p.Program))
	row(b, "policy", p.Policy.Digest)
	row(b, "backend", inBackend(p.Backend))
	if a := p.Assurance; a != nil {
		row(b, "measured", strings.Join(a.Isolation, ", "))
	}
	row(b, "took along", p.Took)
	row(b, "left behind", p.Dropped)
	if p.Act == state.BatchBranch {
		row(b, "the source stood still", fmt.Sprintf("%.1f ms", p.PauseMS))
		row(b, "its memory was taken", p.MemoryTaken)
	}
	if len(p.Downgrades) > 0 {
		row(b, "weaker than it could be", strings.Join(p.Downgrades, "; "))
	}
	section(b, "Not made", "- %s\n", p.Failed)
	if len(p.Cells) == 0 {
		return
	}
	b.WriteString("\n## Cells\n\n| cell | id | canaries | hazards that were measured |\n|---|---|---|---|\n")
	for _, c := range p.Cells {
		canaries, hazards := "", ""
		if k := c.Certificate; k != nil {
			canaries = fmt.Sprintf("%d of %d", k.Battery.Passed, k.Battery.Total)
			var names []string
			for _, h := range k.Hazards {
				names = append(names, h.Name)
			}
			hazards = strings.Join(names, ", ")
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", c.Name, c.Cell, canaries, hazards)
	}
}

// networkMarkdown tells what a run said to the outside.
func networkMarkdown(b *strings.Builder, n *state.Network) {
	if n == nil {
		return
	}
	if n.Tried > 0 {
		fmt.Fprintf(b, "\n## Network\n\nThe cell had none. %d packets of the command had nowhere to go.\n", n.Tried)
		return
	}
	fmt.Fprintf(b, "\n## Network\n\n%d decisions: %d denied, %d allowed by a person. %s out of the cell, %s into it.\n",
		n.Decisions, n.Denied, n.Approved, policy.FormatSize(n.Sent), policy.FormatSize(n.Received))
	if n.Unchecked > 0 {
		fmt.Fprintf(b, "\n%d connections or requests went through the proxy of the host to names that the host itself does not find: which addresses they led to was not checked.\n", n.Unchecked)
	}
	for _, u := range n.Unresolved {
		fmt.Fprintf(b, "\n`%s` is allowed, and could not be looked up: %s.\n", tableText(u.Host), tableText(u.Error))
	}
	if len(n.Peers) > 0 {
		b.WriteString("\n| talked to | times | out | in | looked into | credentials put in |\n|---|---|---|---|---|---|\n")
		for _, p := range n.Peers {
			opened := "no"
			if p.Opened {
				opened = "yes"
			}
			fmt.Fprintf(b, "| `%s` | %d | %s | %s | %s | %s |\n", tableText(fmt.Sprintf("%s:%d", p.Host, p.Port)), p.Flows, policy.FormatSize(p.Sent), policy.FormatSize(p.Received),
				opened, cmp.Or(strings.Join(p.Credential, ", "), "–"))
		}
	}
	if len(n.Models) > 0 {
		title := "price by the policy"
		if n.Prices != "" {
			title = "list price of " + n.Prices
		}
		b.WriteString("\n| model | answers | tokens in | of a cache | out | " + title + " |\n|---|---|---|---|---|---|\n")
		for _, u := range n.Models {
			cost := fmt.Sprintf("%.4f USD", float64(u.MicroUSD)/1e6)
			if u.Unpriced {
				cost = "not known"
			}
			if u.OwnPrice && n.Prices != "" {
				cost += ", by the policy"
			}
			answers := strconv.FormatInt(u.Requests, 10)
			if u.Unseen > 0 {
				answers += fmt.Sprintf(", %d without their use", u.Unseen)
			}
			fmt.Fprintf(b, "| `%s` | %s | %d | %d | %d | %s |\n", tableText(cmp.Or(u.Model, "not named")), answers, u.Input+u.CacheWrite, u.CacheRead, u.Output, cost)
		}
	}
	for _, x := range n.Budget {
		fmt.Fprintf(b, "\nBudget: %s.\n", tableText(x.Text))
	}
	if len(n.Denials) > 0 {
		b.WriteString("\n| denied | times | by | because |\n|---|---|---|---|\n")
		for _, d := range n.Denials {
			fmt.Fprintf(b, "| `%s` | %d | %s | %s |\n", tableText(d.Want), d.Times, tableText(d.Rule+" ("+d.Origin+")"), tableText(d.Reason))
		}
	}
	if n.More > 0 {
		fmt.Fprintf(b, "\n%d more are not listed; the event stream has all.\n", n.More)
	}
}

// tableText makes text fit into one cell of a table.
func tableText(s string) string {
	return strings.NewReplacer("|", "\\|", "`", "'", "\n", " ").Replace(s)
}

func secretsMarkdown(b *strings.Builder, s *state.Secrets) {
	if s == nil {
		return
	}
	b.WriteString("\n## Credentials\n\n| | |\n|---|---|\n")
	for _, l := range s.Lent {
		text := fmt.Sprintf("used %d times, for %s", l.Uses, strings.Join(l.For, ", "))
		if l.Revoked {
			text += "; taken back"
		}
		row(b, "lent "+l.Credential, text)
	}
	row(b, "searched", strings.Join(s.Scanned, "; "))
	for _, f := range s.Found {
		row(b, "**found**", "the value of "+f.Credential+" in "+f.Place()+", "+f.Encoding)
	}
	if s.More > 0 {
		row(b, "**found**", fmt.Sprintf("in %d more places", s.More))
	}
	if len(s.Found) == 0 {
		row(b, "found", "nowhere")
	}
	row(b, "not searched", strings.Join(s.NotScanned, "; "))
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// inBackend is a backend for people, with what it is not.
func inBackend(name string) string {
	if !policy.Isolates(name) {
		return name + ", " + api.NotIsolated
	}
	return name
}

// ofBackend marks a line about what was done without isolation.
func ofBackend(line, name string) string {
	if !policy.Isolates(name) {
		return api.NotIsolated + ": " + line
	}
	return line
}
