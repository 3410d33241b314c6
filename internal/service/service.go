// Package service is a manager of services: programs of images that run beside a cell, a database for example, each in a
// cell of its own. The cell reaches them by name, through its gateway.
//
// What becomes of services follows from what becomes of their cell. They are started before anything is in it, stopped
// some time after it came to rest, and removed after it was. Nothing has to be told of that: whatever changed the cell, its
// services are looked at (Follow) and brought to where they belong; that is also how the next daemon goes on.
//
// Lock order: the lock of the cell, if the caller has it, then that of its services here (turns), then the locks of their
// cells.
package service

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/reexec"
	"github.com/pando-dev/pando/internal/state"
)

// Config has the parts that a Manager needs of others.
type Config struct {
	Records    Records
	Cells      Cells
	Log        *slog.Logger
	Background func(work func(ctx context.Context)) // starts work that outlives its request
	Linger     time.Duration                        // how long services run on when their cell has come to rest
	Ready      time.Duration                        // how long one may take to listen
	Grace      time.Duration                        // how long one may take to end when it is asked to
}

// Records are those of cells.
type Records interface {
	Cell(id cell.ID) (state.Cell, error)
}

// Cells does things with cells, in which services are.
type Cells interface {
	// AtRest reports whether nothing is alive of a cell, or ending.
	AtRest(id cell.ID) bool
	// Ref returns the instance of a cell, nil if it has none, and keeps it until release is called.
	Ref(id cell.ID) (inst backend.Instance, release func())
	// Running reports whether a service's program runs, and Launch starts it, with its cell.
	Running(id cell.ID) bool
	Launch(ctx context.Context, c *state.Cell) error
	// Ready asks a service whether it can be used, once it listens on ports. why is what it said if not; it fails where
	// asking again is in vain.
	Ready(ctx context.Context, c *state.Cell, ports []cell.Listening) (ready bool, why string, err error)
	// Said is the end of what the program wrote since it was last started.
	Said(id cell.ID) string
	// Ask asks the program to end; ended is closed when it has, or runs no more.
	Ask(ctx context.Context, id cell.ID, signal string) (ended <-chan struct{}, err error)
	// Pause has all that runs in a cell stand still, and Resume has it go on.
	Pause(ctx context.Context, id cell.ID) error
	Resume(ctx context.Context, id cell.ID) error
	// Stop ends all that runs in a cell, and Remove removes it.
	Stop(ctx context.Context, id cell.ID) error
	Remove(ctx context.Context, id cell.ID) error
}

// Manager is the manager of services. It is safe for concurrent use.
type Manager struct {
	cfg   Config
	turns state.CellLocks // of what is done with the services of a cell, by its id

	mu   sync.Mutex
	used map[cell.ID]int64 // counts how often services of a cell were wanted
}

// New returns a manager.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, used: map[cell.ID]int64{}}
}

// want notes that the services of a cell are wanted, and wanted returns a number that is another one then.
func (m *Manager) want(id cell.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used[id]++
}

func (m *Manager) wanted(id cell.ID) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used[id]
}

// Start has the services of a cell run, and waits until they are ready.
func (m *Manager) Start(ctx context.Context, c *state.Cell) error {
	if len(c.Services) == 0 {
		return nil
	}
	owner := m.owner(c)
	m.want(owner)
	release, err := m.turns.Acquire(ctx, owner, "its services", nil)
	if err != nil {
		return err
	}
	defer release()
	var all errgroup.Group
	for _, s := range c.Services {
		all.Go(func() error { return m.start(ctx, &s) })
	}
	return all.Wait()
}

// Within does something with the services of a cell, which are neither started nor ended meanwhile.
func (m *Manager) Within(ctx context.Context, c *state.Cell, do func() error) error {
	if len(c.Services) == 0 {
		return do()
	}
	release, err := m.turns.Acquire(ctx, m.owner(c), "its services", nil)
	if err != nil {
		return err
	}
	defer release()
	return do()
}

// owner is the cell that the services of c belong to: another one, if c is a copy for a check.
func (m *Manager) owner(c *state.Cell) cell.ID {
	if s, err := m.cfg.Records.Cell(c.Services[0].Cell); err == nil && s.Serves != nil {
		return s.Serves.Of
	}
	return c.ID
}

func (m *Manager) start(ctx context.Context, s *state.Service) error {
	c, err := m.cfg.Records.Cell(s.Cell)
	if err == nil && (c.State == cell.Removed || c.Serves == nil) {
		err = cell.Errorf(cell.NotFound, "service.Start", "", "cell %s was removed", c.Title())
	}
	launched := false
	if err == nil {
		launched, err = m.launch(ctx, &c)
	}
	if err == nil && !launched && c.State == cell.Paused {
		err = m.cfg.Cells.Resume(ctx, c.ID)
	}
	if err != nil {
		return m.cannotStart(ctx, s.Name, err)
	}
	return m.await(ctx, &c, launched)
}

// launch starts a service that does not run.
func (m *Manager) launch(ctx context.Context, c *state.Cell) (did bool, err error) {
	if m.cfg.Cells.Running(c.ID) {
		return false, nil
	}
	return true, m.cfg.Cells.Launch(ctx, c)
}

func (m *Manager) cannotStart(ctx context.Context, name string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return cell.Errorf(cell.KindOf(err), "service.Start", cell.HintOf(err), "cannot start service %s: %w", name, err)
}

// readyTick is how often a service is looked at that does not listen yet, askTick how often one is asked whether it can
// be used.
const (
	readyTick = 20 * time.Millisecond
	askTick   = 100 * time.Millisecond
)

// await waits until a service can be used. One that was not launched for it may just be ending: it is then.
func (m *Manager) await(ctx context.Context, c *state.Cell, launched bool) error {
	const opName = "service.Start"
	hint := "pando run --image " + c.Image + " -- " + c.Serves.Command[0] + " … starts it alone, and shows all that it says"
	wait, cancel := context.WithTimeout(ctx, m.cfg.Ready)
	defer cancel()
	for {
		if !m.cfg.Cells.Running(c.ID) {
			if launched {
				return cell.Errorf(cell.Unavailable, opName, hint, "service %s has ended before it was ready%s", c.Serves.Name, said(m.cfg.Cells.Said(c.ID)))
			}
			did, err := m.launch(ctx, c)
			if err != nil {
				return m.cannotStart(ctx, c.Serves.Name, err)
			}
			launched = did
		}
		tick, missing := readyTick, "does not listen on "+portsText(c.Serves.Ports)
		if ports := m.listens(wait, c); ports != nil {
			ready, why, err := m.cfg.Cells.Ready(wait, c, ports)
			if err != nil {
				return m.cannotStart(ctx, c.Serves.Name, err)
			}
			if ready {
				return nil
			}
			tick, missing = askTick, "is not ready"
			if why != "" {
				missing += " (" + why + ")"
			}
		}
		select {
		case <-time.After(tick):
		case <-wait.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return cell.Errorf(cell.Unavailable, opName, hint, "service %s %s after %s%s", c.Serves.Name, missing, m.cfg.Ready, said(m.cfg.Cells.Said(c.ID)))
		}
	}
}

func said(text string) string {
	if text == "" {
		return ""
	}
	return ":\n" + text
}

func portsText(ports []int) string {
	if len(ports) == 0 {
		return "any port"
	}
	var words []string
	for _, p := range ports {
		words = append(words, strconv.Itoa(p))
	}
	if len(words) == 1 {
		return "port " + words[0]
	}
	return "one of the ports " + strings.Join(words, ", ")
}

// listens are the ports on which a service listens, nil if none of its own is among them: images name more than are used.
func (m *Manager) listens(ctx context.Context, c *state.Cell) []cell.Listening {
	inst, release := m.cfg.Cells.Ref(c.ID)
	if inst == nil {
		return nil
	}
	defer release()
	list, err := inst.Ports(ctx)
	if err != nil || !slices.ContainsFunc(list, func(l cell.Listening) bool {
		return len(c.Serves.Ports) == 0 || slices.Contains(c.Serves.Ports, l.Port)
	}) {
		return nil
	}
	return list
}

// Connect has the gateway of a cell connect to its services, which run.
func (m *Manager) Connect(ctx context.Context, c *state.Cell, inst backend.Instance) error {
	for _, s := range c.Services {
		if err := m.connect(ctx, &s, inst); err != nil {
			return cell.Errorf(cell.KindOf(err), "service.Connect", cell.HintOf(err), "cannot connect cell %s to service %s: %w", c.Title(), s.Name, err)
		}
	}
	return nil
}

func (m *Manager) connect(ctx context.Context, s *state.Service, inst backend.Instance) error {
	to, release := m.cfg.Cells.Ref(s.Cell)
	if to == nil {
		return cell.Errorf(cell.Unavailable, "service.Connect", "try again", "it has ended")
	}
	defer release()
	here, there, err := reexec.Pair()
	if err != nil {
		return err
	}
	defer here.Close()
	defer there.Close()
	if err := to.ServeLink(ctx, there); err != nil {
		return err
	}
	return inst.TakeLink(ctx, s.Name, here)
}

// Follow brings the services of a cell to where the cell is: paused, removed, or at rest and not wanted for a while. It is for
// whatever changes that, returns at once, and does nothing where nothing has to be done.
func (m *Manager) Follow(c *state.Cell) {
	if len(c.Services) == 0 || m.owner(c) != c.ID { // those of a copy for a check are not its own
		return
	}
	id, list, gone, at := c.ID, slices.Clone(c.Services), c.State == cell.Removed, m.wanted(c.ID)
	m.cfg.Background(func(ctx context.Context) {
		if !gone {
			m.pause(ctx, id)
			select {
			case <-time.After(m.cfg.Linger):
			case <-ctx.Done():
				return
			}
			if m.wanted(id) != at { // whatever takes the cell down again comes here again
				return
			}
		}
		release, err := m.turns.Acquire(ctx, id, "its services", nil)
		if err != nil {
			return
		}
		defer release()
		if !gone && (m.wanted(id) != at || !m.cfg.Cells.AtRest(id)) {
			return
		}
		if gone {
			m.mu.Lock()
			delete(m.used, id)
			m.mu.Unlock()
		}
		if err := m.end(ctx, list, gone); err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn("cannot end the services of a cell", "cell", id, "error", err)
		}
	})
}

// pause pauses the services of a paused cell, and has those of one that is not go on.
func (m *Manager) pause(ctx context.Context, id cell.ID) {
	release, err := m.turns.Acquire(ctx, id, "its services", nil)
	if err != nil {
		return
	}
	defer release()
	c, err := m.cfg.Records.Cell(id)
	if err != nil {
		return
	}
	for _, s := range c.Services {
		of, err := m.cfg.Records.Cell(s.Cell)
		switch {
		case err != nil || m.cfg.Cells.AtRest(s.Cell):
			continue
		case c.State == cell.Paused && of.State == cell.Running:
			err = m.cfg.Cells.Pause(ctx, s.Cell)
		case c.State == cell.Running && of.State == cell.Paused:
			err = m.cfg.Cells.Resume(ctx, s.Cell)
		}
		if err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn("cannot pause a service with its cell, or have it go on", "cell", id, "service", s.Name, "error", err)
		}
	}
}

// Stop ends the services of a cell now.
func (m *Manager) Stop(ctx context.Context, c *state.Cell) error {
	if len(c.Services) == 0 {
		return nil
	}
	release, err := m.turns.Acquire(ctx, c.ID, "its services", nil)
	if err != nil {
		return err
	}
	defer release()
	return m.end(ctx, c.Services, false)
}

// end ends services, and removes them if they are gone with their cell.
func (m *Manager) end(ctx context.Context, list []state.Service, gone bool) error {
	var all errgroup.Group
	for _, s := range list {
		all.Go(func() error {
			c, err := m.cfg.Records.Cell(s.Cell)
			if cell.KindOf(err) == cell.NotFound || err == nil && c.State == cell.Removed {
				return nil
			}
			if err != nil {
				return err
			}
			if gone {
				return m.cfg.Cells.Remove(ctx, s.Cell)
			}
			if m.cfg.Cells.AtRest(s.Cell) {
				return nil
			}
			return m.stop(ctx, &c)
		})
	}
	return all.Wait()
}

// stop asks a service to end, and ends it.
func (m *Manager) stop(ctx context.Context, c *state.Cell) error {
	if err := m.Ask(ctx, c); err != nil {
		return err
	}
	return m.cfg.Cells.Stop(ctx, c.ID)
}

// Ask asks the service in a cell to end, and waits for that as long as it may take. In other cells it does nothing.
func (m *Manager) Ask(ctx context.Context, c *state.Cell) error {
	if c.Serves == nil || !m.cfg.Cells.Running(c.ID) {
		return nil
	}
	signal := "SIGTERM"
	if c.Serves.Signal != "" {
		signal = c.Serves.Signal
	}
	if c.State == cell.Paused {
		if err := m.cfg.Cells.Resume(ctx, c.ID); err != nil {
			return err
		}
	}
	if ended, err := m.cfg.Cells.Ask(ctx, c.ID, signal); err == nil {
		select {
		case <-ended:
		case <-time.After(m.cfg.Grace):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
