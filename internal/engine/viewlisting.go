package engine

import (
	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// The View of lists and counts: what they cost is what they answer.

// Cells lists the cells there are that a query asks for, newest first, and says where
// the rest begins; "" when that is all.
func (v *View) Cells(q state.Query) ([]api.Cell, string, error) { return v.listed(q, v.e.cellView) }

// Records is Record of the cells that a query asks for. As Cells.
func (v *View) Records(q state.Query) ([]api.Cell, string, error) { return v.listed(q, v.e.recordView) }

func (v *View) listed(q state.Query, view func(*state.Cell) api.Cell) ([]api.Cell, string, error) {
	list, next, err := v.e.reg.Find(q, v.required())
	out := []api.Cell{}
	for _, c := range list {
		out = append(out, view(&c))
	}
	return v.shownAll(out), next, err
}

// Marked lists the checkpoints with messages that begin with mark, of the cells there are, newest first.
func (v *View) Marked(mark string) []api.Checkpoint {
	out := []api.Checkpoint{}
	for _, k := range v.e.reg.Marked(mark) {
		if c, err := v.cell(k.Cell); err == nil {
			out = append(out, v.e.checkpointView(&k, &c))
		}
	}
	return out
}

// CheckpointOf returns a checkpoint by its id; NotFound if its cell is removed.
func (v *View) CheckpointOf(id cell.CheckpointID) (api.Checkpoint, error) {
	k, err := v.e.reg.Checkpoint(id)
	if err != nil {
		return api.Checkpoint{}, err
	}
	c, err := v.cell(k.Cell)
	if err != nil || k.Gone || c.State == cell.Removed {
		return api.Checkpoint{}, cell.Errorf(cell.NotFound, "engine.checkpoint", "", "no checkpoint %s", clip(string(id)))
	}
	return v.e.checkpointView(&k, &c), nil
}

// Running counts the cells with a label that are neither paused nor being made.
func (v *View) Running(label string) int {
	return v.e.reg.Count(state.ClassRunning, v.required(), label)
}

// Standing counts the cells there are, by state and backend.
func (v *View) Standing() map[[2]string]int {
	out := map[[2]string]int{}
	if !v.restricted() {
		return v.e.reg.CountStates()
	}
	list, _, _ := v.e.reg.Find(state.Query{}, v.required())
	for _, c := range list {
		out[[2]string{string(c.State), c.Backend}]++
	}
	return out
}

// required are the labels of what the caller sees; nil for everything.
func (v *View) required() map[string]string {
	if !v.restricted() {
		return nil
	}
	return v.bounds.Labels
}

// Count returns how many cells there are, and how many have processes.
func (v *View) Count() (cells, alive int) {
	if !v.restricted() {
		return v.e.reg.Size(), v.e.alive.Count()
	}
	list, _, _ := v.e.reg.Find(state.Query{}, v.bounds.Labels)
	for _, c := range list {
		cells++
		if v.e.alive.Instance(c.ID) != nil {
			alive++
		}
	}
	return cells, alive
}
