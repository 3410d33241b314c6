package engine

import (
	"context"

	"go.opentelemetry.io/otel/attribute"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/step"
)

// StartExec starts a command in a cell, which becomes live if it is at rest.
// With req.Wait it returns when the command has ended.
func (e *Engine) StartExec(ctx context.Context, id cell.ID, req api.ExecRequest) (res api.Exec, err error) {
	ctx, a := e.act(ctx, "exec", id)
	defer func() {
		if err != nil || req.Wait {
			a.over(&err)
		}
	}()
	in, ready := stage(ctx, "ready")
	x, err := e.alive.ReadyExec(in, id, &req)
	ready(err)
	if err != nil {
		return api.Exec{}, err
	}
	a.say(attribute.String("pando.exec", x.ID))
	e.beginCommand(ctx, id, x.ID, req.Command)
	defer func() {
		if err != nil {
			e.endCommand(api.Exec{ID: x.ID, Cell: string(id), Cause: step.NotStarted})
		}
	}()
	if req.Wait {
		e.work.Add(1)
		defer e.work.Done()
		return e.alive.DoExec(ctx, x)
	}
	return e.alive.StartExec(ctx, x, func(err error) { a.over(&err) })
}

// AttachExec attaches to an exec.
func (e *Engine) AttachExec(id string, input bool) (*run.Attachment, error) {
	x, err := e.alive.Exec(id)
	if err != nil {
		return nil, err
	}
	return run.AttachmentOf(x.Done(), x.Open, func() (any, error) { return x.Result(), nil }, x.Join(input)), nil
}
