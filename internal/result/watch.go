package result

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// A watched cell is looked at each watchLeast, and more seldom, up to watchMost, where a look takes more than one part
// in watchShare of the time.
const (
	watchLeast = 300 * time.Millisecond
	watchMost  = 5 * time.Second
	watchShare = 10
)

// watchRetries is how often in a row a watched cell may have no state that can be looked at: it is paused and resumed,
// or its keeper is busy.
const watchRetries = 20

// WatchDiff tells what there is to decide about in a cell, and again whenever that has changed, with what changed in
// between, until ctx ends or tell fails. A cell at rest stays so.
func (m *Manager) WatchDiff(ctx context.Context, req DiffRequest, tell func(api.DiffChange) error) error {
	const opName = "result.WatchDiff"
	switch {
	case req.Run != "":
		return cell.Errorf(cell.Invalid, opName, "watch its cell", "what run %s changed does not change any more", req.Run)
	case req.Form == "patch":
		return cell.Errorf(cell.Invalid, opName, "use json, text or stat", "a patch can't be followed")
	}
	w := watch{m: m, req: req}
	for failed := 0; ; {
		began := time.Now()
		switch changed, err := w.look(ctx); {
		case ctx.Err() != nil:
			return nil
		case err == nil && changed != nil:
			if err := tell(*changed); err != nil {
				return err
			}
			failed = 0
		case err == nil:
			failed = 0
		case cell.KindOf(err) != cell.Conflict && cell.KindOf(err) != cell.Unavailable, failed == watchRetries:
			return err
		default:
			failed++
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(watchMost, max(watchLeast, watchShare*time.Since(began)))):
		}
	}
}

// watchText bounds the text of one change, in bytes; of a larger one the numbers for each file are told.
const watchText = 256 << 10

// watch is what one call of WatchDiff remembers.
type watch struct {
	m   *Manager
	req DiffRequest

	files  cell.Digest      // the stamp of the files before they were looked at; zero: they may have changed since
	record string           // of the cell, then
	at     state.Checkpoint // the state that was told last
	digest cell.Digest      // of the changes that were told last; zero: none were
}

// look returns what changed since the last look; nil: nothing did.
func (w *watch) look(ctx context.Context) (*api.DiffChange, error) {
	c, err := w.m.cfg.Records.Cell(w.req.Cell)
	if err != nil {
		return nil, err
	}
	switch c.State {
	case cell.Removed:
		return nil, cell.Errorf(cell.NotFound, "result.WatchDiff", "", "cell %s was removed", c.Title())
	case cell.Creating: // its files are being imported
		return nil, nil
	}
	var files cell.Digest
	if c.Gen != nil {
		if files, err = w.m.cfg.Stamp(ctx, &c); err != nil {
			return nil, err
		}
	}
	if !w.digest.IsZero() && recordOf(&c) == w.record && files == w.files && (c.Gen == nil || !files.IsZero()) {
		return nil, nil
	}
	defer w.m.cfg.Pin()()
	o, err := w.m.compared(ctx, w.req)
	if err != nil {
		return nil, err
	}
	now, err := w.m.cfg.Records.Cell(w.req.Cell)
	if err != nil {
		return nil, err
	}
	w.files, w.record = files, recordOf(&now)
	if o.digest == w.digest {
		return nil, nil
	}
	out, err := w.changed(ctx, o)
	if err != nil {
		return nil, err
	}
	w.at, w.digest = o.at, o.digest
	return out, nil
}

// recordOf is another one when the state of a cell's files, or what its source is known to be, is.
func recordOf(c *state.Cell) string {
	layer := ""
	if c.Gen != nil {
		layer = c.Gen.Layer
	}
	return fmt.Sprint(c.Head, layer, c.Known, c.KnownAt, len(c.Applied), len(c.Agreed))
}

// changed compares an offer with the source, and with the state that was told last.
func (w *watch) changed(ctx context.Context, o *offer) (*api.DiffChange, error) {
	m := w.m
	ignored := none
	if !w.req.Ignored {
		var err error
		if ignored, _, err = m.ignoredBy(ctx, o.base, o.after); err != nil {
			return nil, err
		}
	}
	all, err := diff.Compare(ctx, o.base, o.after, diff.Options{Ignored: ignored})
	if err != nil {
		return nil, err
	}
	if err := all.Count(ctx); err != nil {
		return nil, err
	}
	out := &api.DiffChange{At: time.Now().UTC(), Cell: string(o.c.ID), Digest: o.digest.String(), Files: len(all.Files), Ignored: all.Ignored.Count}
	for _, f := range all.Files {
		out.Added, out.Deleted = out.Added+f.Added, out.Deleted+f.Deleted
	}
	before, since, form := o.base, all, "stat"
	if w.at.ID != "" {
		switch side, err := m.cfg.Side(ctx, &w.at); {
		case cell.KindOf(err) == cell.NotFound: // collected meanwhile, after another look at the cell
		case err != nil:
			return nil, err
		default:
			if since, err = diff.Compare(ctx, side, o.after, diff.Options{Ignored: ignored}); err != nil {
				return nil, err
			}
			if err := since.Count(ctx); err != nil {
				return nil, err
			}
			before, form = side, w.req.Form
		}
	}
	first, _, err := m.review(o.c, before, o.after, ignored, nil)
	if err != nil {
		return nil, err
	}
	out.Changed, out.First = filesAPI(since), state.LooksAPI(first)
	req := w.req
	if req.Form != "" && req.Form != "json" {
		req.Form = form
	}
	if out.Text, err = textOf(ctx, since, first, req); err == nil && len(out.Text) > watchText {
		req.Form = "stat"
		out.Text, err = textOf(ctx, since, first, req)
	}
	if req.Form == "text" && len(first) > 0 {
		var b strings.Builder
		writeFirst(&b, first)
		out.Text = b.String() + out.Text
	}
	return out, err
}
