// Package report draws what happened in a run, for a person that was not there: as one page of HTML, as Markdown, and as the
// document that both are made from (api.Report).
//
// It draws from evidence that its caller has collected, reads nothing by itself, and knows no run that is under way. All text
// of a run is hostile: it is escaped where it is drawn, and nothing of it is interpreted.
package report

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/policy"
)

// Whether the evidence of a report holds.
const (
	verified = "verified"
	unproven = "unproven"
	broken   = "broken"
)

// underWay is the outcome of a run that goes on.
const underWay = "under way"

// Complete adds to a report what follows from the rest of it: the headline, what the run was held by, and what can't be
// concluded.
func Complete(r *api.Report) {
	r.Evidence = evidence(r)
	r.Posture = posture(&r.Run)
	r.Unknown = unknown(r)
	r.Headline = headline(r)
}

func evidence(r *api.Report) string {
	v := r.Verification
	switch {
	case v == nil || len(r.Run.Receipts) == 0:
		return unproven
	case !v.OK:
		return broken
	case len(v.Unproven) > 0:
		return unproven
	}
	return verified
}

// Outcome is how the command of a run ended, in words.
func Outcome(r *api.Run) string {
	switch {
	case r.Error != nil && r.ExitCode == nil:
		return "never started"
	case r.ExitCode == nil:
		return underWay
	case r.Cause != "":
		return "ended by " + r.Cause
	case r.Signal != "":
		return "ended by " + r.Signal
	case *r.ExitCode == 0:
		return "succeeded"
	}
	return fmt.Sprintf("failed with exit code %d", *r.ExitCode)
}

// count is a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func headline(r *api.Report) string {
	run := &r.Run
	s := "The command " + Outcome(run)
	switch c := run.Changes; {
	case run.ExitCode == nil:
	case c.Files == 0:
		s += " and changed nothing"
	default:
		s += " and changed " + count(c.Files, "file")
	}
	if c := run.Check; c != nil {
		if c.ExitCode == 0 {
			s += "; the check passed"
		} else {
			s += fmt.Sprintf("; the check failed with exit code %d", c.ExitCode)
		}
	}
	severe := 0
	for _, f := range r.Findings {
		if f.Severity == api.SeverityHigh {
			severe++
		}
	}
	if severe > 0 {
		s += "; " + count(severe, "thing") + " to look at before anything is taken"
	}
	if r.Evidence == broken {
		s += "; its evidence does not hold"
	}
	return s + "."
}

// posture are the facts about what held a run.
func posture(r *api.Run) []api.Fact {
	list := []api.Fact{}
	add := func(basis, name, text string, weak bool) {
		if text != "" {
			list = append(list, api.Fact{Name: name, Text: text, Basis: basis, Weak: weak})
		}
	}
	isolated := r.Isolation == "isolated"
	image := r.Image
	if r.ImageID != "" {
		image += " (" + r.ImageID + ")"
	}
	add(api.Enforced, "isolation", strings.TrimSuffix(r.Isolation+": backend "+r.Backend+", image "+image, ", image "), !isolated)
	add(api.Observed, "mechanisms in force", strings.Join(r.Assurance.Isolation, ", "), false)
	if c := r.Assurance.Canaries; c.Total > 0 {
		add(api.Observed, "canaries", fmt.Sprintf("%d of %d forbidden acts were tried before the command, and stopped, by %s", c.Passed, c.Total, strings.Join(c.Bites, ", ")), c.Passed < c.Total)
	} else if r.ExitCode != nil {
		add(api.Observed, "canaries", "none were tried", isolated)
	}
	add(api.Enforced, "network", r.Assurance.Network, false)
	add(api.Enforced, "users", r.Assurance.IDs, false)
	for _, l := range r.Assurance.Limits {
		text := cmp.Or(amount(l.Name, l.Applied), "not in force")
		if l.How != "" {
			text += ", by " + l.How
		}
		if l.Asked != "" && l.Asked != l.Applied {
			text += " (asked: " + amount(l.Name, l.Asked) + ")"
		}
		add(api.Enforced, "limit "+l.Name, text, l.Applied == "")
	}
	source := "nothing was written to it by the run"
	if r.Applied > 0 {
		source = "accepted: " + count(r.Applied, "file") + " written to it then"
	}
	if !isolated {
		source = "the command could write to it"
	}
	add(api.Enforced, "source "+r.Source, source, !isolated)
	var kept []string
	for _, l := range r.LeftOut {
		if l.Kind == "secret" || l.Kind == "fields" {
			kept = append(kept, l.Path)
		}
	}
	if len(kept) > 0 {
		add(api.Enforced, "secrets left outside", first(kept, 10), false)
	}
	if s := r.Secrets; s != nil {
		for _, l := range s.Lent {
			add(api.Enforced, "credential "+l.Credential, fmt.Sprintf("lent for %s, put in outside of the cell, %d times", strings.Join(l.For, ", "), l.Uses), false)
		}
		if len(s.Found) == 0 && len(s.Lent) > 0 {
			add(api.Observed, "values of credentials", "not found in "+strings.Join(s.Scanned, ", "), len(s.NotScanned) > 0)
		}
	}
	if r.Agent != "" {
		add(api.Observed, "agent", strings.TrimSpace(r.Agent+", mode "+cmp.Or(r.Mode, "strict")+", autonomy "+cmp.Or(r.Autonomy, "full")), false)
	}
	if r.Output.Stdout.Bytes+r.Output.Stderr.Bytes > 0 {
		add(api.Reported, "output", "the command's own words: what it says of itself is no fact here", false)
	}
	for _, d := range r.Downgrades {
		add(api.Enforced, "weaker than it could be", d, true)
	}
	return list
}

// first are the first words of a list, and how many more there are.
func first(list []string, most int) string {
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}

// amount writes an amount of bytes for people; other amounts stay.
func amount(limit, text string) string {
	var n int64
	if _, err := fmt.Sscanf(text, "%d", &n); err != nil || limit != "memory" && limit != "disk" {
		return text
	}
	return policy.FormatSize(n)
}

// unknown says what can't be concluded from the evidence of a run.
func unknown(r *api.Report) []string {
	run := &r.Run
	list := []string{
		"That the result is right. The exit code and the check say what they test, and no more.",
		"What the command meant, or why it did something: its output is its own word.",
	}
	switch p := r.Processes; {
	case p == nil || p.Starts == 0:
		list = append(list, "Which processes it started in between, with which arguments: only the command itself is recorded, its start and its end, and the use of all together.")
	default:
		list = append(list, "What processes did that executed nothing after their fork, and that a process with the words \"asked\" really executed those: another thread of it can change them after they were read.")
		if p.LostStarts+p.LostEnds > 0 {
			list = append(list, "Which processes those were that are only counted.")
		}
	}
	if run.Network != nil {
		list = append(list, "What went through connections that the gateway did not open: of those, names, sizes and times are known, and no content.")
	}
	switch {
	case run.Isolation != "isolated":
		list = append(list, "That nothing else on the host changed: the command was not isolated.")
	case run.Backend == "namespace":
		list = append(list, "That the host's kernel has no fault: on this backend the command talked to it, through a filter of system calls.")
	case run.Backend == "microvm" || run.Backend == "gvisor":
		list = append(list, "What happened within the kernel of the cell: it is not the host's, and what it says of itself is its word.")
	}
	if run.Check == nil && run.ExitCode != nil {
		list = append(list, "That anything was tested: no check was asked for (--check COMMAND).")
	}
	if o := run.Output; o.Stdout.Kept < o.Stdout.Bytes || o.Stderr.Kept < o.Stderr.Bytes {
		list = append(list, "What the rest of the output was: more was written than is kept. Its digest is of all of it.")
	}
	if n := run.Changes.Ignored; n > 0 {
		list = append(list, "What is in "+count(n, "file")+" that git ignores: they are not in the changes above, and accept leaves them out.")
	}
	if r.Verification == nil {
		list = append(list, "That this evidence is what was signed: it could not be verified.")
	} else {
		for _, u := range r.Verification.Unproven {
			list = append(list, "What could not be verified: "+u+".")
		}
	}
	list = append(list, "That nothing else was signed with the key of this installation: a copy of the ledger's head that was kept elsewhere shows that (pando receipt export).")
	return list
}

// Took is how long a run's command took, in words.
func Took(r *api.Run) string {
	if r.Started.IsZero() || r.Ended.IsZero() {
		return ""
	}
	return r.Ended.Sub(r.Started).Round(time.Millisecond).String()
}
