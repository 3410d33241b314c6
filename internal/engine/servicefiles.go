package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/spawn"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// What services keep is a part of what their cell is: its checkpoints name those of their cells, what brings it back to
// one brings both back, and its copies have copies of both.

// besideServices makes what the services of a cell keep checkpoints, by name, and then does something. Where anything runs
// in the cell, its services stand still until that is done or calls goOn, so that both are of one moment: what the cell was
// told by them is in their files. The caller has the cell's lock.
func (e *Engine) besideServices(ctx context.Context, c *state.Cell, do func(at map[string]cell.CheckpointID, goOn func()) error) error {
	if len(c.Services) == 0 {
		return do(nil, func() {})
	}
	s := settling{e: e, ctx: ctx, together: !e.alive.AtRest(c.ID), at: map[string]cell.CheckpointID{}}
	defer s.goOn()
	return e.services.Within(ctx, c, func() error {
		return s.settle(c.Services, func() error { return do(s.at, s.goOn) })
	})
}

// settling is the work of besideServices.
type settling struct {
	e        *Engine
	ctx      context.Context
	together bool
	at       map[string]cell.CheckpointID
	held     []func() // lets each go on
}

// goOn lets the services go on that stand still.
func (s *settling) goOn() {
	for _, release := range s.held {
		release()
	}
	s.held = nil
}

// settle makes checkpoints of the services of a list, and then does something, with the locks of their cells.
func (s *settling) settle(list []state.Service, do func() error) error {
	if len(list) == 0 {
		return do()
	}
	of, e := list[0], s.e
	return e.alive.Within(s.ctx, of.Cell, "checkpoint", func(within cell.RunID) error {
		if s.together {
			release, err := e.alive.Hold(s.ctx, of.Cell)
			if err != nil {
				return err
			}
			s.held = append(s.held, release)
		}
		_, k, err := e.settleService(s.ctx, of.Cell, within)
		if err != nil {
			return cell.Errorf(cell.KindOf(err), "engine.checkpoint", cell.HintOf(err), "cannot keep what service %s has: %w", of.Name, err)
		}
		s.at[of.Name] = k.ID
		err = s.settle(list[1:], do)
		s.goOn() // before another act has the lock
		return err
	})
}

// settleService makes the files of the cell of a service a checkpoint. One whose keeper is lost meanwhile is at rest.
func (e *Engine) settleService(ctx context.Context, id cell.ID, within cell.RunID) (c state.Cell, k state.Checkpoint, err error) {
	for range 2 {
		if c, err = e.alive.Usable(id); err != nil {
			return c, k, err
		}
		inst := e.alive.Instance(id)
		k, err = e.settleWith(ctx, &c, state.Checkpoint{Kind: state.KindService}, within, false)
		if err == nil || inst == nil || !backend.Dead(ctx, inst) {
			break
		}
	}
	return c, k, err
}

// movedOn reports whether a checkpoint has other files of services than the head before it.
func movedOn(k, head *state.Checkpoint) bool {
	return k.Services != nil && !maps.Equal(k.Services, head.Services)
}

// servicesTo brings the services of a cell, which is at rest, to where they were at a checkpoint of the cell: they end,
// and start on those files when the cell is used. What they had is a checkpoint: the caller made one of the cell before.
// One that has changed nothing since stays as it is. The objects are to be committed with the cell; done is called when
// they were, or were not, and nothing reaches the services until then.
func (e *Engine) servicesTo(ctx context.Context, c *state.Cell, to *state.Checkpoint) (objects []any, done func(recorded bool), err error) {
	if len(c.Services) == 0 || len(to.Services) == 0 { // it is a look
		return nil, func(bool) {}, nil
	}
	var over []func(recorded bool)
	done = func(recorded bool) {
		for _, f := range slices.Backward(over) {
			f(recorded)
		}
	}
	err = e.services.Within(ctx, c, func() error {
		for _, s := range c.Services {
			release, err := e.alive.Lock(ctx, s.Cell, "restore")
			if err != nil {
				return err
			}
			over = append(over, func(bool) { release() })
			moved, left, err := e.serviceTo(ctx, s.Cell, to.Services[s.Name])
			if err != nil {
				return cell.Errorf(cell.KindOf(err), "engine.restore", cell.HintOf(err), "cannot bring service %s back to checkpoint %s: %w", s.Name, c.Selector(to), err)
			}
			if moved == nil {
				continue
			}
			objects = append(objects, moved)
			if left != nil {
				over = append(over, func(recorded bool) {
					if recorded {
						e.dropLayer(moved.Provider, left.Layer)
					}
				})
			}
		}
		return nil
	})
	if err != nil {
		done(false)
		return nil, nil, err
	}
	return objects, done, nil
}

// serviceTo ends a service, and returns the record of its cell at a checkpoint, with the layer that it leaves; nil if it is
// there. The caller has the lock of the cell.
func (e *Engine) serviceTo(ctx context.Context, id cell.ID, to cell.CheckpointID) (moved *state.Cell, left *workspace.Generation, err error) {
	c, now, err := e.settleService(ctx, id, "")
	if err != nil {
		return nil, nil, err
	}
	k, err := e.servicePoint(&c, to)
	if err != nil || now.ID == k.ID || now.Tree == k.Tree && !k.Tree.IsZero() {
		return nil, nil, err
	}
	if err := e.alive.Deactivate(ctx, id, "restored"); err != nil {
		return nil, nil, err
	}
	left = c.Gen
	c.Head, c.Gen, c.Cause = k.ID, nil, ""
	return &c, left, c.To(cell.Idle)
}

// servicePoint is a checkpoint of the cell of a service.
func (e *Engine) servicePoint(c *state.Cell, id cell.CheckpointID) (state.Checkpoint, error) {
	k, err := e.reg.Checkpoint(id)
	if err == nil && k.Gone {
		err = cell.Errorf(cell.NotFound, "engine.service", "pando history "+c.Title()+" shows those that are there", "checkpoint %s was removed", c.Selector(&k))
	}
	return k, err
}

// copyServices gives a new cell that begins at a checkpoint copies of the services of the cell which that is of. They are
// records alone, to be committed with it. first is its first checkpoint.
func (e *Engine) copyServices(of *state.Cell, at *state.Checkpoint, c *state.Cell, first *state.Checkpoint) (objects []any, err error) {
	if len(of.Services) == 0 {
		return nil, nil
	}
	if len(at.Services) == 0 {
		return nil, cell.Errorf(cell.Conflict, "engine.Fork", fmt.Sprintf("fork the cell as it is now: pando fork %s; or another checkpoint: pando history %s", of.Title(), of.Title()),
			"cannot fork %s: it was made to look at the files, and what services (%s) had then was not kept", of.Selector(at), join(of.ServiceNames()))
	}
	c.Services = nil
	first.Services = map[string]cell.CheckpointID{}
	for _, s := range of.Services {
		was, err := e.reg.Cell(s.Cell)
		if err != nil {
			return nil, err
		}
		k, err := e.servicePoint(&was, at.Services[s.Name])
		if err != nil {
			return nil, err
		}
		copied, begins := spawn.FilesOf(&was, &k)
		copied.Name, copied.Created, copied.Maker, copied.Guest = e.serviceCellName(c, s.Name), c.Created, c.Maker, c.Guest
		serves := *was.Serves
		serves.Of = c.ID
		copied.Serves, begins.Created = &serves, c.Created
		if err := copied.To(cell.Idle); err != nil {
			return nil, err
		}
		lease := &state.Lease{Cell: copied.ID, Since: time.Now().UTC(), Labels: e.labelsOf(was.ID)}
		copied.Maker.Sign(lease, false)
		lease.Until = time.Time{} // its end is that of the cell it serves
		e.alive.SetLeaseEnv(lease, e.alive.LeasedEnv(was.ID))
		c.Services = append(c.Services, state.Service{Name: s.Name, Cell: copied.ID, Image: s.Image, ImageID: s.ImageID})
		first.Services[s.Name] = begins.ID
		objects = append(objects, copied, begins, lease)
	}
	return objects, nil
}

// serviceCellName is the name of a new cell of a service.
func (e *Engine) serviceCellName(of *state.Cell, name string) string {
	full := of.Title() + "." + name
	if _, taken := e.reg.Named(full); taken || cell.CheckName(full) != nil { // another's, or too long
		return string(of.ID) + "." + name
	}
	return full
}

// serveCopy starts the services of a copy in which something goes on, and connects it to them.
func (e *Engine) serveCopy(ctx context.Context, c *state.Cell, inst backend.Instance) error {
	if err := e.services.Start(ctx, c); err != nil {
		return err
	}
	return e.services.Connect(ctx, c, inst)
}

// copyCount is how many cells are made for so many copies of a cell, 0 for one: with those of services.
func (e *Engine) copyCount(id cell.ID, asked int) int {
	n := min(max(asked, 1), spawn.MaxFork+1)
	if c, err := e.reg.Cell(id); err == nil {
		n *= 1 + len(c.Services)
	}
	return n
}
