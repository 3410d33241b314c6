package spawn

import (
	"context"
	"fmt"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// A Return is a checkpoint with memory, loaded, at which its cell is to go on.
type Return struct {
	m     *Manager
	at    *snapshot
	k     *state.Checkpoint
	terms terms
}

// CheckTerms checks the fields of a request for cells that go on at a checkpoint. files names the
// checkpoint if its files alone are asked for.
func CheckTerms(certify, atFork, files string) error {
	t, err := termsOf(certify, atFork)
	if err == nil && files != "" {
		err = t.filesAlone(files)
	}
	return err
}

// Return loads a checkpoint with memory. Where the terms are strict it is tried in a copy whether
// the cell may go on there: the cell itself is not touched. The caller holds its lock.
func (m *Manager) Return(ctx context.Context, c *state.Cell, k *state.Checkpoint, certify, atFork string) (*Return, error) {
	t, err := termsOf(certify, atFork)
	if err != nil {
		return nil, err
	}
	p, err := m.cfg.Provider(c.Provider)
	if err != nil {
		return nil, err
	}
	refused := func(hint string, err error) error {
		return cell.Errorf(cell.KindOf(err), "spawn.Return", hint, "cannot restore %s@%d with its memory, and nothing was changed: %w", c.Title(), k.Number, err)
	}
	at, err := m.snapshotAt(ctx, p, k)
	if err != nil {
		return nil, refused(fmt.Sprintf("restore its files alone: pando restore %s@%d --files", c.Title(), k.Number), err)
	}
	if t.strict {
		if err := m.tryAt(ctx, at, c, k, t); err != nil {
			at.forget()
			return nil, refused(cell.HintOf(err), err)
		}
	}
	return &Return{m, at, k, t}, nil
}

// GoOn lets the cell, which is at rest, go on there: see goOnAt.
func (r *Return) GoOn(ctx context.Context, c *state.Cell) (resumed int, cert cell.Certificate, err error) {
	return r.m.goOnAt(ctx, r.at, c, r.k, r.terms)
}

// Apart says which hard links of the checkpoint's tree come apart in the cell.
func (r *Return) Apart(t *workspace.Tree) []string { return Unjoined(r.at.provider, t, "the cell") }

// Forget takes away what was loaded.
func (r *Return) Forget() { r.at.forget() }
