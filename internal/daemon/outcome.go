package daemon

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
)

// A request that has an idempotency key, or is an operation, and lost its daemon before it
// had its answer, is looked for in the records of the engine. What is found there was done, and
// the answer is made of the records. What is not found was not done, or was undone by the engine
// when the daemon started: an operation fails, and a key is given back, so that its request runs.

// settle tells that a request has its answer.
func (d *Daemon) settle(request string) {
	if d.cfg.Settle != nil {
		d.cfg.Settle(request)
	}
}

// settleOperation is settle for an operation. One that is lost, or of which the journal does not
// have the end, is left to the next daemon.
func (d *Daemon) settleOperation(o api.Operation, kept bool) {
	if kept && o.State != api.OperationLost {
		d.settle(o.ID)
	}
}

// asOperation reports whether a request becomes an operation.
func (d *Daemon) asOperation(r *http.Request, route Route) bool {
	return d.cfg.Operations != nil && asksAsync(r) && route.Operation() != ""
}

// isKnown reports whether it can be known what became of a request that an earlier daemon began.
// An operation is recorded before its work begins.
func (d *Daemon) isKnown(r *http.Request, route Route) bool {
	return d.asOperation(r, route) || route.Traits.has(inRecords|repeats)
}

// replyAgain answers a request that an earlier daemon began. It reports false, and writes
// nothing, if the request is to be carried out.
func (d *Daemon) replyAgain(w http.ResponseWriter, r *http.Request, route Route, request string) bool {
	if allowed(r, route.Access) != nil || within(r, route) != nil {
		return false
	}
	if d.asOperation(r, route) {
		p, _ := access.From(r.Context())
		op, err := d.cfg.Operations.Get(p, request)
		if err == nil {
			accepted{d.cfg.Operations.Look(op)}.send(w)
		}
		return err == nil
	}
	if !route.Traits.has(inRecords) {
		return false
	}
	out, err := d.as(r).cfg.Engine.Outcome(request, route.Out)
	if cell.KindOf(err) == cell.NotFound { // it was done
		writeError(w, d.as(r).cfg.Engine.Named(route.explain(r, err)))
		return true
	}
	if err != nil {
		return false
	}
	if route.Gives != Lines || !asksForLines(r) {
		writeJSON(w, http.StatusOK, out)
		return true
	}
	b, err := json.Marshal(out)
	if err != nil {
		return false
	}
	s := &liner{w: w, last: true}
	s.put(&api.StreamLine{Result: b})
	return true
}

// resumeOperations finds out what became of the operations that an earlier daemon did not end. Keys
// of operations get their answer, since operations may be forgotten before their keys.
func (d *Daemon) resumeOperations(ctx context.Context) error {
	if d.cfg.Operations == nil {
		return nil
	}
	kinds := map[string]Route{}
	for _, r := range Routes {
		if k := r.Operation(); k != "" {
			kinds[k] = r
		}
	}
	err := d.cfg.Operations.Resume(ctx, func(o api.Operation, token string) operation.Work {
		route := kinds[o.Kind]
		switch {
		case route.Traits.has(inRecords):
			return d.withToken(token, func(ctx context.Context, out func(api.StreamLine)) (any, error) {
				return d.outcomeOf(ctx, o.ID, route, out)
			})
		case route.Traits.has(repeats):
			return func(context.Context, func(api.StreamLine)) (any, error) {
				return nil, cell.Errorf(cell.Unavailable, "operation", "send it again: to do it twice does no harm", "the daemon ended while it ran")
			}
		}
		return nil
	}, func(o api.Operation, token string, kept bool) {
		d.settleOperation(o, kept)
		route := kinds[o.Kind]
		d.cfg.Audit.ended(d, &requestRecord{who: access.Principal{Name: o.By, Token: token}}, &route, o)
	})
	if err != nil || d.cfg.Keys == nil {
		return err
	}
	return d.cfg.Keys.EndOpen(func(id string) *operation.Answer {
		op, err := d.cfg.Operations.Get(access.Local, id)
		if err != nil {
			return nil
		}
		o := d.cfg.Operations.Look(op)
		b, err := json.Marshal(o)
		if err != nil {
			return nil
		}
		if o.State != api.OperationRunning {
			d.settleOperation(o, true)
		}
		return &operation.Answer{Kind: "application/json", Body: append(b, '\n'), Status: http.StatusAccepted, Location: operationPath(id)}
	})
}

// outcomeOf returns the result of an operation that an earlier daemon began. A run goes on
// without a daemon: it is waited for.
func (d *Daemon) outcomeOf(ctx context.Context, request string, route Route, out func(api.StreamLine)) (any, error) {
	res, err := d.cfg.Engine.Outcome(request, route.Out)
	switch v := res.(type) {
	case api.Run:
		operation.Name(ctx, v.ID)
		return d.followRun(ctx, cell.RunID(v.ID), out)
	case api.Cell:
		operation.Name(ctx, v.ID)
	}
	return res, err
}
