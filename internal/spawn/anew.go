package spawn

import (
	"context"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/state"
)

// Anew makes a cell at rest with the files of a checkpoint of src, which may be removed, as long as the checkpoint's files are there. It
// decides about no result, and writes no receipt: that is its caller's. Without a name it is replay-N.
func (m *Manager) Anew(ctx context.Context, src *state.Cell, k *state.Checkpoint, asked string) (_ *state.Cell, _ *state.Checkpoint, err error) {
	if err := m.cfg.MayFork(src, 1); err != nil {
		return nil, nil, err
	}
	names, named, err := m.claimNumbered(src.Title(), "replay-", asked, 1)
	if err != nil {
		return nil, nil, err
	}
	defer named()
	ch := newChild(src, k, nil)
	c, first := ch.c, ch.first
	if err := c.To(cell.Idle); err != nil {
		return nil, nil, err
	}
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	if err := m.beginHome(ctx, c, k); err != nil {
		return nil, nil, err
	}
	undo.Add("drop the home of a new cell", func(context.Context) error { m.dropFiles(c); return nil })
	first.Home = k.Home
	if m.reg.Built(src.ID) { // a template that was built has what its steps wrote to the image
		c.Setup.Mounts = m.cfg.Stacked(src)
	}
	c.Name, c.Created, c.Of, c.Maker, c.Guest = names[0], time.Now().UTC(), "", m.cfg.Maker(ctx), c.Guest || m.cfg.Confined(ctx)
	first.Created = c.Created
	copies, err := m.cfg.CopyServices(src, k, c, first)
	if err != nil {
		return nil, nil, err
	}
	return c, first, m.reg.Commit(append([]any{c, first}, copies...)...)
}
