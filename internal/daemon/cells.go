package daemon

import (
	"context"
	"net/http"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/state"
)

func (d *Daemon) listCells(w http.ResponseWriter, r *http.Request) (any, error) {
	q := state.Query{After: r.URL.Query().Get("cursor"), Labels: map[string]string{}}
	var err error
	if q.Limit, err = queryInt(r, "limit"); err != nil {
		return nil, err
	}
	if q.Limit < 0 {
		return nil, cell.Errorf(cell.Invalid, "daemon.listCells", "", "limit can't be negative")
	}
	for _, l := range r.URL.Query()["label"] {
		k, v, ok := strings.Cut(l, "=")
		if k == "" || !ok {
			return nil, cell.Errorf(cell.Invalid, "daemon.listCells", "write it as NAME=VALUE", "%q is no label", cell.Clip(l))
		}
		if was, ok := q.Labels[k]; ok && was != v {
			return []api.Cell{}, nil
		}
		q.Labels[k] = v
	}
	list, next, err := d.cfg.Engine.Cells(q)
	if next != "" {
		w.Header().Set(nextCursor, next)
	}
	return paged{list}, err
}

func (d *Daemon) getCell(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	if tag := d.cfg.Engine.CellTag(id); tag != "" { // read before the cell: a change in between makes it stale
		setTag(w, tag)
	}
	return d.cfg.Engine.Cell(id)
}

func (d *Daemon) removeCell(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	if err := d.mayRemove(r, id, "it"); err != nil {
		return nil, err
	}
	return d.cfg.Engine.Remove(r.Context(), id, queryBool(r, "dry_run"))
}

// mayRemove allows a caller to remove objects that were made with its token, and scope admin
// all.
func (d *Daemon) mayRemove(r *http.Request, id cell.ID, what string) error {
	if d.cfg.Engine.Own(id) {
		return nil
	}
	if err := allowed(r, Admin); err != nil {
		return cell.Errorf(cell.Denied, "daemon", cell.HintOf(err), "%s was not made with this token: %w", what, err)
	}
	return nil
}

func (d *Daemon) pauseCell(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Pause(r.Context(), id)
}

func (d *Daemon) resumeCell(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Resume(r.Context(), id)
}

func (d *Daemon) stopCell(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	grace := api.StopGrace
	if s := r.URL.Query().Get("timeout"); s != "" {
		if grace, err = policy.ParseTimeout(s); err != nil {
			return nil, err
		}
		if grace > api.MaxStopGrace {
			return nil, cell.Errorf(cell.Invalid, "daemon", "at most "+api.MaxStopGrace.String(), "cannot stop: the timeout %s is too long", grace)
		}
	}
	return d.cfg.Engine.StopWithin(r.Context(), id, grace)
}

func (d *Daemon) listProcesses(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Processes(r.Context(), id)
}

func (d *Daemon) getStats(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Stats(r.Context(), id)
}

func (d *Daemon) getHistory(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.History(id)
}

func (d *Daemon) getSteps(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Steps(r.Context(), id)
}

func (d *Daemon) getTree(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Tree(id)
}

func (d *Daemon) getForest(w http.ResponseWriter, r *http.Request) (any, error) {
	return d.cfg.Engine.Tree("")
}

func (d *Daemon) checkpoint(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.CheckpointRequest](w, r)
	if err != nil {
		return nil, err
	}
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	return d.stream(w, r, "", func(ctx context.Context, _ func(api.StreamLine)) (any, error) {
		return d.cfg.Engine.Checkpoint(ctx, id, req)
	})
}

func (d *Daemon) restore(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.RestoreRequest](w, r)
	if err != nil {
		return nil, err
	}
	id, err := d.checkpointOf(r, &req.Number, req.Digest)
	if err != nil {
		return nil, err
	}
	return d.stream(w, r, "", func(ctx context.Context, _ func(api.StreamLine)) (any, error) {
		return d.cfg.Engine.Restore(ctx, id, req, precondition(r))
	})
}

// checkpointOf resolves a checkpoint given by number, or by digest instead of the cell.
func (d *Daemon) checkpointOf(r *http.Request, number *int, digest string) (cell.ID, error) {
	if *number > 0 {
		return d.cellOf(r)
	}
	if digest == "" && selector(r, "cell") == "" {
		return "", unnamed("cell")
	}
	k, err := d.cfg.Engine.SelectCheckpoint(orElse(digest, selector(r, "cell")), r.URL.Query().Get("dir"))
	*number = k.Number
	return k.Cell, err
}

func (d *Daemon) undo(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.UndoRequest](w, r)
	if err != nil {
		return nil, err
	}
	t, err := d.targetOf(r, d.cfg.Engine.SelectCell)
	if err != nil {
		return nil, err
	}
	return d.stream(w, r, "", func(ctx context.Context, _ func(api.StreamLine)) (any, error) {
		return d.cfg.Engine.Undo(ctx, t.Cell, req, precondition(r))
	})
}

func (d *Daemon) sync(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decode[api.SyncRequest](w, r)
	if err != nil {
		return nil, err
	}
	t, err := d.targetOf(r, d.cfg.Engine.SelectCell)
	if err != nil {
		return nil, err
	}
	return d.stream(w, r, "", func(ctx context.Context, _ func(api.StreamLine)) (any, error) {
		return d.cfg.Engine.Sync(ctx, t.Cell, req, precondition(r))
	})
}

func (d *Daemon) sourceChanges(_ http.ResponseWriter, r *http.Request) (any, error) {
	t, err := d.targetOf(r, d.cfg.Engine.SelectCell)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.SourceChanges(r.Context(), t.Cell)
}

func (d *Daemon) fetch(_ http.ResponseWriter, r *http.Request) (any, error) {
	t, err := d.targetOf(r, d.cfg.Engine.SelectCell)
	if err != nil {
		return nil, err
	}
	return d.cfg.Engine.Fetch(r.Context(), t.Cell)
}

func (d *Daemon) fork(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := decodeCounted[api.ForkRequest](w, r)
	if err != nil {
		return nil, err
	}
	id, err := d.cellOf(r)
	if err != nil && req.Number == 0 { // by digest
		if kid, kerr := d.checkpointOf(r, &req.Number, ""); kerr == nil || cell.KindOf(err) == cell.NotFound {
			id, err = kid, kerr
		}
	}
	if err != nil {
		return nil, err
	}
	return d.stream(w, r, "", func(ctx context.Context, _ func(api.StreamLine)) (any, error) {
		return d.cfg.Engine.Fork(ctx, id, req)
	})
}

func (d *Daemon) diff(_ http.ResponseWriter, r *http.Request) (any, error) {
	t, err := d.targetOf(r, d.cfg.Engine.SelectCell)
	if err != nil {
		return nil, err
	}
	req := result.DiffRequest{Target: t}
	if req.From, err = queryInt(r, "from"); err != nil {
		return nil, err
	}
	if req.To, err = queryInt(r, "to"); err != nil {
		return nil, err
	}
	if other := r.URL.Query().Get("from_cell"); other != "" {
		if req.FromCell, err = d.cfg.Engine.SelectCell(other, r.URL.Query().Get("dir")); err != nil {
			return nil, err
		}
	}
	if req.Width, err = queryInt(r, "width"); err != nil {
		return nil, err
	}
	req.Form, req.Colour, req.Ignored = r.URL.Query().Get("form"), queryBool(r, "colour"), queryBool(r, "ignored")
	req.Include, req.Only = r.URL.Query()["include"], r.URL.Query()["only"]
	return d.cfg.Engine.Diff(r.Context(), req)
}

// watchDiff streams what changes in a cell.
func (d *Daemon) watchDiff(w http.ResponseWriter, r *http.Request) (any, error) {
	t, err := d.targetOf(r, d.cfg.Engine.SelectWatched)
	if err != nil {
		return nil, err
	}
	req := result.DiffRequest{Target: t, Form: r.URL.Query().Get("form"), Colour: queryBool(r, "colour"), Ignored: queryBool(r, "ignored")}
	if req.Width, err = queryInt(r, "width"); err != nil {
		return nil, err
	}
	return d.tellChanges(w, r, func(ctx context.Context, tell func(any) error) error {
		return d.cfg.Engine.WatchDiff(ctx, req, func(c api.DiffChange) error { return tell(c) })
	})
}

func orElse(s, dflt string) string {
	if s == "" {
		return dflt
	}
	return s
}
