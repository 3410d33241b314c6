package govern

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

func parseCeilings(t *testing.T, text string) *ceiling.Set {
	t.Helper()
	s, err := ceiling.Parse("c.yaml", []byte(text), policy.Host{Memory: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A request waits as long as the queue says, and is refused then.
func TestX56QueueTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.must(b.reg.Commit(&state.Cell{ID: "c-1", State: cell.Idle}, &state.Lease{Cell: "c-1", Door: ceiling.E2B}))
		b.SetCeilings(parseCeilings(t, `{version: 1, queue: {wait: 7s}, doors: {e2b: {cells: 1}}}`))
		began := time.Now()
		by := ceiling.Caller{Door: ceiling.E2B}
		_, _, err := b.Admit(t.Context(), state.ClaimRequest{Caller: by, N: 1, Counts: b.Bounds(by).Counts})
		if b.wantKind("a cell too many", err, cell.Limited, "door e2b"); time.Since(began) != 7*time.Second {
			t.Errorf("it waited %s", time.Since(began))
		}
		if list, _ := b.Ceilings(by, false); len(list) != 1 || list[0].Refused != 1 || list[0].Waited != 1 || list[0].Waiting != 0 {
			t.Errorf("%+v", list)
		}
	})
}

// A caller of a label learns how many of its own requests wait, and not how many of others.
func TestX56OthersThatWait(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.SetCeilings(parseCeilings(t, `{version: 1, labels: {team=a: {cells: 1}, team=b: {cells: 1}}}`))
	for _, of := range []string{"team=b", "team=a", "team=b"} {
		b.queue.waiting = append(b.queue.waiting, &waiter{[]ceiling.Count{{Scope: ceiling.Scope{Kind: "label", Name: of}}}})
	}
	of := ceiling.Caller{Labels: map[string]string{"team": "a"}}
	if list, n := b.Ceilings(of, false); n != 1 || len(list) != 1 || list[0].Waiting != 1 {
		t.Errorf("%d wait for one of team a: %+v", n, list)
	}
	if list, n := b.Ceilings(of, true); n != 3 || len(list) < 2 {
		t.Errorf("%d wait: %+v", n, list)
	}
}
