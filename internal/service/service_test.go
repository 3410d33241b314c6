package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// world is the records and the cells of a test.
type world struct {
	*testing.T
	*Manager
	end func()

	mu             sync.Mutex
	cells          map[cell.ID]state.Cell
	runs           map[cell.ID]chan struct{} // programs, until they end
	listens        map[cell.ID][]cell.Listening
	deaf           bool  // programs do not end when they are asked to
	fails          error // of a launch
	asks, recovers int   // how often it was asked whether it can be used, and says no at first
	did            []string
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, cells: map[cell.ID]state.Cell{}, runs: map[cell.ID]chan struct{}{}, listens: map[cell.ID][]cell.Listening{}}
	life, end := context.WithCancel(context.Background())
	var work sync.WaitGroup
	w.end = func() { end(); work.Wait() }
	w.Manager = New(Config{
		Records: w, Cells: w, Log: slog.New(slog.DiscardHandler), Background: func(f func(context.Context)) { work.Go(func() { f(life) }) },
		Linger: 30 * time.Second, Ready: time.Minute, Grace: 10 * time.Second,
	})
	w.cells["c-web"] = state.Cell{ID: "c-web", Name: "web", State: cell.Idle, Services: []state.Service{{Name: "db", Cell: "c-db"}}}
	w.cells["c-db"] = state.Cell{ID: "c-db", Name: "web.db", State: cell.Idle, Image: "oci:db", Serves: &state.Serves{Of: "c-web", Name: "db", Command: []string{"serve"}, Ports: []int{5432}}}
	w.listens["c-db"] = []cell.Listening{{Port: 5432}}
	return w
}

func (w *world) note(format string, args ...any) { w.did = append(w.did, fmt.Sprintf(format, args...)) }

// since returns what was done since it was called last.
func (w *world) since() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	did := strings.Join(w.did, ", ")
	w.did = nil
	return did
}

func (w *world) wants(did string) {
	w.Helper()
	synctest.Wait()
	if got := w.since(); got != did {
		w.Errorf("it did %q, want %q", got, did)
	}
}

func (w *world) set(id cell.ID, to cell.State) state.Cell {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.cells[id]
	c.State = to
	w.cells[id] = c
	return c
}

func (w *world) web() *state.Cell {
	c, _ := w.Cell("c-web")
	return &c
}

func (w *world) Cell(id cell.ID) (state.Cell, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, ok := w.cells[id]
	if !ok {
		return c, state.NoCell(id)
	}
	return c, nil
}

func (w *world) AtRest(id cell.ID) bool {
	c, _ := w.Cell(id)
	return c.State != cell.Running && c.State != cell.Paused
}

func (w *world) Ref(id cell.ID) (backend.Instance, func()) {
	if w.AtRest(id) {
		return nil, func() {}
	}
	return &instance{w: w, id: id}, func() {}
}

func (w *world) Running(id cell.ID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[id] != nil
}

func (w *world) Launch(_ context.Context, c *state.Cell) error {
	if w.fails != nil {
		return w.fails
	}
	w.set(c.ID, cell.Running)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs[c.ID] = make(chan struct{})
	w.note("launch %s", c.ID)
	return nil
}

func (w *world) Ready(context.Context, *state.Cell, []cell.Listening) (bool, string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.recovers < 0 {
		return false, "", errors.New("no such command")
	}
	if w.asks++; w.asks <= w.recovers {
		return false, "it recovers", nil
	}
	return true, "", nil
}

// over ends a program.
func (w *world) over(id cell.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.runs[id] != nil {
		close(w.runs[id])
		delete(w.runs, id)
	}
}

func (w *world) Said(cell.ID) string { return "its last words" }

func (w *world) Ask(_ context.Context, id cell.ID, signal string) (<-chan struct{}, error) {
	w.mu.Lock()
	ended := w.runs[id]
	w.note("ask %s %s", id, signal)
	w.mu.Unlock()
	if ended == nil {
		return nil, errors.New("it does not run")
	}
	if !w.deaf {
		w.over(id)
	}
	return ended, nil
}

func (w *world) do(what string, id cell.ID, to cell.State) error {
	w.mu.Lock()
	w.note("%s %s", what, id)
	w.mu.Unlock()
	if to == cell.Idle || to == cell.Removed {
		w.over(id)
	}
	w.set(id, to)
	return nil
}

func (w *world) Pause(_ context.Context, id cell.ID) error  { return w.do("pause", id, cell.Paused) }
func (w *world) Resume(_ context.Context, id cell.ID) error { return w.do("resume", id, cell.Running) }
func (w *world) Stop(_ context.Context, id cell.ID) error   { return w.do("stop", id, cell.Idle) }
func (w *world) Remove(_ context.Context, id cell.ID) error { return w.do("remove", id, cell.Removed) }

// instance is one of a cell; what services don't need of it panics.
type instance struct {
	backend.Instance
	w  *world
	id cell.ID
}

func (i *instance) Ports(context.Context) ([]cell.Listening, error) {
	i.w.mu.Lock()
	defer i.w.mu.Unlock()
	return slices.Clone(i.w.listens[i.id]), nil
}

func (i *instance) ServeLink(context.Context, *os.File) error {
	i.w.note("serve %s", i.id)
	return nil
}

func (i *instance) TakeLink(_ context.Context, name string, _ *os.File) error {
	i.w.note("link %s to %s", i.id, name)
	return nil
}

// Services are started once, are connected, run on for a while when their cell is at rest, and end then.
func TestServicesFollowTheirCell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		start := func() {
			t.Helper()
			if err := w.Start(t.Context(), w.web()); err != nil {
				t.Fatal(err)
			}
			w.set("c-web", cell.Running)
			if err := w.Connect(t.Context(), w.web(), &instance{w: w, id: "c-web"}); err != nil {
				t.Fatal(err)
			}
		}
		rests := func() {
			w.set("c-web", cell.Idle)
			w.Follow(w.web())
		}
		start()
		w.wants("launch c-db, serve c-db, link c-web to db")
		rests()
		time.Sleep(29 * time.Second)
		w.wants("")
		start() // soon again: it runs
		w.wants("serve c-db, link c-web to db")
		time.Sleep(2 * time.Second) // the first rest's time is over
		w.wants("")
		rests()
		time.Sleep(31 * time.Second)
		w.wants("ask c-db SIGTERM, stop c-db")
		w.deaf = true
		start()
		w.since()
		rests()
		time.Sleep(39 * time.Second)
		w.wants("ask c-db SIGTERM")
		time.Sleep(2 * time.Second)
		w.wants("stop c-db")
		start()
		w.since()
		w.set("c-web", cell.Removed)
		w.Follow(w.web())
		w.wants("remove c-db")
	})
}

// They stand still with their cell, and are ended while they do.
func TestServicesArePaused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		if err := w.Start(t.Context(), w.web()); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			to  cell.State
			did string
		}{{cell.Running, "launch c-db"}, {cell.Paused, "pause c-db"}, {cell.Paused, ""}, {cell.Running, "resume c-db"}, {cell.Paused, "pause c-db"}} {
			w.set("c-web", step.to)
			w.Follow(w.web())
			w.wants(step.did)
		}
		w.set("c-web", cell.Idle)
		if err := w.Manager.Stop(t.Context(), w.web()); err != nil {
			t.Fatal(err)
		}
		w.wants("resume c-db, ask c-db SIGTERM, stop c-db")
	})
}

// A copy of the cell, for a check, has its services, which do not end meanwhile.
func TestServicesOfACheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		if err := w.Start(t.Context(), w.web()); err != nil {
			t.Fatal(err)
		}
		w.Follow(w.web()) // it is at rest
		time.Sleep(time.Second)
		copied := w.web()
		copied.ID = "c-copy"
		if err := w.Start(t.Context(), copied); err != nil {
			t.Fatal(err)
		}
		w.wants("launch c-db")
		time.Sleep(time.Minute)
		w.wants("")
		w.Follow(w.web())
		time.Sleep(time.Minute)
		w.wants("ask c-db SIGTERM, stop c-db")
	})
}

// What keeps a service from being ready is said.
func TestServicesThatDoNotStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		to   func(w *world)
		ends time.Duration // after which the program does; 0: it goes on
		want string
	}{
		"launch":  {func(w *world) { w.fails = cell.Errorf(cell.NotFound, "", "", "no such program") }, 0, "cannot start service db: no such program"},
		"removed": {func(w *world) { w.set("c-db", cell.Removed) }, 0, "cannot start service db: cell web.db was removed"},
		"silent":  {func(w *world) { w.listens["c-db"] = []cell.Listening{{Port: 1}} }, 0, "service db does not listen on port 5432 after 1m0s:\nits last words"},
		"unready": {func(w *world) { w.recovers = 1 << 20 }, 0, "service db is not ready (it recovers) after 1m0s:\nits last words"},
		"unasked": {func(w *world) { w.recovers = -1 }, 0, "cannot start service db: no such command"},
		"ended":   {func(w *world) { w.listens["c-db"] = nil }, time.Second, "service db has ended before it was ready:\nits last words"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.end()
				c.to(w)
				if c.ends > 0 {
					time.AfterFunc(c.ends, func() { w.over("c-db") })
				}
				if err := w.Start(t.Context(), w.web()); err == nil || err.Error() != c.want {
					t.Errorf("%v, want %q", err, c.want)
				}
			})
		})
	}
}

// One that can't be used yet is waited for, and one that has just ended is started.
func TestServicesThatComeBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		w.recovers = 3
		began := time.Now()
		if err := w.Start(t.Context(), w.web()); err != nil || time.Since(began) != 3*askTick {
			t.Errorf("%v, after %s", err, time.Since(began))
		}
		w.wants("launch c-db")
		w.set("c-db", cell.Idle)                               // its cell was brought to rest,
		time.AfterFunc(time.Second, func() { w.over("c-db") }) // and that it has ended is told late
		if err := w.Start(t.Context(), w.web()); err != nil {
			t.Fatal(err)
		}
		w.wants("launch c-db")
	})
}
