package engine

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// view is what is told of an exec now.
func (x *liveExec) view() api.Exec {
	v := api.Exec{ID: x.id, Cell: string(x.cell), Isolation: x.isolation, PID: x.pid(), Running: true, WallMS: ms(time.Since(x.began))}
	select {
	case <-x.done:
		v = x.result
	default:
	}
	v.Command, v.Began = x.command, x.began.UTC()
	return v
}

// Execs lists the commands in a cell, outside any run, that somebody may attach
// to: those that run, and for a minute those that have ended. Oldest first.
func (e *Engine) Execs(id cell.ID) ([]api.Exec, error) {
	if _, err := e.reg.Cell(id); err != nil {
		return nil, err
	}
	var of []*liveExec
	e.mu.Lock()
	for _, x := range e.execs {
		if x.cell == id {
			of = append(of, x)
		}
	}
	e.mu.Unlock()
	slices.SortFunc(of, func(a, b *liveExec) int { return cmp.Or(a.began.Compare(b.began), cmp.Compare(a.id, b.id)) })
	list := []api.Exec{}
	for _, x := range of {
		list = append(list, x.view())
	}
	return list, nil
}

// SignalExec sends a signal to a command in a cell.
func (e *Engine) SignalExec(ctx context.Context, id, signal string) (api.Exec, error) {
	e.mu.Lock()
	x := e.execs[id]
	e.mu.Unlock()
	if x == nil {
		return api.Exec{}, noExec(id)
	}
	select {
	case <-x.done:
		return api.Exec{}, cell.Errorf(cell.Conflict, "engine.SignalExec", "", "it has ended")
	default:
	}
	if err := x.proc.Signal(ctx, signal); err != nil {
		return api.Exec{}, err
	}
	return x.view(), nil
}
