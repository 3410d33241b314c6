package engine

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// maxTurn bounds what a turn copies, in bytes: the first one copies all that was written in the cell, a
// later one what changed. While it is copied the cell goes on, but the answer to its agent waits.
const maxTurn = 4 << 30

// takeTurn makes the state of a cell at the beginning of a turn of its agent a checkpoint. The run
// that the agent is does it, since it has the cell's lock.
func (e *Engine) takeTurn(ctx context.Context, id cell.ID, at cell.Turn) error {
	l := e.runs.In(id)
	if l == nil {
		return cell.Errorf(cell.Conflict, "engine.takeTurn", "", "no run is under way in cell %s", id)
	}
	return l.Within(ctx, func() error {
		_, err := e.turnOf(ctx, l, id, at)
		return err
	})
}

func (e *Engine) turnOf(ctx context.Context, l *run.Live, id cell.ID, at cell.Turn) (k state.Checkpoint, err error) {
	ctx, a := e.act(ctx, "checkpoint", id)
	defer a.over(&err)
	defer e.pins.Begin().End()
	c, err := e.reg.Cell(id)
	if err != nil {
		return k, err
	}
	if c.Volume > 0 {
		return k, cell.Errorf(cell.Unsupported, "engine.takeTurn", "work in a cell without --disk", "cell %s has a disk of its own (--disk), which its home is on", c.Title())
	}
	return e.settleWith(ctx, &c, state.Checkpoint{Kind: state.KindTurn, Message: cell.Clip(redactor.String(at.Text)), Run: l.ID(), Turn: e.reg.LastTurn(id) + 1,
		Expires: time.Now().Add(state.KeepResult).UTC()}, l.ID(), false)
}

// undo is result.Manager's, for a turn, too: then the agent is ended first.
func (e *Engine) undo(ctx context.Context, id cell.ID, req api.UndoRequest, seen ...Seen) (res api.RestoreResult, err error) {
	if req.Turn != 0 {
		if req, err = e.results.BeforeTurn(id, req, seen...); err != nil {
			return res, err
		}
		seen = nil // the end of the agent changes the cell
		if !req.DryRun {
			if _, err := e.Stop(ctx, id); err != nil {
				return res, err
			}
		}
	}
	return e.results.Undo(ctx, id, req, seen...)
}

// layHome reports whether a checkpoint has the cell's home, too: in the cell of an agent those have it
// at which its conversation can be taken up. The home is a layer from then on, and c is committed if it
// was none. On a disk of the cell's own (--disk) it stays there.
func (e *Engine) layHome(ctx context.Context, p workspace.Provider, c *state.Cell, k *state.Checkpoint) (bool, error) {
	if c.Agent == "" || c.Volume > 0 || k.Kind != state.KindTurn && k.Kind != state.KindManual && k.Kind != state.KindFork {
		return false, nil
	}
	if c.Home == nil {
		if _, err := os.Lstat(filepath.Join(e.private(c.ID), "home")); err != nil {
			return false, nil // it has none yet
		}
		if err := e.spawn.LayHome(ctx, c, p); err != nil {
			return false, err
		}
	}
	return true, nil
}

// keepHome copies the home of a cell at rest into a checkpoint.
func keepHome(ctx context.Context, p workspace.Provider, c *state.Cell, k *state.Checkpoint) error {
	s, _, err := workspace.SnapshotNow(ctx, p, *c.Home)
	if err != nil {
		return durable.Full(err)
	}
	k.Home = &s
	return nil
}

// settleHome is settleFiles for a cell at rest with the files of its head: where a checkpoint has the home, too, one is
// made, since no digest says that the home is as it was; and where the cell's services are not as they were.
func (e *Engine) settleHome(ctx context.Context, p workspace.Provider, c *state.Cell, k, head state.Checkpoint) (state.Checkpoint, error) {
	began := time.Now()
	withHome, err := e.layHome(ctx, p, c, &k)
	if err != nil || !withHome && !movedOn(&k, &head) {
		return head, err
	}
	if withHome {
		if err := keepHome(ctx, p, c, &k); err != nil {
			return head, err
		}
	}
	k.State, k.Tree, k.Content, k.TookMS = head.State, head.Tree, head.Content, ms(time.Since(began))
	next := *c
	next.Next++
	next.Head = k.ID
	if err := e.reg.Commit(&next, &k); err != nil {
		return head, err
	}
	*c = next
	return k, nil
}

// homeAt gives a cell the home of a checkpoint, if that has one. done is called when c was recorded,
// or was not.
func (e *Engine) homeAt(ctx context.Context, c *state.Cell, k *state.Checkpoint) (done func(recorded bool), err error) {
	if k.Home == nil {
		return func(bool) {}, nil
	}
	p, err := e.providerOf(c.Provider)
	if err != nil {
		return nil, err
	}
	g, err := p.Begin(ctx, *k.Home, workspace.Entry{Type: workspace.Folder, Mode: 0o700, MTime: time.Now().UnixNano()}, "")
	if err != nil {
		return nil, durable.Full(err)
	}
	old := c.Home
	c.Home = &g
	return func(recorded bool) {
		unused := &g
		if recorded {
			unused = old
		}
		if unused != nil {
			e.dropLayer(p.Name(), unused.Layer)
		}
	}, nil
}
