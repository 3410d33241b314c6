package staged

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/guest"
	"github.com/pando-dev/pando/internal/interp"
	"github.com/pando-dev/pando/internal/keeper"
)

// Prepare implements keeper.Preparer.
func (d *Driver) Prepare(id cell.ID, files []*os.File) error {
	s, err := d.sandbox(id)
	if err != nil {
		return err
	}
	if s.guest() == nil || len(files) != s.kind.Images {
		return nil // Capture says why it can't be
	}
	return s.uncaptured(s.kernel.Prepare(files))
}

// uncaptured is the error of what could not be captured; nil, if it could.
func (s *sandbox) uncaptured(err error) error {
	op := s.kind.Name + ".Capture"
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC):
		return cell.Errorf(cell.Unavailable, op, "free some space (`pando gc` shows what pando can free), then try again", "cannot capture the memory of cell %s: %w", s.id, unix.ENOSPC)
	}
	return cell.Errorf(cell.Unsupported, op, "its files can be had: pando fork", "cannot capture the memory of cell %s: %w", s.id, err)
}

// Capture implements keeper.Capturer.
func (d *Driver) Capture(id cell.ID, files []*os.File) (json.RawMessage, error) {
	s, err := d.sandbox(id)
	if err != nil {
		return nil, err
	}
	s.freezing.Lock()
	defer s.freezing.Unlock()
	op := s.kind.Name + ".Capture"
	if !s.frozen || s.guest() == nil {
		return nil, cell.Errorf(cell.Conflict, op, "", "cannot capture the memory of cell %s: it does not stand still", id)
	}
	if len(files) != s.kind.Images {
		return nil, cell.Errorf(cell.Invalid, op, "", "cannot capture the memory of cell %s: there are %d files for it", id, len(files))
	}
	kernel, err := s.kernel.Capture(files)
	if err != nil {
		return nil, s.uncaptured(err)
	}
	return json.Marshal(known{s.token[:], s.procs.Load(), kernel})
}

// stop lets everything in the sandbox stand still: the guest between two frames,
// then all tasks.
func (s *sandbox) stop(g *guest.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), holdGrace)
	defer cancel()
	if err := g.Hold(ctx, s.kind.Introduced); err != nil {
		return err
	}
	if err := s.kernel.Pause(); err != nil {
		return errors.Join(err, g.GoOn(ctx))
	}
	return nil
}

// holdGrace is how long a guest may take to come to the border of a frame.
const holdGrace = 10 * time.Second

// goOn ends stop.
func (s *sandbox) goOn(g *guest.Client) error {
	if err := s.kernel.Resume(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), holdGrace)
	defer cancel()
	return g.GoOn(ctx)
}

// Adopt implements keeper.Adopter.
func (d *Driver) Adopt(id cell.ID, a cell.Adoption) (c cell.Certificate, err error) {
	s, err := d.sandbox(id)
	if err != nil {
		return c, err
	}
	g := s.guest()
	if g == nil || !s.copied.CompareAndSwap(true, false) {
		return c, cell.Errorf(cell.Conflict, s.kind.Name+".Adopt", "", "cell %s is no copy that waits to be adopted", id)
	}
	if a.Hostname != "" && a.Hostname != s.spec.Hostname {
		if err := s.stage.Identify(a.Hostname); err != nil {
			return c, err
		}
		if err := s.kernel.Refresh(); err != nil {
			return c, err
		}
	}
	fresh := newToken()
	c = cell.Certificate{Cell: id, At: time.Now().UTC()}
	if c.Hazards, err = g.Adopt(context.Background(), s.adoption(a.Hostname, fresh)); err != nil {
		return c, fmt.Errorf("cannot adopt cell %s: %w", id, err)
	}
	s.token = fresh
	if s.in == nil {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), adoptGrace)
	defer cancel()
	got, err := s.in.Conn.Adopt(ctx, interp.Adoption{Env: a.Env, UID: -1, GID: -1, Name: a.Hostname})
	c.Hazards, c.Dropped = append(c.Hazards, got.Hazards...), got.Dropped
	return c, err
}

// adoptGrace is how long a copy's interpreter may take to renew what it must not
// have in common with others, with the hooks of its code.
const adoptGrace = 60 * time.Second

// disown takes over what the source's keeper had started, but for its interpreter:
// nobody waits for it here, nor reads what it writes.
func (s *sandbox) disown(g *guest.Client) error {
	list, err := g.Processes(context.Background())
	if err != nil {
		return err
	}
	for _, k := range list {
		if k.Control && !k.Ended {
			s.interpreter = k
			continue
		}
		null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		p, err := g.Reattach(context.Background(), k, [3]*os.File{nil, null, null}, nil)
		null.Close()
		if err != nil {
			return err
		}
		go func() {
			p.Wait(func() {})
			p.Release()
		}()
	}
	return nil
}

// Resume implements keeper.Capturer.
func (d *Driver) Resume(id cell.ID, i *keeper.Interpreter, stdio [3]*os.File, control *os.File) error {
	s, err := d.sandbox(id)
	if err != nil {
		return err
	}
	g := s.guest()
	if g == nil || s.interpreter.ID == "" {
		return cell.Errorf(cell.NotFound, s.kind.Name+".Resume", "", "cell %s came without its interpreter", id)
	}
	before, _ := s.counted()
	p, err := g.Reattach(context.Background(), s.interpreter, [3]*os.File{nil, stdio[1], stdio[2]}, control)
	if err != nil {
		return err
	}
	i.Process, i.Layer = &process{p, s, before}, s.spec.Layer
	s.in = i
	return nil
}
