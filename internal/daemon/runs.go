package daemon

import (
	"context"
	"errors"
	"net/http"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/run"
)

func (d *Daemon) startRun(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.RunRequest](w, r)
	if err != nil {
		return nil, err
	}
	if !asksAsync(r) {
		return d.cfg.Engine.StartRun(r.Context(), req)
	}
	return d.stream(w, r, req.Cell, func(ctx context.Context, out func(api.StreamLine)) (any, error) {
		return d.wholeRun(ctx, req, out)
	})
}

// wholeRun starts a run and returns it at its end. The run is interrupted when ctx ends, but
// continues when the daemon ends.
func (d *Daemon) wholeRun(ctx context.Context, req api.RunRequest, out func(api.StreamLine)) (any, error) {
	run, err := d.cfg.Engine.StartRun(ctx, req)
	if err != nil || req.DryRun {
		return run, err
	}
	operation.Name(ctx, run.ID)
	return d.followRun(ctx, cell.RunID(run.ID), out)
}

// followRun returns a run at its end.
func (d *Daemon) followRun(ctx context.Context, id cell.RunID, out func(api.StreamLine)) (any, error) {
	a, err := d.cfg.Engine.AttachRun(id, false)
	if err != nil {
		return nil, err
	}
	defer a.Release(false)
	stopped := ctx.Done()
	for {
		select {
		case p := <-a.Progress:
			out(api.StreamLine{Progress: &p})
		case <-a.Done:
			res, err := a.Result()
			if err == nil && ctx.Err() != nil {
				err = cell.Errorf(cell.Interrupted, "daemon", "see its state: pando show "+string(id), "cannot finish run %s: %w", id, context.Cause(ctx))
			}
			return res, err
		case <-stopped:
			if stopped = nil; d.ended() {
				return nil, cell.Errorf(cell.Unavailable, "daemon", "follow it: GET /v1/runs/"+string(id)+"?wait=1", "cannot wait for run %s, the daemon has ended: %w", id, operation.ErrContinues)
			}
			if err := d.cfg.Engine.Interrupt(id, "aborted by request"); err != nil && cell.KindOf(err) != cell.Conflict {
				return nil, err
			}
		}
	}
}

// ended reports whether the daemon is ending.
func (d *Daemon) ended() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.life.Err() != nil
}

func (d *Daemon) planRun(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.RunRequest](w, r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Plan(r.Context(), req)
}

func (d *Daemon) listRuns(w http.ResponseWriter, r *http.Request) (any, error) {
	q := r.URL.Query()
	if !q.Has("cell") {
		return d.cfg.Engine.Runs(""), nil
	}
	id, err := d.cfg.Engine.SelectCell(q.Get("cell"), q.Get("dir"))
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Runs(id), nil
}

func (d *Daemon) getRun(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.runOf(r)
	if err != nil {
		return nil, err
	}
	if queryBool(r, "wait") {
		_, err := d.cfg.Engine.WaitRun(r.Context(), id)
		if errors.Is(err, run.ErrLeft) {
			w.Header().Set(api.EndingHeader, "true")
		}
		if err != nil {
			return nil, err
		}
	}
	if tag := d.cfg.Engine.RunTag(id); tag != "" { // read before the run: a change in between makes it stale
		setTag(w, tag)
	}
	return d.cfg.Engine.Run(id)
}

func (d *Daemon) interruptRun(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.runOf(r)
	if err != nil {
		return nil, err
	}
	if err := d.cfg.Engine.Interrupt(id, "interrupted by request"); err != nil {
		return nil, err
	}
	return d.cfg.Engine.WaitRun(r.Context(), id)
}

func (d *Daemon) getRunFile(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.runOf(r)
	if err != nil {
		return nil, err
	}
	f, err := d.cfg.Engine.Log(id, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return sendFile(w, "application/octet-stream", r.PathValue("name"), f)
}

func (d *Daemon) getServiceOutput(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	f, err := d.cfg.Engine.ServiceOutput(id, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return sendFile(w, octets, r.PathValue("name"), f)
}

func (d *Daemon) exportRun(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.runOf(r)
	if err != nil {
		return nil, err
	}
	if _, err := d.cfg.Engine.Run(id); err != nil {
		return nil, err
	}
	out := &begun{ResponseWriter: w}
	if err := d.cfg.Engine.Export(id, out); err != nil {
		if !out.wrote {
			return nil, err
		}
		d.brokenOff(r, "cannot export run "+string(id), err)
	}
	return done{}, nil
}

func (d *Daemon) accept(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.AcceptRequest](w, r)
	if err != nil {
		return nil, err
	}
	t, err := d.targetOf(r, d.cfg.Engine.SelectCell)
	if err != nil {
		return nil, err
	}
	return d.stream(w, r, string(t.Run), func(ctx context.Context, _ func(api.StreamLine)) (any, error) {
		return d.cfg.Engine.Accept(ctx, t, req, precondition(r))
	})
}

func (d *Daemon) revert(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.RevertRequest](w, r)
	if err != nil {
		return nil, err
	}
	t, err := d.targetOf(r, d.cfg.Engine.SelectApplied)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Revert(r.Context(), t, req, precondition(r))
}

func (d *Daemon) discard(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.DiscardRequest](w, r)
	if err != nil {
		return nil, err
	}
	t, err := d.targetOf(r, d.cfg.Engine.SelectCell)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Discard(r.Context(), t, req, precondition(r))
}

func (d *Daemon) startExec(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.ExecRequest](w, r)
	if err != nil {
		return nil, err
	}
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.StartExec(r.Context(), id, req)
}

func (d *Daemon) listExecs(_ http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Execs(id)
}

func (d *Daemon) signalExec(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.SignalRequest](w, r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.SignalExec(r.Context(), r.PathValue("exec"), req.Signal)
}

func (d *Daemon) getExec(w http.ResponseWriter, r *http.Request) (any, error) {
	id := r.PathValue("exec")
	if len(id) > 64 {
		return nil, cell.Errorf(cell.Invalid, "daemon", "", "no such exec")
	}
	return d.cfg.Engine.Exec(id)
}
