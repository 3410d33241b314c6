package engine

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/store"
)

// unreadable is a store that takes nothing while it is on, so that a tree which
// differs from those before can't be recorded.
type unreadable struct {
	store.Store
	on atomic.Bool
}

func (s *unreadable) Put(d cell.Digest, b []byte) error {
	if s.on.Load() {
		return errors.New("the tree can't be read")
	}
	return s.Store.Put(d, b)
}

// A run whose result can't be read ends with that error, in its record and in
// its receipt. It is accepted under no option, and its cell is not lost.
func TestX08UnreadableResult(t *testing.T) {
	for _, x := range []struct {
		name, script string
		ask          func(*api.RunRequest)
		code         int
	}{
		{name: "success", script: "echo 1 > f"},
		{name: "success to be accepted", script: "echo 1 > f", ask: func(r *api.RunRequest) { r.OnSuccess = "accept" }},
		{name: "success to be applied", script: "echo 1 > f", ask: func(r *api.RunRequest) { r.OnSuccess = "apply" }},
		{name: "failure", script: "echo 1 > f; exit 3", code: 3},
	} {
		t.Run(x.name, func(t *testing.T) {
			objects := &unreadable{}
			b := newBedWith(t, func(s store.Store) store.Store { objects.Store = s; return objects }, "f: 0")
			b.run("w", "true")
			objects.on.Store(true)
			req := b.request("w", x.script)
			if x.ask != nil {
				x.ask(&req)
			}
			r := b.do(req)
			if r.Error == nil || r.ExitCode == nil || *r.ExitCode != x.code || r.Phase != string(cell.Ended) || r.Verdict != string(cell.Pending) || r.After != nil {
				t.Fatalf("the run ended as %+v", r)
			}
			entry, err := b.ledger.Find(r.Receipt)
			b.must(err)
			p, err := readRunPredicate(entry)
			b.must(err)
			if p.Error == nil || p.After != nil || p.Verdict.Verdict != string(cell.Pending) {
				t.Errorf("the receipt says %+v", p)
			}
			for _, a := range []api.AcceptRequest{{}, {Apply: true}, {Force: true, Reason: "all the same"}, {Apply: true, Force: true, Reason: "all the same"}} {
				_, err := b.Accept(b.ctx, cell.RunID(r.ID), a)
				b.wantKind("accept", err, cell.Conflict, "could not be finished", "can't be read")
			}
			_, err = b.Diff(b.ctx, DiffRequest{Run: cell.RunID(r.ID)})
			b.wantKind("diff", err, cell.Conflict, "could not be finished")
			if text, err := os.ReadFile(filepath.Join(b.src, "f")); err != nil || string(text) != "0" {
				t.Errorf("the source has %q, %v", text, err)
			}
			_, err = b.Restore(b.ctx, b.id("w"), api.RestoreRequest{Number: 1})
			b.must(err)
			objects.on.Store(false)
			b.has("w", "f: 0")
			b.run("w", "echo 2 > f")
			b.has("w", "f: 2")
			b.verified()
		})
	}
}
