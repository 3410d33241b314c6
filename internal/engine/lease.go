package engine

import (
	"context"
	"maps"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// Lease changes how long a cell lives and what is said of it. What the request
// does not speak of stays.
func (e *Engine) Lease(ctx context.Context, id cell.ID, req api.LeaseRequest, seen ...Seen) (api.Cell, error) {
	c, err := e.alive.Usable(id)
	if err == nil {
		err = checkLabels(req.Labels)
	}
	if err == nil {
		err = e.alive.Lease(id, makerOf(ctx), req, func() error {
			now, err := e.reg.Cell(id)
			if err == nil {
				err = unless(func() string { return e.cellTag(&now) }, seen)
			}
			return err
		})
	}
	if err != nil {
		return api.Cell{}, err
	}
	return e.cellView(&c), nil
}

// leaseView is what is told of a cell's lease.
func (e *Engine) leaseView(id cell.ID) (labels map[string]string, v *api.Lease) {
	l := e.reg.Lease(id)
	if l == nil {
		return nil, nil
	}
	return maps.Clone(l.Labels), &api.Lease{Since: l.Since, Until: l.Until, Then: l.Then, Paused: l.Parked, Idle: l.Idle, Kept: e.reg.KeptUntil(l), Unkept: l.Unkept}
}

// labelsOf are the labels that a fork of a cell has.
func (e *Engine) labelsOf(id cell.ID) map[string]string {
	l := e.reg.Lease(id)
	if l == nil {
		return nil
	}
	return state.Inheritable(l.Labels)
}

// labelsOfTemplate are the labels that a fork of a template has.
func (e *Engine) labelsOfTemplate(name string) map[string]string {
	t, err := e.reg.Template(name)
	if err != nil {
		return nil
	}
	return e.labelsOf(t.Cell)
}

// User is the user that commands run as.
func (e *Engine) User() cell.User { return e.cfg.User }

// Labelled lists the cells that have a label, newest first.
func (v *View) Labelled(label string) (out []cell.ID) {
	list, _, _ := v.e.reg.Find(state.Query{Label: label}, v.required())
	for _, c := range list {
		out = append(out, c.ID)
	}
	return out
}

// Limits are what a cell may use; zero where nothing bounds it.
func (e *Engine) Limits(id cell.ID) cell.Limits {
	c, err := e.reg.Cell(id)
	if err != nil {
		return cell.Limits{}
	}
	return c.Limits()
}
