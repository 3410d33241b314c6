package daemon

import (
	"net/http"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

func (d *Daemon) startRun(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.RunRequest](w, r)
	if err != nil {
		return nil, err
	}
	if err := mayReach(r, runReaches(req)); err != nil {
		return nil, err
	}
	return d.cfg.Engine.StartRun(r.Context(), req)
}

func (d *Daemon) planRun(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.RunRequest](w, r)
	if err != nil {
		return nil, err
	}
	if err := mayReach(r, runReaches(req)); err != nil {
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
		return d.cfg.Engine.WaitRun(r.Context(), id)
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

func (d *Daemon) exportRun(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.runOf(r)
	if err != nil {
		return nil, err
	}
	if _, err := d.cfg.Engine.Run(id); err != nil {
		return nil, err
	}
	w.Header().Set("Content-Type", "application/x-tar")
	if err := d.cfg.Engine.Export(id, w); err != nil {
		// The archive has begun: breaking it off is the only way to say so.
		d.cfg.Log.Error("cannot export a run", "run", id, "error", err)
		panic(http.ErrAbortHandler)
	}
	return done{}, nil
}

func (d *Daemon) accept(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.AcceptRequest](w, r)
	if err != nil {
		return nil, err
	}
	id, err := d.resultOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Accept(r.Context(), id, req)
}

func (d *Daemon) discard(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.DiscardRequest](w, r)
	if err != nil {
		return nil, err
	}
	id, err := d.resultOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Discard(r.Context(), id, req)
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

func (d *Daemon) getExec(w http.ResponseWriter, r *http.Request) (any, error) {
	id := r.PathValue("exec")
	if len(id) > 64 {
		return nil, cell.Errorf(cell.Invalid, "daemon", "", "no such exec")
	}
	return d.cfg.Engine.Exec(id)
}
