package result

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// A watched cell is looked at each watchLeast, and more seldom, up to watchMost, where a look takes more than one part
// in watchShare of the time.
const (
	watchLeast = 300 * time.Millisecond
	watchMost  = 30 * time.Second
	watchShare = 10
)

// watchPatience is how long a watched cell may have no state that can be looked at: it is paused and resumed, or its keeper
// is out of reach.
const watchPatience = time.Minute

// WatchDiff tells what there is to decide about in a cell, and again whenever that has changed, with what changed in
// between, until ctx ends or tell fails. A cell at rest stays so.
func (m *Manager) WatchDiff(ctx context.Context, req DiffRequest, tell func(api.DiffChange) error) error {
	const opName = "result.WatchDiff"
	switch {
	case req.Run != "":
		return cell.Errorf(cell.Invalid, opName, "watch its cell", "what run %s changed does not change any more", req.Run)
	case !slices.Contains([]string{"", "json", "text", "stat"}, req.Form):
		return cell.Errorf(cell.Invalid, opName, "use json, text or stat", "%.80q is no form in which changes can be followed", req.Form)
	}
	w := watch{m: m, req: req}
	looked := time.Now() // the last time that it could be looked at
	for {
		began := time.Now()
		changed, err := w.look(ctx)
		pause := min(watchMost, max(watchLeast, watchShare*time.Since(began)))
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			looked = time.Now()
		case cell.KindOf(err) != cell.Conflict && cell.KindOf(err) != cell.Unavailable, time.Since(looked) > watchPatience:
			return err
		}
		if changed != nil {
			if err := tell(*changed); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// What is told of one change is bounded.
const (
	watchText  = 256 << 10 // bytes of its text; of more the numbers for each file are told
	watchFiles = 1000
)

// watch is what one call of WatchDiff remembers.
type watch struct {
	m   *Manager
	req DiffRequest

	files   cell.Digest      // the stamp of the files before they were looked at; zero: they were at rest
	settled bool             // that says all of them
	record  string           // of the cell, then
	at      state.Checkpoint // the state that was told last
	digest  cell.Digest      // of the changes that were told last; zero: none were
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
	files, settled := cell.Digest{}, true
	if c.Gen != nil {
		if files, settled, err = w.m.cfg.Stamp(ctx, &c); err != nil {
			return nil, err
		}
	}
	if !w.digest.IsZero() && recordOf(&c) == w.record && files == w.files && w.settled {
		return nil, nil
	}
	if c.Gen != nil {
		if err := w.m.cfg.Space.Room(); err != nil {
			return nil, err
		}
	}
	defer w.m.cfg.Pin()()
	o, err := w.m.compared(ctx, w.req)
	if err != nil {
		return nil, err
	}
	var out *api.DiffChange
	if o.digest != w.digest {
		if out, err = w.changed(ctx, o); err != nil {
			return nil, err
		}
		w.at, w.digest = o.at, o.digest
	}
	// The record is that of before: what another act committed since is seen by the next look, as is the checkpoint of this one.
	w.files, w.settled, w.record = files, settled, recordOf(&c)
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
		if ignored, _, err = m.ignoredBy(ctx, o.c, o.base, o.after); err != nil {
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
	if side, d, err := w.since(ctx, o, ignored); err == nil && d != nil {
		before, since, form = side, d, w.req.Form
	} else if ctx.Err() != nil {
		return nil, ctx.Err()
	} // else what was told last was collected, after another look at the cell: all is told again
	first, _, err := m.review(o.c, before, o.after, ignored, nil)
	if err != nil {
		return nil, err
	}
	out.Changed, out.First = filesAPI(since), state.LooksAPI(first)
	if more := len(out.Changed) - watchFiles; more > 0 {
		out.Changed, out.More = out.Changed[:watchFiles], more
	}
	req := w.req
	if req.Form != "" && req.Form != "json" {
		req.Form = form
	}
	if out.Text, err = textOf(ctx, since, first, req); err == nil && len(out.Text) > watchText {
		req.Form = "stat"
		if out.Text, err = textOf(ctx, since, first, req); len(out.Text) > watchText {
			out.Text = out.Text[:strings.LastIndexByte(out.Text[:watchText], '\n')+1] + " …\n"
		}
	}
	if req.Form == "text" && len(first) > 0 {
		var b strings.Builder
		writeFirst(&b, first)
		out.Text = b.String() + out.Text
	}
	return out, err
}

// since compares the state that was told last with an offer; d is nil if none was.
func (w *watch) since(ctx context.Context, o *offer, ignored func(string, bool) bool) (side workspace.Side, d *diff.Diff, err error) {
	if w.at.ID == "" {
		return side, nil, nil
	}
	at, err := w.m.cfg.Records.Checkpoint(w.at.ID)
	if err != nil {
		return side, nil, err
	}
	if side, err = w.m.cfg.Side(ctx, &at); err != nil {
		return side, nil, err
	}
	if d, err = diff.Compare(ctx, side, o.after, diff.Options{Ignored: ignored}); err == nil {
		err = d.Count(ctx)
	}
	return side, d, err
}
