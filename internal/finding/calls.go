package finding

import (
	"bytes"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// These rules compare what an agent reports of its tool calls with what was observed of its run. A report is no fact: that one is
// missing or differs says that the agent's account is not right, and not which of its parts.
//
// A rule on commands that are reported and were never started belongs here, when starts of processes are events: those of
// shell calls, which have the command in ToolCall.What.

const (
	shellCall = "shell"
	editCall  = "edit"
	readCall  = "read"
)

// complete reports whether all calls of a run are there, as far as its agent reports any.
func complete(t *api.ToolCalls) bool {
	return t.More == 0 && len(t.Problems) == 0 && !slices.ContainsFunc(t.Read, func(r api.Transcript) bool { return r.Problem != "" })
}

// wrote reports whether a call is a write of files that is said to have succeeded.
func wrote(c *api.ToolCall) bool { return c.Kind == editCall && c.Ended && !c.Failed }

// reportedCheckDiffers compares the check with the last call that ran the same command.
func reportedCheckDiffers(e *Evidence, f *found) {
	check := e.Run.Check
	if e.Calls == nil || check == nil || check.ExitCode == 0 || check.Cause != "" {
		return
	}
	last := -1
	for i := range e.Calls.Calls {
		if c := &e.Calls.Calls[i]; c.Kind == shellCall && sameCommand(c.What, check.Command) {
			last = i
		}
	}
	if last < 0 {
		return
	}
	c := &e.Calls.Calls[last]
	if !c.Ended || c.Failed || c.ExitCode != nil && *c.ExitCode != 0 {
		return
	}
	after := "no later call is reported that could have changed its outcome"
	if slices.ContainsFunc(e.Calls.Calls[last+1:], func(c api.ToolCall) bool { return c.Kind != readCall }) {
		after = "later calls may have changed its outcome"
	}
	f.say("%q is reported to have succeeded; the check with the same command ended with exit code %d; %s", clip(c.What), check.ExitCode, after)
}

// sameCommand reports whether a shell call runs a check's command alone, after going to some folder.
func sameCommand(call, check string) bool {
	call, check = strings.TrimSpace(call), strings.TrimSpace(check)
	if rest, is := strings.CutPrefix(call, "cd "); is {
		if _, after, has := strings.Cut(rest, "&&"); has {
			call = strings.TrimSpace(after)
		}
	}
	for _, quiet := range []string{" 2>&1"} {
		call = strings.TrimSuffix(call, quiet)
	}
	return call != "" && call == check
}

// reportedEditMissing finds files of the workspace that an edit names, and that are after the run as they were before it.
func reportedEditMissing(e *Evidence, f *found) {
	if e.Calls == nil || e.NoFiles {
		return
	}
	said := map[string]bool{}
	for i := range e.Calls.Calls {
		c := &e.Calls.Calls[i]
		if !wrote(c) {
			continue
		}
		for _, p := range c.Files {
			if said[p] || strings.HasPrefix(p, "/") || e.changed(p) || !e.unchanged(p) {
				continue
			}
			said[p] = true
			later := e.Calls.Calls[i+1:]
			could := func(c api.ToolCall) bool {
				return c.Kind != readCall && (c.Kind != editCall || slices.Contains(c.Files, p))
			}
			if slices.ContainsFunc(later, could) {
				f.at(p, 0, "%s is reported to have written it; a later call may have changed it back", clip(c.Tool))
			} else {
				f.at(p, 0, "%s is reported to have written it, and no later call that could have changed it back: it wrote what was there, or nothing", clip(c.Tool))
			}
		}
	}
}

// missing reports whether an error says that there is no such file.
func missing(err error) bool { return err != nil && cell.KindOf(err) == cell.NotFound }

// changed reports whether a path is one of those that a patch has.
func (e *Evidence) changed(path string) bool {
	return slices.ContainsFunc(e.Changed, func(c api.FileChange) bool { return c.Path == path || c.OldPath == path })
}

// unchanged reports whether a file is known to be what it was: a file that git ignores is in no patch, whatever became of it.
func (e *Evidence) unchanged(path string) bool {
	before, err := e.Before(path, maxRead)
	if err != nil && !missing(err) {
		return false
	}
	after, err2 := e.After(path, maxRead)
	if err2 != nil && !missing(err2) {
		return false
	}
	return missing(err) == missing(err2) && bytes.Equal(before, after)
}

// unreportedChange finds changed files that no edit names, where nothing else is reported that could have written them.
func unreportedChange(e *Evidence, f *found) {
	if e.Calls == nil || !complete(e.Calls) {
		return
	}
	names, edits := map[string]bool{}, false
	for i := range e.Calls.Calls {
		switch c := &e.Calls.Calls[i]; c.Kind {
		case readCall:
		case editCall:
			edits = edits || wrote(c)
			if len(c.Files) == 0 {
				return
			}
			for _, p := range c.Files {
				names[p] = true
			}
		default:
			return // it can have written anything
		}
	}
	if !edits {
		return
	}
	for _, c := range e.Changed {
		if !names[c.Path] && (c.OldPath == "" || !names[c.OldPath]) {
			f.at(c.Path, 0, "%s; %s reported, and none of a shell", c.Status, count(len(names), "edited file is", "edited files are"))
		}
	}
}

// reportedGap finds agents that used a model, as the gateway saw, and have no complete account of their calls, or one that has fewer
// than the model's answers. One that has more says nothing: the gateway does not see into all connections.
func reportedGap(e *Evidence, f *found) {
	n := e.Run.Network
	if e.Calls == nil || n == nil {
		return
	}
	var requests, asked int64
	for _, m := range n.Models {
		requests, asked = requests+m.Requests, asked+m.Calls
	}
	said := int64(len(e.Calls.Calls) + e.Calls.More)
	switch {
	case requests == 0 || complete(e.Calls) && asked <= said:
		return
	case complete(e.Calls):
		f.say("the gateway saw %s of tools in the answers of models; %d reported", count(int(asked), "call", "calls"), said)
		return
	}
	why := slices.Clone(e.Calls.Problems)
	for _, r := range e.Calls.Read {
		if r.Problem != "" {
			why = append(why, r.Path+": "+r.Problem)
		}
	}
	if e.Calls.More > 0 {
		why = append(why, count(e.Calls.More, "further call is", "further calls are")+" not listed")
	}
	f.say("the gateway saw %s to models; %s", count(int(requests), "request", "requests"), clip(strings.Join(why, "; ")))
}
