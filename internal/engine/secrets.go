package engine

import (
	"context"

	"github.com/pando-dev/pando/internal/state"
)

// lookForSecrets searches what a run left behind for the values of credentials
// that were lent to its cell. Where nothing was lent, it costs nothing, and says
// nothing.
func (e *Engine) lookForSecrets(ctx context.Context, r *state.Run, c *state.Cell, before, after *state.Checkpoint) error {
	r.Secrets = nil
	s := e.govern.SearchFor(c)
	if s == nil {
		return nil
	}
	from, err := e.tree(ctx, before)
	if err != nil {
		return err
	}
	to, err := e.side(ctx, after)
	if err != nil {
		return err
	}
	return s.Run(ctx, r, from, to)
}
