package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// A cursor leads on although the cell that it was made of is gone; lists have what is asked
// for, in both orders, and what a caller sees.
func TestX44Lists(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	for i := range 6 {
		labels := map[string]string{"odd": fmt.Sprint(i % 2), "team": "a"}
		if i == 5 {
			labels["team"] = "b"
		}
		_, err := b.asks(b.All(), fmt.Sprintf("c%d", i), labels)
		b.must(err)
	}
	names := func(v *View, q state.Query) (string, string) {
		t.Helper()
		list, next, err := v.Records(q)
		b.must(err)
		var out []string
		for _, c := range list {
			out = append(out, c.Name)
		}
		return strings.Join(out, " "), next
	}
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	first, next := names(b.All(), state.Query{Limit: 2})
	want("the first page", first, "c5 c4")
	_, err := b.Remove(b.ctx, b.id("c4"), false)
	b.must(err)
	second, next := names(b.All(), state.Query{Limit: 3, After: next})
	want("behind one that is gone", second, "c3 c2 c1")
	last, next := names(b.All(), state.Query{Limit: 3, After: next})
	want("the last page", last+next, "c0")
	got, _ := names(b.All(), state.Query{Oldest: true, Limit: 2})
	want("the oldest", got, "c0 c1")
	got, next = names(b.All(), state.Query{Labels: map[string]string{"odd": "1", "team": "a"}, Oldest: true, Limit: 1})
	want("by labels", got, "c1")
	got, _ = names(b.All(), state.Query{Labels: map[string]string{"odd": "1", "team": "a"}, Oldest: true, After: next})
	want("by labels, the rest", got, "c3")
	_, err = b.alive.Park(b.ctx, b.id("c2"))
	b.must(err)
	got, _ = names(b.All(), state.Query{States: []string{state.QueryPaused}})
	want("paused ones", got, "c2")
	got, _ = names(b.All(), state.Query{States: []string{state.QueryRunning}, Label: "team"})
	want("the others", got, "c5 c3 c1 c0")
	c1, err := b.reg.Cell(b.id("c1"))
	b.must(err)
	got, _ = names(b.All(), state.Query{Since: c1.Created})
	want("after c1", got, "c5 c3 c2")
	got, _ = names(b.All(), state.Query{Since: c1.Created, Oldest: true})
	want("after c1, the oldest first", got, "c2 c3 c5")
	of := b.caller("t-a", access.Bounds{Labels: map[string]string{"team": "a"}})
	got, _ = names(of, state.Query{})
	want("what a team sees", got, "c3 c2 c1 c0")
	got, _ = names(of, state.Query{Labels: map[string]string{"team": "b"}})
	want("what it asks for of others", got, "")
	if n := of.Running("odd"); n != 3 {
		t.Errorf("%d run", n)
	}
	if _, _, err := b.All().Records(state.Query{After: "bm8"}); cell.KindOf(err) != cell.Invalid {
		t.Errorf("what is no cursor: %v", err)
	}
	b.close()
	b.open() // and so does the next daemon
	got, _ = names(b.All(), state.Query{})
	want("to the next daemon", got, "c5 c3 c2 c1 c0")
	got, _ = names(b.All(), state.Query{States: []string{state.QueryPaused}, Labels: map[string]string{"odd": "0"}})
	want("paused ones, to the next daemon", got, "c2")
}

// What is told of a cell is the caller's own: changes to it reach no record.
func TestViewsAreCopies(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	asked := map[string]string{"team": "a"}
	_, err := b.asks(b.All(), "c", asked)
	b.must(err)
	asked["team"] = "b"
	for range 2 {
		c, err := b.Record(b.id("c"))
		b.must(err)
		if c.Labels["team"] != "a" {
			t.Fatalf("its labels are %v", c.Labels)
		}
		c.Labels["team"] = "c"
	}
}

// Names of forks have the lowest numbers that are free, whatever was removed.
func TestX44Numbers(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	_, err := b.asks(b.All(), "src", nil)
	b.must(err)
	fork := func(n int) (names []string) {
		t.Helper()
		res, err := b.Fork(b.ctx, b.id("src"), forkOf(n))
		b.must(err)
		for _, c := range res.Cells {
			names = append(names, c.Name)
		}
		return names
	}
	want := func(got []string, numbers ...int) {
		t.Helper()
		var list []string
		for _, n := range numbers {
			list = append(list, fmt.Sprintf("src-fork-%d", n))
		}
		if !slices.Equal(got, list) {
			t.Errorf("%v, want %v", got, list)
		}
	}
	want(fork(4), 1, 2, 3, 4)
	for _, n := range []string{"src-fork-3", "src-fork-1"} {
		_, err := b.Remove(b.ctx, b.id(n), false)
		b.must(err)
	}
	want(fork(3), 1, 3, 5)
	_, err = b.asks(b.All(), "src-fork-7", nil) // a person took it
	b.must(err)
	want(fork(2), 6, 8)
	for i := range 8 {
		_, err := b.Remove(b.ctx, b.id(fmt.Sprintf("src-fork-%d", i+1)), false)
		b.must(err)
	}
	want(fork(1), 1)
}
