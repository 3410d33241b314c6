package evidence

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/policy/decide"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// bed is a Manager with a registry and a ledger in a home of its own.
type bed struct {
	testing.TB
	*Manager
	ctx    context.Context
	home   paths.Home
	reg    *state.Registry
	ledger *receipt.Ledger
	ends   map[cell.RunID]chan struct{} // of runs under way
	work   sync.WaitGroup
}

func newBed(t testing.TB) *bed {
	t.Helper()
	dir := t.TempDir()
	b := &bed{TB: t, ctx: t.Context(), ends: map[cell.RunID]chan struct{}{},
		home: paths.Home{State: filepath.Join(dir, "state"), Cache: filepath.Join(dir, "cache"), Run: filepath.Join(dir, "run")}}
	b.must(b.home.Make())
	b.open()
	t.Cleanup(b.close)
	return b
}

func (b *bed) open() {
	b.Helper()
	key, err := receipt.OpenKey(durable.Disk(b.home.Keys()))
	b.must(err)
	b.ledger, err = receipt.OpenLedger(durable.Disk(b.home.Ledger()), key)
	b.must(err)
	b.reg, err = state.Open(durable.Disk(b.home.State), "registry.log", b.home)
	b.must(err)
	b.Manager = New(Config{
		Ledger: b.ledger, Records: b.reg, Home: b.home, Log: slog.New(slog.NewTextHandler(b.Output(), nil)), Version: "test", User: cell.User{Name: "u"},
		Ending: func(id cell.RunID) <-chan struct{} {
			if c := b.ends[id]; c != nil {
				return c
			}
			return nil
		},
		Background: func(f func(context.Context)) { b.work.Go(func() { f(b.ctx) }) },
	})
}

func (b *bed) close() {
	b.Helper()
	b.work.Wait()
	b.must(b.reg.Close())
	b.must(b.ledger.Close())
}

func (b *bed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// interrupted leaves an operation in the journal as a daemon does that dies under it, and has the
// next daemon finish it.
func (b *bed) interrupted(rec operation.Redo) {
	b.Helper()
	b.must(b.reg.Write(rec))
	b.close()
	b.open()
	for _, o := range b.reg.OpenOps() {
		b.must(b.Resume(b.ctx, o))
	}
	if open := b.reg.OpenOps(); len(open) > 0 {
		b.Errorf("operations are open still: %+v", open)
	}
}

// all is a caller that sees everything and writes ids.
func (b *bed) all() Reader {
	return Reader{
		SelectRun:  func(sel, _ string) (cell.RunID, error) { r, err := b.reg.Run(cell.RunID(sel)); return r.RunID(), err },
		SelectCell: func(sel, _ string) (cell.ID, error) { c, err := b.reg.Cell(cell.ID(sel)); return c.ID, err },
	}
}

// verified asserts that every receipt there is can be verified.
func (b *bed) verified() {
	b.Helper()
	v, err := b.Verify(b.all(), "all", "")
	if err != nil || !v.OK {
		b.Errorf("verify: %+v, %v", v, err)
	}
}

// cell is a new cell.
func (b *bed) cell() state.Cell {
	b.Helper()
	eff := policy.Defaults(policy.Host{CPUs: 2, Memory: 4 << 30})
	c := state.Cell{ID: cell.NewID(), Name: "w", State: cell.Idle, Source: "/src", Backend: "namespace", Image: "host", Created: time.Now().UTC()}
	c.Setup.Policy, c.Setup.PolicyText = eff.Digest(), string(eff.Canonical())
	b.must(b.reg.Commit(&c))
	return c
}

// begun is a run of a cell while its command runs, with its manifest and an empty event stream.
func (b *bed) begun(c *state.Cell) (state.Run, *stream) {
	b.Helper()
	now := time.Now().UTC()
	r := state.Run{ID: string(cell.NewRunID()), Cell: string(c.ID), CellName: c.Name, Command: []string{"sh", "-c", "exit 3"}, Source: c.Source, Backend: c.Backend, Isolation: api.IsolationOf(c.Backend),
		Image: c.Image, Phase: cell.Executing, Created: now, Started: now, Policy: c.Setup.Policy.String(), LeftOut: []state.LeftOut{}, Downgrades: []string{},
		Before: &state.Point{Checkpoint: "k-1", Number: 1, TreeDigest: cell.Sum([]byte("before")).String()}}
	b.must(b.reg.Commit(&r))
	r, err := b.reg.Run(r.RunID())
	b.must(err)
	b.must(os.MkdirAll(r.Folder, 0o700))
	eff, err := decide.Parse([]byte(c.Setup.PolicyText))
	b.must(err)
	b.must(b.WriteManifest(&r, &policy.Result{Effective: eff}))
	f, err := CreateRecord(r.Folder, eventsFile)
	b.must(err)
	b.Cleanup(func() { f.Close() })
	return r, &stream{b, receipt.NewEventWriter(f, receipt.StartChain(r.RunID()))}
}

// stream is the event stream of a run.
type stream struct {
	b *bed
	w *receipt.EventWriter
}

func (s *stream) emit(kind string, fields any) {
	s.b.Helper()
	s.b.must(s.w.Emit(kind, fields))
}

// begin and end are what a keeper writes of every command.
func (s *stream) begin() {
	s.emit("process.start", startFields{Args: 3})
	s.emit("process.running", runningFields{PID: 42})
}

func (s *stream) end() {
	s.emit("process.exit", exitFields{Code: 3, Stdout: cell.StreamStatus{Bytes: 3, Kept: 3}})
}

// ended seals and records a run as one that has failed and waits for a verdict.
func (b *bed) ended(r *state.Run, c *state.Cell) {
	b.Helper()
	code := 3
	r.ExitCode, r.Ended, r.Phase, r.Verdict, r.By = &code, time.Now().UTC(), cell.Ended, cell.Pending, "pando"
	r.After = &state.Point{Checkpoint: "k-2", Number: 2, TreeDigest: cell.Sum([]byte("after")).String()}
	b.must(os.WriteFile(filepath.Join(r.Folder, "stdout"), []byte("hi\n"), 0o600))
	b.must(b.SealRun(b.ctx, r, c))
	b.must(b.reg.Commit(r))
}

// run is a run that has ended.
func (b *bed) run() state.Run {
	b.Helper()
	c := b.cell()
	r, s := b.begun(&c)
	s.begin()
	s.end()
	b.ended(&r, &c)
	return r
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
