// Package finding looks through the evidence of a run for what a person should see before its result is taken: tests that
// went away, dependencies from elsewhere, scripts that run by themselves, output that claims what the check denies.
//
// A rule is a pure function of evidence. It says what there is, never what was meant; nothing of it stops a run.
package finding

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/policy"
)

// Evidence is what rules look at.
type Evidence struct {
	Run     *api.Run
	Changed []api.FileChange // all files that a patch has
	Held    []api.Held
	Calls   *api.ToolCalls // that its agent reports; nil for none
	Stdout  string         // its end, as it was written
	Stderr  string
	// Before and After read a regular file, if it has at most so many bytes. One that is not there is NotFound.
	Before, After func(path string, most int64) ([]byte, error)
	NoFiles       bool // neither is known, nor what changed
	// Link is the target of a symlink after the run.
	Link func(path string) (string, error)

	looked int64 // bytes that rules of the policy on text looked through, times their expressions
	// Size is that of a regular file after the run.
	Size func(path string) (int64, error)
	// Policy is what the policy of the run says of findings, as it was written down before the run began, and Origins where.
	// Unread says why there is no such policy.
	Policy  policy.Findings
	Origins map[string]string
	Unread  string
}

// Rule is something that is looked for.
type Rule struct {
	ID       string
	Severity string // of api: info, low, medium, high
	Title    string // what was found, without its place
	Why      string // why it matters
	See      string // how to see it: a command, in which RUN and PATH stand for those concerned
	find     func(*Evidence, *found)
}

// found takes what a rule finds.
type found struct {
	list []api.RunFinding
	rule *Rule
	run  string
	more int
}

// maxOfRule bounds what one rule says of one run.
const maxOfRule = 20

// at adds a finding in a file; line 0 is all of it.
func (f *found) at(path string, line int, format string, args ...any) {
	if len(f.list) == maxOfRule {
		f.more++
		return
	}
	f.list = append(f.list, api.RunFinding{Rule: f.rule.ID, Severity: f.rule.Severity, Title: f.rule.Title, Path: path, Line: line,
		What: fmt.Sprintf(format, args...), Why: f.rule.Why, See: see(f.rule.See, f.run, path)})
}

// say adds a finding that is in no file.
func (f *found) say(format string, args ...any) { f.at("", 0, format, args...) }

// Find applies all rules, and those of the run's policy, and returns what they found: the most severe first, then in the order of
// the rules. A policy that can't be read is a finding.
func Find(e *Evidence) []api.RunFinding { return find(e, func(*Rule) bool { return true }) }

// FindInFiles is Find with the rules that look at what changed alone.
func FindInFiles(e *Evidence) []api.RunFinding { return find(e, (*Rule).ofFiles) }

// FindInRun is Find with the rules that look at what happened in a run, and not at what it changed.
func FindInRun(e *Evidence) []api.RunFinding {
	return find(e, func(r *Rule) bool { return !r.ofFiles() })
}

// ofFiles reports whether a rule looks at changes: a diff is where they are seen.
func (r *Rule) ofFiles() bool { return strings.HasPrefix(r.See, "pando diff ") }

func find(e *Evidence, applies func(*Rule) bool) []api.RunFinding {
	out := []api.RunFinding{}
	list, err := rulesOf(e.Policy, e.Origins)
	if err != nil {
		with := *e
		with.Unread, list, e = err.Error(), rules, &with
	}
	for i := range list {
		if !applies(&list[i]) {
			continue
		}
		f := found{rule: &list[i], run: e.Run.ID}
		list[i].find(e, &f)
		if f.more > 0 {
			last := &f.list[len(f.list)-1]
			last.What += fmt.Sprintf(" (and %d more)", f.more)
		}
		out = append(out, f.list...)
	}
	Sort(out)
	return out
}

// Sort puts the most severe first.
func Sort(list []api.RunFinding) {
	slices.SortStableFunc(list, func(a, b api.RunFinding) int {
		return cmp.Compare(api.SeverityWeight(b.Severity), api.SeverityWeight(a.Severity))
	})
}

// Rules are all rules, in their order.
func Rules() []Rule { return slices.Clone(rules) }

// count is a number with its noun.
func count(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}

// maxRead bounds a file that a rule reads, in bytes.
const maxRead = 4 << 20

// before and after read a file of a change; nil if it isn't there, or can't be read.
func (e *Evidence) before(c *api.FileChange) []byte {
	if c.Status == "added" {
		return nil
	}
	b, err := e.Before(cmp.Or(c.OldPath, c.Path), maxRead)
	if err != nil {
		return nil
	}
	return b
}

func (e *Evidence) after(c *api.FileChange) []byte {
	if c.Status == "deleted" {
		return nil
	}
	b, err := e.After(c.Path, maxRead)
	if err != nil {
		return nil
	}
	return b
}
