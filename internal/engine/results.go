package engine

import (
	"context"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/state"
)

// newResults makes the manager of results.
func (e *Engine) newResults() *result.Manager { return result.New(e.resultConfig()) }

func (e *Engine) resultConfig() result.Config {
	return result.Config{
		Records: e.reg, Locks: &e.locks, Log: e.log, Parser: e.cfg.Parser, Redactor: &redactor, Home: e.cfg.User.Home, User: e.cfg.User.Name, Backups: e.cfg.Home.Applies(),
		Cells: e.alive, Evidence: e.evidence, Space: e.gc, Decides: result.Decides{Unchanged: e.unchanged, MayStart: e.govern.Isolates, SignOffs: e.govern.SignOffs, High: e.highFindings, Secrets: e.govern.RefuseSecrets, SecretsIn: e.govern.SecretsIn, GitSigner: e.govern.GitSigner},
		Pin:  func() func() { return e.pins.Begin().End },
		Tree: e.trees.get, PutTree: e.trees.put, TreeOf: e.tree, Side: e.side,
		Stamp: func(ctx context.Context, c *state.Cell) (sum cell.Digest, settled bool, err error) {
			p, err := e.providerOf(c.Provider)
			if err != nil {
				return sum, false, err
			}
			return p.Stamp(ctx, *c.Gen)
		},
		SourceNow: e.sourceNow, Path: e.cfg.Path, Private: e.private, Objects: e.cfg.Objects,
		Verify: func(ctx context.Context, k *state.Checkpoint) error { _, err := e.walk(ctx, k); return err },
		Checkpoint: func(ctx context.Context, c *state.Cell, k state.Checkpoint, within cell.RunID) (state.Checkpoint, error) {
			return e.settleWith(ctx, c, k, within, false)
		},
		MayReturn: e.mayReturn, ServicesTo: e.servicesTo, HomeAt: e.homeAt, EndOrphan: e.endOrphan, Memory: e.memoryOf, Processes: e.alive.CountProcesses, Working: func(id cell.ID) bool { return e.runs.In(id) != nil }, Show: e.cellView,
		Act: func(ctx context.Context, what string, id cell.ID) (context.Context, func(*error)) {
			ctx, a := e.act(ctx, what, id)
			return ctx, a.over
		},
		Caches: e.waitingCaches, KeepCaches: e.acceptedCaches,
		Background: e.background,
	}
}
