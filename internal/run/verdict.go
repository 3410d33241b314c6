package run

import (
	"fmt"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// ownFailure reports whether the command failed by itself, or because there
// was not enough for it: only that restores.
func (x *execution) ownFailure() bool {
	if x.Run.ExitCode == nil {
		return false
	}
	return api.OverLimit(x.Run.Cause) || (*x.Run.ExitCode != 0 && x.Run.Cause == "")
}

// goesBack reports whether the cell goes back to before a command that failed: not where a part of what it made was accepted
// while it went on, which a cell without it would seem to take back.
func (x *execution) goesBack(failed bool) bool {
	return failed && x.Run.In.OnFailure == "restore" && x.taken() == nil
}

// taken is the last that was accepted of what the run made, while it went on; nil for nothing.
func (x *execution) taken() *state.Applied {
	list := x.Cell.TakenDuring(x.Run.RunID())
	if len(list) == 0 {
		return nil
	}
	return &list[len(list)-1]
}

func (x *execution) succeeded() bool {
	return x.Run.ExitCode != nil && *x.Run.ExitCode == 0 && x.Run.Cause == "" &&
		(x.Run.Check == nil || x.Run.Check.ExitCode == 0)
}

// judge gives the run its first verdict.
func (x *execution) judge(changed Changed) error {
	verdict, reason := x.verdict(changed)
	return x.Run.Decide(verdict, reason, "pando")
}

// verdict is the first verdict of a run, with its reason.
func (x *execution) verdict(changed Changed) (v cell.Verdict, reason string) {
	run := x.Run
	switch {
	case run.In.LetGo != "" && x.taken() != nil:
		return cell.Pending, "what came after the last accept could not be kept: " + run.In.LetGo
	case run.In.LetGo != "":
		return cell.Restored, "the result could not be kept: " + run.In.LetGo
	case x.goesBack(x.ownFailure()) && !run.Interactive:
		return cell.Restored, failure(run)
	case x.ownFailure():
		return cell.Pending, failure(run)
	case run.Cause != "":
		return cell.Pending, run.Cause
	case x.goesBack(run.Check != nil && run.Check.ExitCode != 0):
		return cell.Restored, fmt.Sprintf("the check failed with exit code %d", run.Check.ExitCode)
	case run.Check != nil && run.Check.ExitCode != 0:
		return cell.Pending, fmt.Sprintf("the check failed with exit code %d", run.Check.ExitCode)
	case changed.Nothing():
		return cell.Accepted, api.ReasonNoChanges
	case changed.Taken():
		return cell.Accepted, "all of it was accepted while it went on"
	case run.In.OnSuccess == "accept":
		return x.accepted()
	}
	return cell.Pending, ""
}

// accepted is the verdict of a run that ends with --on-success accept. Where the policy may demand sign-offs there are none yet.
func (x *execution) accepted() (cell.Verdict, string) {
	if x.Run.Asked == nil && x.Cell.NoSource { // a step of an image's build: nothing is offered
		return cell.Accepted, "--on-success accept"
	}
	switch demands, err := x.m.cfg.Demands(&x.Cell, x.Run); {
	case err != nil:
		return cell.Pending, fmt.Sprintf("not accepted: %v", err)
	case demands:
		return cell.Pending, "not accepted: the policy has accept.needs"
	}
	return cell.Accepted, "--on-success accept"
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
