package namespace

import (
	"context"
	"errors"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/keeper/client"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// The daemon's half of forks.

// fork makes a fork of a sealed instance.
func (b *Backend) fork(ctx context.Context, of *client.Instance, spec cell.Spec) (_ *client.Instance, err error) {
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	f, err := b.Prepare(ctx, of, spec, &undo)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	n, files, err := f.Request(spec)
	if err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	// The request is not cancelled: after a cancelled one the caller would not know what the
	// keeper has made.
	if _, err := client.Ask(context.WithoutCancel(ctx), of.Client, proto.Fork, proto.NewFork{Of: of.Cell, NewCell: n}, files...); err != nil {
		return nil, err
	}
	i := of.Relative(spec.ID, f.Known)
	b.hook(i)
	i.Lower = b.Lower(spec)
	undo.Add("remove the fork", func(ctx context.Context) error { return i.Remove(ctx, "it could not be completed") })
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return i, nil
}

// branch makes branches of an instance. Everything that can be prepared before the source stops is
// prepared before.
func (b *Backend) branch(ctx context.Context, of *client.Instance, br cell.Branching) (made []*client.Instance, pause cell.Pause, err error) {
	var undo cleanup.Stack
	defer undo.OnError(ctx, &err)
	of.Changed() // another daemon may have branched it
	branches := make([]*isolation.Prepared, len(br.Cells))
	var self *isolation.Prepared
	defer func() {
		for _, f := range append(branches, self) {
			if f != nil {
				f.Close()
			}
		}
	}()
	x, err := of.Client.Session(ctx)
	if err != nil {
		return nil, pause, err
	}
	defer x.Close()
	// Obstacles are reported before anything is made.
	if _, err := client.Ask(ctx, x, proto.Branch, proto.OfCell{Cell: of.Cell}); err != nil {
		return nil, pause, err
	}
	for n, spec := range br.Cells {
		if branches[n], err = b.Prepare(ctx, of, spec, &undo); err != nil {
			return nil, pause, err
		}
	}
	if self, err = b.PrepareSource(ctx, of, br.Self); err != nil {
		return nil, pause, err
	}
	n, files, err := self.Request(br.Self)
	if err != nil {
		return nil, pause, err
	}
	if _, err := client.Ask(ctx, x, proto.Source, n, files...); err != nil {
		return nil, pause, err
	}
	for n, f := range branches {
		n, files, err := f.Request(br.Cells[n])
		if err != nil {
			return nil, pause, err
		}
		if _, err := client.Ask(ctx, x, proto.BranchTo, n, files...); err != nil {
			return nil, pause, err
		}
	}
	// From here on the exchange is completed even if ctx is cancelled.
	wait := context.WithoutCancel(ctx)
	if _, err := client.Ask(wait, x, proto.Hold, proto.None{}); err != nil {
		return nil, pause, err
	}
	if br.Paused != nil {
		err = br.Paused()
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		client.Ask(wait, x, proto.GiveUp, proto.None{})
		return nil, pause, err
	}
	if pause, err = client.Ask(wait, x, proto.GoOn, proto.None{}); err != nil {
		return nil, pause, err
	}
	of.Changed()
	if _, err := client.Ask(wait, x, proto.Complete, proto.None{}); err != nil {
		return nil, pause, err
	}
	undo.Add("remove the branches", func(ctx context.Context) error {
		var errs []error
		for _, i := range made {
			errs = append(errs, i.Remove(ctx, "it could not be completed"))
		}
		return errors.Join(errs...)
	})
	for n, f := range branches {
		i := of.Relative(br.Cells[n].ID, f.Known)
		b.hook(i)
		made = append(made, i)
	}
	return made, pause, nil
}
