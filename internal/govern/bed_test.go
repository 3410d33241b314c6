package govern

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// bed is a Manager with a registry and a store of credentials in a home of its own.
type bed struct {
	testing.TB
	*Manager
	ctx  context.Context
	home paths.Home
	reg  *state.Registry

	redactor receipt.Redactor
	alive    map[cell.ID]backend.Instance
	silent   map[cell.ID]int // how often unreached cells were asked for
	reported []string        // to clients of runs
}

func newBed(t testing.TB) *bed {
	t.Helper()
	dir := t.TempDir()
	b := &bed{TB: t, ctx: t.Context(), alive: map[cell.ID]backend.Instance{}, silent: map[cell.ID]int{}, home: paths.Home{State: filepath.Join(dir, "state"), Cache: filepath.Join(dir, "cache"), Run: filepath.Join(dir, "run")}}
	b.must(b.home.Make())
	b.open()
	t.Cleanup(b.close)
	return b
}

func (b *bed) open() {
	b.Helper()
	var err error
	b.reg, err = state.Open(durable.Disk(b.home.State), "registry.log", b.home)
	b.must(err)
	credentials, err := credential.Open(credential.Config{Dir: durable.Disk(b.home.Credentials()), Keys: durable.Disk(b.home.Keys()), Open: os.Open})
	b.must(err)
	b.Manager = New(Config{
		Records: b.reg, Log: slog.New(slog.NewTextHandler(b.Output(), nil)), Home: b.home, Credentials: credentials,
		Host: policy.Host{CPUs: 2, Memory: 4 << 30}, Life: b.ctx, Redactor: &b.redactor,
		Instances: func() Instances { return instances{b} }, Usable: b.reg.Cell,
		Lock: func(context.Context, cell.ID, string) (func(), error) { return func() {}, nil }, RunIn: func(cell.ID) cell.RunID { return "" },
		Background: func(f func(context.Context)) { go f(b.ctx) },
		Alive:      func() []cell.ID { return slices.Sorted(maps.Keys(b.alive)) },
		Pause: func(_ context.Context, id cell.ID) error {
			return b.reg.Commit(state.StateChange{Cell: id, From: cell.Running, To: cell.Paused})
		},
		Resume: func(_ context.Context, id cell.ID) error {
			return b.reg.Commit(state.StateChange{Cell: id, From: cell.Paused, To: cell.Running})
		},
		Notice: func(context.Context, *state.Approval) {},
		Report: func(_ cell.ID, p api.Progress) { b.reported = append(b.reported, p.Note) }, Spec: func(c *state.Cell, mounts []cell.Mount) cell.Spec {
			return cell.Spec{ID: c.ID, Private: filepath.Join(b.home.Cells(), string(c.ID)), Mounts: mounts}
		},
	})
}

func (b *bed) close() {
	b.Helper()
	b.must(b.reg.Close())
}

// reopen ends the daemon and starts the next.
func (b *bed) reopen() {
	b.Helper()
	b.close()
	b.open()
}

func (b *bed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// wantKind asserts the kind of an error, and that its text has every word.
func (b *bed) wantKind(what string, err error, want cell.Kind, words ...string) {
	b.Helper()
	if cell.KindOf(err) != want {
		b.Errorf("%s: %v (kind %q), want kind %q", what, err, cell.KindOf(err), want)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			b.Errorf("%s: %v; want %q in it", what, err, w)
		}
	}
}

// cell is a new cell at rest, forked from another unless that is nil.
func (b *bed) cell(name string, from *state.Cell) *state.Cell {
	b.Helper()
	c := &state.Cell{ID: cell.NewID(), Name: name, State: cell.Idle, Created: time.Now().UTC()}
	if from != nil {
		c.Parent = &state.Origin{Cell: from.ID}
	}
	b.must(b.reg.Commit(c))
	return c
}

// The bed is a caller that sees everything, and writes ids and names.

func (b *bed) SelectRun(sel, _ string) (cell.RunID, error) {
	r, err := b.reg.Run(cell.RunID(sel))
	return r.RunID(), err
}

func (b *bed) SelectCell(sel, _ string) (cell.ID, error) {
	if c, ok := b.reg.Named(sel); ok {
		return c.ID, nil
	}
	c, err := b.reg.Cell(cell.ID(sel))
	return c.ID, err
}

// instances are those of cells that are alive on the bed.
type instances struct{ b *bed }

func (m instances) Instance(id cell.ID) backend.Instance { return m.b.alive[id] }

func (m instances) AtRest(id cell.ID) bool { return m.b.alive[id] == nil }

func (m instances) RefOf(c *state.Cell) (backend.Instance, func(), error) {
	if n, ok := m.b.silent[c.ID]; ok {
		m.b.silent[c.ID] = n + 1
		return nil, func() {}, cell.Errorf(cell.Unsupported, "bed.RefOf", "", "its keeper speaks another protocol")
	}
	return m.b.alive[c.ID], func() {}, nil
}
