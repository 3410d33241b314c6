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
// told by them is in their files. With whole it fails if what one keeps can't be had; else that is not among them. The caller
// has the cell's lock.
func (e *Engine) besideServices(ctx context.Context, c *state.Cell, whole bool, do func(at map[string]cell.CheckpointID, goOn func()) error) error {
	if len(c.Services) == 0 {
		return do(nil, func() {})
	}
	s := settling{e: e, ctx: ctx, whole: whole, together: !e.alive.AtRest(c.ID), at: map[string]cell.CheckpointID{}}
	defer s.goOn()
	return e.services.Within(ctx, c, func() error {
		return s.settle(c.Services, func() error { return do(s.at, s.goOn) })
	})
}

// settling is the work of besideServices.
type settling struct {
	e               *Engine
	ctx             context.Context
	whole, together bool
	at              map[string]cell.CheckpointID
	held            []func() // lets each go on
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
	of := list[0]
	did := false
	err := s.e.alive.Within(s.ctx, of.Cell, "checkpoint", func(within cell.RunID) error {
		did = true
		if err := s.one(of, within); err != nil {
			return err
		}
		err := s.settle(list[1:], do)
		s.goOn() // before another act has the lock
		return err
	})
	if err != nil && !did && s.mayDoWithout(of, err) { // the cell of the service can't be had
		return s.settle(list[1:], do)
	}
	return err
}

// one makes a checkpoint of a service.
func (s *settling) one(of state.Service, within cell.RunID) error {
	e := s.e
	if s.together {
		// What is much is copied while it works: what was written meanwhile is little.
		if _, _, err := e.settleService(s.ctx, of.Cell, within); err != nil {
			return s.without(of, err)
		}
		release, err := e.alive.Hold(s.ctx, of.Cell)
		if err != nil {
			return s.without(of, err)
		}
		s.held = append(s.held, release)
	}
	_, k, err := e.settleService(s.ctx, of.Cell, within)
	if err != nil {
		return s.without(of, err)
	}
	s.at[of.Name] = k.ID
	return nil
}

// without is the error of a service that can't be had, nil if it is done without.
func (s *settling) without(of state.Service, err error) error {
	if s.mayDoWithout(of, err) {
		return nil
	}
	// Limits of the service are not those of the cell: its kind and its words are told, and no more.
	return cell.Errorf(cell.KindOf(err), "engine.checkpoint", cell.HintOf(err), "cannot keep what service %s has: %v", of.Name, err)
}

func (s *settling) mayDoWithout(of state.Service, err error) bool {
	if s.whole || s.ctx.Err() != nil {
		return false
	}
	s.e.log.Warn("a checkpoint is made without what a service keeps", "service", of.Name, "cell", of.Cell, "error", err)
	return true
}

// settleService makes the files of the cell of a service a checkpoint. One that loses its keeper meanwhile is at rest.
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
			if to.Services[s.Name] == "" { // it could not be kept then
				continue
			}
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
// there, and at rest. What it is can't always be kept, and must not keep the cell from its checkpoints. The caller has the
// lock of the cell.
func (e *Engine) serviceTo(ctx context.Context, id cell.ID, to cell.CheckpointID) (moved *state.Cell, left *workspace.Generation, err error) {
	c, now, err := e.settleService(ctx, id, "")
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	if err != nil {
		e.log.Warn("cannot keep what a service has before it goes back", "cell", id, "error", err)
		if c, err = e.alive.Usable(id); err != nil {
			return nil, nil, err
		}
		now = state.Checkpoint{}
	}
	k, err := e.servicePoint(&c, to)
	if err != nil {
		return nil, nil, err
	}
	there := now.ID == k.ID || now.Tree == k.Tree && !k.Tree.IsZero()
	if there && e.alive.AtRest(id) {
		return nil, nil, nil
	}
	if err := e.alive.Deactivate(ctx, id, "restored"); err != nil { // what it has in memory is of now
		return nil, nil, err
	}
	if c.Cause = ""; !there {
		left = c.Gen
		c.Head, c.Gen = k.ID, nil
	}
	return &c, left, c.To(cell.Idle)
}

// mayReturn refuses to bring a cell back to a checkpoint where one of its services can't go with it, before anything of the
// cell ends.
func (e *Engine) mayReturn(c *state.Cell, to *state.Checkpoint) error {
	for _, s := range c.Services {
		id := to.Services[s.Name]
		if id == "" {
			continue
		}
		of, err := e.alive.Usable(s.Cell)
		if err == nil {
			_, err = e.servicePoint(&of, id)
		}
		if err != nil {
			return cell.Errorf(cell.KindOf(err), "engine.restore", cell.HintOf(err), "cannot bring service %s back to checkpoint %s: %w", s.Name, c.Selector(to), err)
		}
		if run := e.runNow(s.Cell); run != "" {
			return cell.Errorf(cell.Conflict, "engine.restore", "wait until it has ended, or end it: pando stop "+of.Title(), "cannot bring service %s back to checkpoint %s: run %s is under way in its cell", s.Name, c.Selector(to), run)
		}
	}
	return nil
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
	if missing := slices.DeleteFunc(of.ServiceNames(), func(name string) bool { return at.Services[name] != "" }); len(missing) > 0 {
		return nil, cell.Errorf(cell.Conflict, "engine.Fork", fmt.Sprintf("fork the cell as it is now: pando fork %s; or another checkpoint: pando history %s", of.Title(), of.Title()),
			"cannot fork %s: what services (%s) had then was not kept", of.Selector(at), join(missing))
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

// serveAgain gives a cell that lives, and a run of which is not under way, its services back, as far as they were never started
// or connected since an earlier daemon recorded it.
func (e *Engine) serveAgain(c *state.Cell) {
	idle := func(s state.Service) bool { return e.alive.AtRest(s.Cell) }
	if e.alive.Instance(c.ID) == nil || !slices.ContainsFunc(c.Services, idle) {
		return
	}
	id := c.ID
	e.background(func(ctx context.Context) {
		release, err := e.alive.Lock(ctx, id, "start services")
		if err != nil {
			return // it begins with a run, or is gone
		}
		defer release()
		c, err := e.alive.Usable(id)
		inst, let := e.alive.Ref(id)
		defer let()
		if err != nil || inst == nil || c.State == cell.Paused || !slices.ContainsFunc(c.Services, idle) {
			return
		}
		if err := e.serveCopy(ctx, &c, inst); err != nil && ctx.Err() == nil {
			e.log.Warn("a cell goes on without its services, which start when it was at rest", "cell", id, "error", err)
		}
	})
}

// serveCopy starts the services of a copy in which something goes on, and connects it to them.
func (e *Engine) serveCopy(ctx context.Context, c *state.Cell, inst backend.Instance) error {
	if err := e.services.Start(ctx, c); err != nil {
		return err
	}
	return e.services.Connect(ctx, c, inst)
}

// copyCount is how many cells are made for so many copies of a cell, 0 for one: with those of services.
func (e *Engine) copyCount(id cell.ID, asked int) (int, error) {
	n := max(asked, 1)
	c, err := e.reg.Cell(id)
	if err != nil || len(c.Services) == 0 {
		return n, nil
	}
	each := 1 + len(c.Services)
	if most := spawn.MaxFork / each; n > most {
		return 0, cell.Errorf(cell.Invalid, "engine.Fork", fmt.Sprintf("ask for 1 to %d", most), "cannot make %d copies of cell %s: with its services each is %d cells", n, c.Title(), each)
	}
	return n * each, nil
}
