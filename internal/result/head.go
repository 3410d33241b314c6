package result

import (
	"fmt"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/state"
)

// headMoved compares what a cell's source has checked out with what it is known to have
// had, and of several directories one that moved. It is nil when that is the same branch, whatever was committed there since, or when
// one of both is not known.
func headMoved(c *state.Cell) (moved *api.HeadMoved) {
	for i, d := range c.Parts() {
		if c.NoSource || i >= len(c.KnownHeads) || c.KnownHeads[i] == (gitdir.Head{}) {
			continue
		}
		was, now := c.KnownHeads[i], gitdir.HeadAt(d.Source)
		switch {
		case now == (gitdir.Head{}), now == was, was.Branch != "" && was.Branch == now.Branch:
			continue
		}
		// From one detached HEAD to another may be a commit of the user's, as on a branch.
		m := &api.HeadMoved{Source: d.Source, Was: api.GitHead(was), Now: api.GitHead(now), OtherFiles: was.Commit != now.Commit && was.Branch+now.Branch != ""}
		if moved == nil || m.OtherFiles && !moved.OtherFiles {
			moved = m
		}
	}
	return moved
}

// HeadsOf are what the repositories of a cell's directories have checked out, in the order of its parts; zero where there is
// none.
func HeadsOf(c *state.Cell) (list []gitdir.Head) {
	for _, d := range c.Parts() {
		list = append(list, gitdir.HeadAt(d.Source))
	}
	return list
}

// refuseOtherBranch refuses to apply an offer to another branch, with another commit, than
// the one that it is known to go with.
func refuseOtherBranch(o *offer, moved *api.HeadMoved, req api.AcceptRequest) error {
	if moved == nil || !moved.OtherFiles || req.OtherBranch || !req.Apply {
		return nil
	}
	back := "git switch " + moved.Was.Branch
	if moved.Was.Branch == "" {
		back = "git switch --detach " + shortID(moved.Was.Commit)
	}
	return cell.Errorf(cell.Conflict, "result.Accept", fmt.Sprintf("go back with %s; to apply the changes to %s all the same: --other-branch", back, headWords(moved.Now)),
		"cannot apply %s to %s: the changes go with %s, and %s is on %s now", o.title(), moved.Source, headWords(moved.Was), moved.Source, headWords(moved.Now))
}

// headWords names what is checked out.
func headWords(h api.GitHead) string {
	switch {
	case h.Branch == "":
		return "the detached HEAD at " + shortID(h.Commit)
	case h.Commit == "":
		return "branch " + h.Branch + " without commits"
	}
	return "branch " + h.Branch + " at " + shortID(h.Commit)
}

// shortID is as much of an object's id as people read.
func shortID(id string) string { return id[:min(len(id), 10)] }
