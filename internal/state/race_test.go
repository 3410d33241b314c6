package state

import (
	"slices"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable/durabletest"
)

// Races are in the journal, also when it is written anew, and go with their attempts.
func TestRacesSurvive(t *testing.T) {
	t.Parallel()
	fs := durabletest.New()
	r := open(t, fs)
	old, newer := cell.RaceID("x-0000000000000001"), cell.RaceID("x-0000000000000002")
	if err := r.Commit(&Race{ID: old, Created: time.Unix(1, 0).UTC(), Count: 2, Spec: api.RaceRequest{Until: "all"}}, &Attempt{Race: old, Number: 2}, &Attempt{Race: old, Number: 1},
		&Race{ID: newer, Created: time.Unix(2, 0).UTC()}, &Attempt{Race: newer, Number: 1}); err != nil {
		t.Fatal(err)
	}
	if err := r.Commit(&Attempt{Race: old, Number: 2, Run: "r-1", Starts: 1}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if i == 1 {
			if err := r.Rewrite(); err != nil {
				t.Fatal(err)
			}
		}
		r.Close()
		r = open(t, fs)
		rec, list, err := r.Race(old)
		if err != nil || rec.Spec.Until != "all" || len(list) != 2 || list[0].Number != 1 || list[1].Run != "r-1" {
			t.Errorf("%+v, %+v, %v", rec, list, err)
		}
		all := r.Races()
		if !slices.EqualFunc(all, []cell.RaceID{newer, old}, func(x Race, id cell.RaceID) bool { return x.ID == id }) {
			t.Errorf("%+v", all)
		}
	}
	if err := r.Commit(Forget(old)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Race(old); cell.KindOf(err) != cell.NotFound {
		t.Error(err)
	}
	if err := r.Commit(&Race{ID: old}); err != nil {
		t.Fatal(err)
	}
	if _, list, err := r.Race(old); err != nil || len(list) != 0 {
		t.Errorf("attempts of a race that was forgotten: %+v, %v", list, err)
	}
}
