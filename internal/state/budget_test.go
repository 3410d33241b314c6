package state

import (
	"reflect"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable/durabletest"
	"github.com/pando-dev/pando/internal/policy"
)

// Budgets, and what was counted of cells that are there, survive the next daemon and a journal that is
// written anew; what is forgotten stays so.
func TestBudgetsSurvive(t *testing.T) {
	t.Parallel()
	fs := durabletest.New()
	r := open(t, fs)
	b := Budget{ID: "c-1", Asked: policy.Budget{Tokens: 5}, Granted: policy.Budget{Tokens: 5}, Used: policy.Budget{Tokens: 7}, Reached: "tokens", Asks: "q-1", Paused: []cell.ID{"c-1"}}
	n := Counted{Cell: "c-1", Source: "q-2", Used: []cell.ModelUse{{Model: "m", Requests: 1, Input: 7}}}
	gone := Counted{Cell: "c-2", Source: "q-3"}
	for _, o := range []any{&Cell{ID: "c-1", State: cell.Running}, &Cell{ID: "c-2", State: cell.Removed}, &Budget{ID: "c-3"}, Forget(ForgetBudget + "c-3")} {
		if err := r.Commit(o); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Commit(&b, &n, &gone); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"the next daemon", "a journal that was written anew"} {
		if what != "the next daemon" {
			if err := r.Rewrite(); err != nil {
				t.Fatal(err)
			}
		}
		r.Close()
		r = open(t, fs)
		if got := r.Budgets(); len(got) != 1 || !reflect.DeepEqual(got[0], b) {
			t.Errorf("%s: budgets %+v", what, got)
		}
		if got := r.Counted("c-1"); !reflect.DeepEqual(got, n) {
			t.Errorf("%s: counted %+v", what, got)
		}
	}
	if got := r.Counted("c-2"); got.Source != "" {
		t.Errorf("of a removed cell there is %+v", got)
	}
}
