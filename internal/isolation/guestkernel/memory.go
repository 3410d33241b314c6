package guestkernel

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/guest"
	"github.com/pando-dev/pando/internal/hazard"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/repl"
)

// Prepare implements server.Capturer.
func (d *Driver) Prepare(id cell.ID, files []*os.File, own bool) (*os.File, error) {
	s, err := d.sandbox(id)
	if err != nil {
		return nil, err
	}
	if s.guest() == nil || len(files) != s.kind.Images {
		return nil, nil // Capture returns the reason
	}
	if _, err := s.guest().Draws(context.Background()); err != nil { // so that copies inherit the guest's cache of inspected files
		return nil, err
	}
	base, err := s.kernel.Prepare(files, own)
	if err != nil {
		return nil, s.uncaptured(err)
	}
	s.freezing.Lock()
	defer s.freezing.Unlock()
	s.prepared = time.Now()
	return base, nil
}

// uncaptured wraps the error of a capture, or returns nil.
func (s *sandbox) uncaptured(err error) error {
	op := s.kind.Name + ".Capture"
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC):
		return cell.Errorf(cell.Unavailable, op, "free some space (`pando gc` shows what pando can free), then try again", "cannot capture the memory of cell %s: %w", s.id, unix.ENOSPC)
	}
	return cell.Errorf(cell.Unsupported, op, "", "cannot capture the memory of cell %s: %w", s.id, err)
}

// Capture implements server.Capturer.
func (d *Driver) Capture(id cell.ID, files []*os.File) (json.RawMessage, error) {
	s, err := d.sandbox(id)
	if err != nil {
		return nil, err
	}
	s.freezing.Lock()
	defer s.freezing.Unlock()
	op := s.kind.Name + ".Capture"
	if !s.frozen || s.guest() == nil {
		return nil, cell.Errorf(cell.Conflict, op, "", "cannot capture the memory of cell %s: it is not paused", id)
	}
	if len(files) != s.kind.Images {
		return nil, cell.Errorf(cell.Invalid, op, "", "cannot capture the memory of cell %s: there are %d files for it", id, len(files))
	}
	kernel, err := s.kernel.Capture(files)
	if err != nil {
		return nil, s.uncaptured(err)
	}
	return json.Marshal(known{s.token[:], s.procs.Load(), kernel.Like, kernel.Taken})
}

// stop pauses everything in the sandbox: the guest between two frames, then all processes.
func (s *sandbox) stop(g *guest.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), holdGrace)
	defer cancel()
	if err := g.Hold(ctx, s.kind.Introduced); err != nil {
		return err
	}
	err := s.kernel.Pause()
	if err != nil {
		if done, gerr := g.GoOn(ctx); gerr == nil {
			err = errors.Join(err, done())
		}
	}
	return err
}

// holdGrace is the time limit for a guest to reach a frame boundary.
const holdGrace = 10 * time.Second

// goOn ends stop.
func (s *sandbox) goOn(g *guest.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), holdGrace)
	defer cancel()
	done, err := g.GoOn(ctx)
	if err := errors.Join(err, s.kernel.Resume()); err != nil {
		return err
	}
	return done()
}

// Adopt implements server.Adopter.
func (d *Driver) Adopt(id cell.ID, a cell.Adoption, first func() error) (c cell.Certificate, err error) {
	s, err := d.sandbox(id)
	if err != nil {
		return c, err
	}
	g := s.guest()
	if g == nil || !s.copied.CompareAndSwap(true, false) {
		return c, cell.Errorf(cell.Conflict, s.kind.Name+".Adopt", "", "cell %s is no copy that waits for adoption", id)
	}
	if err := s.wake(); err != nil {
		return c, err
	}
	a.Hostname = cmp.Or(a.Hostname, s.spec.Hostname)
	if err := s.identify(a.Hostname); err != nil {
		return c, err
	}
	draws, err := g.Renew(context.Background()) // while no process of it runs
	if err != nil {
		return c, err
	}
	fresh := newToken()
	c = cell.Certificate{Cell: id, At: time.Now().UTC()}
	own := s.adoption(a.Hostname, fresh)
	if first != nil { // before its interpreter receives anything
		own.Still = true
		if c.Hazards, err = g.Adopt(context.Background(), own); err != nil {
			return c, fmt.Errorf("cannot adopt cell %s: %w", id, err)
		}
		s.token = fresh
		if err := first(); err != nil {
			return c, err
		}
	}
	if draws, err = s.stay(g, draws, first != nil, a.Strict); err != nil {
		return c, err
	}
	if a.Trial && s.in == nil {
		c.Hazards = append(c.Hazards, hazard.Report(draws, a.Kind, nil, "inside")...)
		return c, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), adoptGrace)
	defer cancel()
	// The interpreter gets its message at once, and stays frozen until its guest is adopted.
	var got repl.Adopted
	heard := make(chan error, 1)
	go func() (err error) {
		defer func() { heard <- err }()
		if s.in != nil {
			got, err = s.in.Conn.Adopt(ctx, repl.Adoption{Env: a.Env, UID: -1, GID: -1, Name: a.Hostname})
		}
		return err
	}()
	if first != nil {
		err = g.Still(context.Background(), false)
	} else {
		c.Hazards, err = g.Adopt(context.Background(), own)
	}
	if err != nil {
		cancel()
		<-heard
		return c, fmt.Errorf("cannot adopt cell %s: %w", id, err)
	}
	s.token = fresh
	err = <-heard
	c.Hazards, c.Dropped = append(c.Hazards, got.Hazards...), got.Dropped
	c.Hazards = append(c.Hazards, hazard.Report(draws, a.Kind, got.Hazards, "inside")...)
	return c, err
}

// stay removes processes from copied that the copy's first command has ended. If strict, it
// fails if generators are left; no process of the copy runs by then. An interpreter reports
// later what it renews itself.
func (s *sandbox) stay(g *guest.Client, copied []hazard.Process, commanded, strict bool) ([]hazard.Process, error) {
	for try := 0; ; try++ {
		if commanded {
			now, err := g.Draws(context.Background())
			if err != nil {
				return nil, err
			}
			copied = slices.DeleteFunc(copied, func(p hazard.Process) bool {
				return !slices.ContainsFunc(now, func(q hazard.Process) bool { return q.PID == p.PID })
			})
		}
		if !strict {
			return copied, nil
		}
		alone := slices.DeleteFunc(slices.Clone(copied), func(p hazard.Process) bool { return p.Interpreter })
		held := cell.Certificate{Hazards: hazard.Report(alone, "", nil, "inside")}
		err := cell.Uncertified(held.Inherited())
		if err == nil || !commanded || try == endingTries {
			return copied, err
		}
		time.Sleep(endingPause) // a killed process may be about to end
	}
}

// Number and interval of the retries before a copy is refused.
const (
	endingTries = 20
	endingPause = 50 * time.Millisecond
)

// identify writes the hostname into the cell's files, if it is new.
func (s *sandbox) identify(hostname string) error {
	if hostname == s.named {
		return nil
	}
	paths, err := s.stage.Identify(hostname)
	if err != nil {
		return err
	}
	if s.named != waitingName {
		paths = nil // it was just started and may have cached nothing
	}
	s.named = hostname
	return s.kernel.Refresh(paths...)
}

// Rehearse implements server.Capturer. A copy runs the steps of an adoption, and rests. On an
// emulated processor this translates the code, which is most of an adoption's time. The
// interpreter runs for that if it is the only process. No other process may run without an
// identity.
func (d *Driver) Rehearse(id cell.ID) error {
	s, err := d.sandbox(id)
	if err != nil {
		return err
	}
	g := s.guest()
	if !s.kind.Rehearses || !s.spec.Ahead || !s.copied.Load() || g == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), adoptGrace)
	defer cancel()
	if err := s.identify(waitingName); err != nil {
		return err
	}
	a := s.adoption(waitingName, s.token)
	a.Waits = true
	if _, err := g.Adopt(ctx, a); err != nil {
		return err
	}
	list, err := g.List(ctx)
	if err != nil {
		return err
	}
	if s.in != nil && len(list) == 1 {
		if err := g.Still(ctx, false); err != nil {
			return err
		}
		err := s.in.Conn.Rehearse(ctx)
		if err == nil {
			err = s.rehearseCommand(ctx, g)
		}
		if err = errors.Join(err, g.Still(ctx, true)); err != nil {
			return err
		}
	}
	time.Sleep(putOff)
	return s.rest()
}

// putOff is the time for a copy's kernel to finish deferred work before it rests. It frees the
// processes, files and cgroups of a rehearsal late; otherwise it would do so during the
// adoption.
const putOff = 300 * time.Millisecond

// rehearseCommand runs a shell that does nothing, with all canaries. A cell without a shell
// needs no rehearsal. With denied programs it is skipped: the shell may be one of them, and its
// execution would be counted.
func (s *sandbox) rehearseCommand(ctx context.Context, g *guest.Client) error {
	if slices.ContainsFunc(s.spec.Mounts, func(m cell.Mount) bool { return m.Denies != nil }) {
		return nil
	}
	defer context.AfterFunc(ctx, func() { g.Close() })() // nothing else ends a machine that hangs
	p, err := s.startIn(g, cell.Process{Args: []string{"sh", "-c", ":"}, Path: []string{"/bin/sh"}, Workdir: "/"}, nil, [3]*os.File{}, nil, nil, nil)
	if k := cell.KindOf(err); k == cell.NoSuchBinary || k == cell.NotRunnable {
		return nil
	}
	if err != nil {
		return err
	}
	p.Wait(func() {})
	p.Release()
	return nil
}

// waitingName is the hostname of a cell before its adoption.
const waitingName = "waiting"

// rest makes the kernel of a waiting copy rest.
func (s *sandbox) rest() error {
	s.freezing.Lock()
	defer s.freezing.Unlock()
	if err := s.kernel.Rest(); err != nil {
		return err
	}
	s.resting = true
	return nil
}

// wake ends rest.
func (s *sandbox) wake() error {
	s.freezing.Lock()
	defer s.freezing.Unlock()
	if !s.resting {
		return nil
	}
	s.resting = false
	return s.kernel.Wake()
}

// adoptGrace is the time limit for a copy's interpreter to renew its shared state, including
// the hooks of its code.
const adoptGrace = 60 * time.Second

// disown detaches the processes that the source's keeper had started, except the interpreter:
// this keeper has no clients for them.
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

// Resume implements server.Capturer.
func (d *Driver) Resume(id cell.ID, i *server.Interpreter, stdio [3]*os.File, control *os.File) error {
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
	i.Process, i.Layer = &process{p, s, before, func() {}, func(bool) {}}, s.spec.Layer
	s.in = i
	return nil
}
