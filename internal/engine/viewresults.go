package engine

import (
	"context"
	"errors"
	"net"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
)

// Accept: see result.Manager.
func (v *View) Accept(ctx context.Context, t result.Target, req api.AcceptRequest, seen ...Seen) (api.AcceptResult, error) {
	act := func() (api.AcceptResult, error) { return v.e.results.Accept(ctx, t, req, seen...) }
	if req.Apply {
		return onSource(v, t, act)
	}
	return onTarget(v, t, act)
}

// Discard: see result.Manager.
func (v *View) Discard(ctx context.Context, t result.Target, req api.DiscardRequest, seen ...Seen) (api.DiscardResult, error) {
	return onTarget(v, t, func() (api.DiscardResult, error) {
		id := t.Cell
		if run, err := v.e.reg.Run(t.Run); err == nil {
			id = run.CellID()
		}
		return goesOn(ctx, v, id, func() (api.DiscardResult, error) { return v.e.results.Discard(ctx, t, req, seen...) })
	})
}

// Revert: see result.Manager.
func (v *View) Revert(ctx context.Context, t result.Target, req api.RevertRequest, seen ...Seen) (api.RevertResult, error) {
	return onSource(v, t, func() (api.RevertResult, error) { return v.e.results.Revert(ctx, t, req, seen...) })
}

// Sync: see result.Manager.
func (v *View) Sync(ctx context.Context, id cell.ID, req api.SyncRequest, seen ...Seen) (api.SyncResult, error) {
	if err := v.must(id); err != nil {
		return api.SyncResult{}, err
	}
	if v.isConfined() {
		return api.SyncResult{}, cell.Errorf(cell.Denied, "engine.View", "use a token of scope admin without labels", "cannot sync cell %s: its source is a directory of the daemon's host, and %s", id, v.confined)
	}
	if err := v.e.gc.Room(); err != nil {
		return api.SyncResult{}, err
	}
	return onSource(v, result.Target{Cell: id}, func() (api.SyncResult, error) {
		return v.e.results.Sync(ctx, id, req, seen...)
	})
}

// SourceChanges: see result.Manager.
func (v *View) SourceChanges(ctx context.Context, id cell.ID) (api.SourceChanges, error) {
	if err := v.must(id); err != nil {
		return api.SourceChanges{}, err
	}
	if v.isConfined() {
		return api.SourceChanges{}, cell.Errorf(cell.Denied, "engine.View", "use a token without labels that may start runs of directories", "cannot compare cell %s with its source: that is a directory of the daemon's host, and %s", id, v.confined)
	}
	return v.e.results.SourceChanges(ctx, id)
}

// Fetch: see result.Manager.
func (v *View) Fetch(ctx context.Context, id cell.ID) (api.FetchResult, error) {
	if err := v.must(id); err != nil {
		return api.FetchResult{}, err
	}
	if v.isConfined() {
		return api.FetchResult{}, cell.Errorf(cell.Denied, "engine.View", "use a token of scope admin without labels", "cannot fetch from cell %s: its source is a directory of the daemon's host, and %s", id, v.confined)
	}
	if err := v.e.gc.Room(); err != nil {
		return api.FetchResult{}, err
	}
	return onSource(v, result.Target{Cell: id}, func() (api.FetchResult, error) { return v.e.results.Fetch(ctx, id) })
}

// FetchFrom takes the commits that were made in a cell, and connects to git's upload-pack on them. The connection ends
// with ctx. A caller that may not read the source gets what the cell has, and no object that the source alone has.
func (v *View) FetchFrom(ctx context.Context, id cell.ID) (net.Conn, error) {
	if err := v.e.gc.Room(); err != nil {
		return nil, err
	}
	return entered(v, id, func() (net.Conn, error) {
		repo, err := v.e.results.Commits(ctx, id, v.isConfined())
		if err != nil {
			return nil, err
		}
		conn, err := repo.Serve(ctx)
		if err != nil {
			err = errors.Join(err, repo.Close())
		}
		return conn, err
	})
}

// Restore: see result.Manager.
func (v *View) Restore(ctx context.Context, id cell.ID, req api.RestoreRequest, seen ...Seen) (api.RestoreResult, error) {
	return entered(v, id, func() (api.RestoreResult, error) {
		return goesOn(ctx, v, id, func() (api.RestoreResult, error) { return v.e.results.Restore(ctx, id, req, seen...) })
	})
}

// Undo: see result.Manager.
func (v *View) Undo(ctx context.Context, id cell.ID, req api.UndoRequest, seen ...Seen) (api.RestoreResult, error) {
	if v.isConfined() { // and may not have a source written
		req.KeepSource = true
	}
	return entered(v, id, func() (api.RestoreResult, error) {
		act := func() (api.RestoreResult, error) {
			return goesOn(ctx, v, id, func() (api.RestoreResult, error) { return v.e.undo(ctx, id, req, seen...) })
		}
		if req.KeepSource {
			return act()
		}
		return onSource(v, result.Target{Cell: id}, act)
	})
}

// WatchDiff: see result.Manager.
func (v *View) WatchDiff(ctx context.Context, req result.DiffRequest, tell func(api.DiffChange) error) error {
	if err := v.must(req.Cell); err != nil {
		return err
	}
	return v.e.results.WatchDiff(ctx, req, tell)
}

// Diff: see result.Manager.
func (v *View) Diff(ctx context.Context, req result.DiffRequest) (api.Diff, error) {
	if req.Run != "" {
		if err := v.mustRun(req.Run); err != nil {
			return api.Diff{}, err
		}
	}
	for _, id := range []cell.ID{req.Cell, req.FromCell} {
		if id != "" {
			if err := v.must(id); err != nil {
				return api.Diff{}, err
			}
		}
	}
	return v.e.results.Diff(ctx, req)
}
