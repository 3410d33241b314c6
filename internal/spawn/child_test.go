package spawn

import (
	"context"
	"slices"
	"testing"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// committing is Evidence that says when new cells are recorded.
type committing struct {
	Evidence
	now func()
}

func (c committing) CommitBatch(context.Context, string, *state.Cell, state.Batch, ...any) (func() string, error) {
	c.now()
	return func() string { return "" }, nil
}

// alive is Live that says which cells were added.
type alive struct {
	Live
	added []cell.ID
}

func (a *alive) Add(c *state.Cell, _ backend.Instance, _ *state.Interp) {
	a.added = append(a.added, c.ID)
}

// A cell that is recorded as running and is not alive yet can't be reached: what would be done in
// it would wake it, a second time.
func TestNewCellsAreReachedWhenTheyLive(t *testing.T) {
	t.Parallel()
	var locks state.CellLocks
	var made []*child
	for range 3 {
		ch := &child{c: &state.Cell{ID: cell.NewID()}, first: &state.Checkpoint{}}
		ch.c.Setup.Talks = true
		made = append(made, ch)
	}
	locked := func(when string, want bool) {
		for _, ch := range made {
			release, err := locks.TryAcquire(ch.c.ID, "exec")
			if (err != nil) != want {
				t.Errorf("%s: cell %s is locked: %v", when, ch.c.ID, err != nil)
			}
			if err == nil {
				release()
			}
		}
	}
	lives := &alive{}
	m := New(Config{Locks: &locks, Live: lives, Caches: func(cell.ID, cell.ID, bool) *state.CellCaches { return nil }, Evidence: committing{now: func() { locked("recorded", true) }},
		Equip: func(context.Context, *state.Cell, backend.Instance, string) error {
			if len(lives.added) != len(made) {
				t.Errorf("one is equipped while %d of %d live", len(lives.added), len(made))
			}
			return nil
		}})
	if _, err := m.record(t.Context(), "key", &state.Cell{}, state.Batch{}, made); err != nil {
		t.Fatal(err)
	}
	locked("alive", false)
	for _, ch := range made {
		if !slices.Contains(lives.added, ch.c.ID) {
			t.Errorf("cell %s does not live", ch.c.ID)
		}
	}
}
