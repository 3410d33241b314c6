package engine

import (
	"context"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/run"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// affordable refuses a cell with files that claim more than twice its disk limit:
// holes cost a cell nothing, and take long to digest. Twice, because
// a limit that is only accounted for may be overrun by the last thing written.
func affordable(ctx context.Context, p workspace.Provider, c *state.Cell) error {
	if c.Limits().Disk <= 0 {
		return nil
	}
	n, err := p.Claims(ctx, *c.Gen)
	if err != nil {
		return err
	}
	return claimed(c, n)
}

// claimed is affordable, of files that claim n bytes.
func claimed(c *state.Cell, n int64) error {
	limit := c.Limits().Disk
	if limit <= 0 || n/2 <= limit {
		return nil
	}
	return cell.Errorf(cell.Conflict, "engine.settle", "remove the file, or allow more with --disk", "cannot keep the files of cell %s: %w",
		c.Title(), &run.Unaffordable{Claims: n, Limit: limit})
}

// full says what a full disk means to the caller that waits.
func full(err error) error {
	if durable.IsFull(err) {
		return cell.Errorf(cell.Unavailable, "engine", "free some space (`pando gc` shows what pando can free), then try again", "cannot go on: %w", err)
	}
	return err
}
