package engine

import (
	"context"

	"github.com/pando-dev/pando/internal/state"
)

// lookForSecrets searches what a run left behind for the values of credentials
// that were lent to its cell. Where nothing was lent, it costs nothing, and says
// nothing.
func (x *execution) lookForSecrets(ctx context.Context, after *state.Checkpoint) error {
	x.run.Secrets = nil
	s := x.e.govern.SearchFor(&x.c)
	if s == nil {
		return nil
	}
	from, err := x.e.tree(ctx, &x.before)
	if err != nil {
		return err
	}
	to, err := x.e.side(ctx, after)
	if err != nil {
		return err
	}
	return s.Run(ctx, x.run, from, to)
}
