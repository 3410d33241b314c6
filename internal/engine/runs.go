package engine

import (
	"context"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/live"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/volume"
)

// DefaultAttachGrace is how long a command waits for the client that said it would attach.
const DefaultAttachGrace = 30 * time.Second

// unheardGrace is how long a run waits for a client that went away before it was told of the run: it may ask again.
const unheardGrace = 5 * time.Second

// newRuns makes the manager of runs.
func (e *Engine) newRuns() *run.Manager {
	return run.New(run.Config{
		Records: e.reg, Locks: &e.locks, Log: e.log, Parser: e.cfg.Parser, Redactor: &redactor, Life: e.life,
		Cells: e.alive, Commands: e.alive, Evidence: e.evidence, Space: e.gc, Drops: e.gc,
		Files: run.Files{Open: evidence.OpenRecord, Create: evidence.CreateRecord, Network: evidence.Network, Denials: evidence.Denials, ExitOf: evidence.ExitOf},
		Compare: func(ctx context.Context, r *state.Run, c *state.Cell, before, after *state.Checkpoint) (run.Changed, error) {
			return e.results.Compare(ctx, r, c, before, after)
		},
		Demands: func(c *state.Cell, r *state.Run) (bool, error) {
			rule, err := e.govern.SignOffs(c, []state.Run{*r}, nil)
			return rule.Needs > 0, err
		},
		Demand: func(ctx context.Context, c *state.Cell, r *state.Run) (*state.SignOffNeed, error) {
			return e.results.Demand(ctx, c, r)
		},
		Apply: e.results.Apply, Secrets: e.lookForSecrets, Calls: e.noteCalls, Check: e.check, Side: e.side,
		EndAnswers: func(ctx context.Context, c *state.Cell) error { return e.govern.DropAnswers(ctx, c, "") },
		Checkpoint: func(ctx context.Context, c *state.Cell, id cell.RunID) (state.Checkpoint, error) {
			return e.settle(ctx, c, state.KindAfter, "", id)
		},
		ServicesTo: e.servicesTo,
		Notice:     e.noticeOfEnd, NoteCaches: e.noteCaches, EndCaches: e.endCaches,
		DiskFull: func(id cell.ID) bool { return volume.Full(e.private(id)) },
		Command: func(ctx context.Context, inst backend.Instance, id cell.RunID) (backend.Process, error) {
			return live.Ask(ctx, inst, func(ctx context.Context) (backend.Process, error) { return inst.Process(ctx, string(id)) })
		},
		Sleep: e.alive.Sleep,
		Idle:  backend.NothingRuns, LastImport: e.lastImport, RemoveUnmade: e.removeUnmade, Failure: e.failure,
		Pin: func() func() { return e.pins.Begin().End }, Stage: stage, Background: e.background,
	})
}
