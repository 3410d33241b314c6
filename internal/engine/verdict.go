package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// ownFailure reports whether the command failed by itself, or because there
// was not enough for it: only that restores.
func (x *execution) ownFailure() bool {
	if x.run.ExitCode == nil {
		return false
	}
	return api.OverLimit(x.run.Cause) || (*x.run.ExitCode != 0 && x.run.Cause == "")
}

func (x *execution) succeeded() bool {
	return x.run.ExitCode != nil && *x.run.ExitCode == 0 && x.run.Cause == "" &&
		(x.run.Check == nil || x.run.Check.ExitCode == 0)
}

// judge gives the run its first verdict.
func (x *execution) judge(diff *diff.Diff) error {
	verdict, reason := x.verdict(diff)
	return x.run.Decide(verdict, reason, "pando")
}

// verdict is the first verdict of a run, with its reason.
func (x *execution) verdict(diff *diff.Diff) (v cell.Verdict, reason string) {
	run := x.run
	unchanged := run.Before.TreeDigest == run.After.TreeDigest || nothingOfSubstance(x.e, diff, run)
	switch {
	case run.In.LetGo != "":
		return cell.Restored, "the result could not be kept: " + run.In.LetGo
	case x.ownFailure() && run.In.OnFailure == "restore" && !run.Interactive:
		return cell.Restored, failure(run)
	case x.ownFailure():
		return cell.Pending, failure(run)
	case run.Cause != "":
		return cell.Pending, run.Cause
	case run.Check != nil && run.Check.ExitCode != 0 && run.In.OnFailure == "restore":
		return cell.Restored, fmt.Sprintf("the check failed with exit code %d", run.Check.ExitCode)
	case run.Check != nil && run.Check.ExitCode != 0:
		return cell.Pending, fmt.Sprintf("the check failed with exit code %d", run.Check.ExitCode)
	case unchanged:
		return cell.Accepted, "no changes"
	case run.In.OnSuccess == "accept":
		return cell.Accepted, "--on-success accept"
	}
	return cell.Pending, ""
}

// failure says how a command failed by itself.
func failure(run *state.Run) string {
	how := fmt.Sprintf("exit code %d", *run.ExitCode)
	if run.Signal != "" {
		how = "ended by " + run.Signal
	}
	if run.Cause != "" {
		how += ": " + run.Cause
	}
	return how
}

// nothingOfSubstance reports whether nothing differs but the times of files and folders,
// and git's index: a look at the tree refreshes that, and it is never applied.
func nothingOfSubstance(e *Engine, diff *diff.Diff, run *state.Run) bool {
	if len(diff.Files) > 0 || diff.Ignored.Count > 0 {
		return false
	}
	a, errA := e.trees.get(digest(run.Before.TreeDigest))
	b, errB := e.trees.get(digest(run.After.TreeDigest))
	if errA != nil || errB != nil {
		return false
	}
	changes, err := workspace.Changes(a, b)
	if err != nil {
		return false
	}
	return !slices.ContainsFunc(changes, func(c workspace.Change) bool {
		if c.Path == ".git/index" || strings.HasSuffix(c.Path, "/.git/index") {
			return false
		}
		o, n := c.Old, c.New
		return o == nil || n == nil || o.Type != n.Type || o.Mode != n.Mode || !slices.Equal(o.XAttrs, n.XAttrs) ||
			o.Type != workspace.Folder && (o.Digest != n.Digest || o.Target != n.Target || o.Rdev != n.Rdev)
	})
}

func digest(s string) cell.Digest {
	d, _ := cell.ParseDigest(s)
	return d
}
