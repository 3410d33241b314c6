package client

import (
	"slices"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/testenv"
)

// join puts one more cell into a family's keeper.
func join(t *testing.T, h *Host, c *Client) cell.ID {
	t.Helper()
	id := cell.NewID()
	_, err := h.Make(t.Context(), c, id, proto.NewCell{Cell: id}, cell.Assurance{Backend: "empty", Network: string(id)})
	must(t, err)
	return id
}

// The cells of a family are found through the one keeper, also when the first of
// them is gone; each is removed alone, and the keeper ends with the last.
func TestD40AFamilyEndsWithItsLast(t *testing.T) {
	dir := t.TempDir()
	h := newHost(t, dir)
	first := cell.NewID()
	k, c := keep(t, h, first)
	second, third := join(t, h, c), join(t, h, c)
	c.Close()
	h.Close()
	next := newHost(t, dir)
	attach := func(id cell.ID) *Instance {
		t.Helper()
		i, err := next.Attach(t.Context(), id, first)
		must(t, err)
		if i.ID() != id || (id != first && i.Assurance().Network != string(id)) {
			t.Errorf("attached to %s, %+v", i.ID(), i.Assurance())
		}
		return i
	}
	a, b := attach(first), attach(second)
	if a.Client != b.Client {
		t.Error("two cells of a family have two clients of its keeper")
	}
	must(t, a.Remove(t.Context(), "removed"))
	a.Close() // once more: the others' client is not closed by it
	a.Close()
	if _, err := next.Attach(t.Context(), first, first); cell.KindOf(err) != cell.NotFound {
		t.Errorf("the first is there after its end: %v", err)
	}
	if _, err := b.List(t.Context()); err != nil || !next.Alive(first) {
		t.Errorf("the end of the first took the second along: %v", err)
	}
	if list := next.Members(t.Context(), first); len(list) != 2 || !slices.Contains(list, third) {
		t.Errorf("members are %v", list)
	}
	if found, err := next.Leftovers(false); err != nil || len(found) > 0 {
		t.Errorf("what lives is left over: %v, %v", found, err)
	}
	must(t, b.Remove(t.Context(), "removed"))
	must(t, b.Remove(t.Context(), "again"))
	must(t, attach(third).Remove(t.Context(), "removed"))
	select {
	case <-k.alive:
	case <-time.After(testenv.Patience()):
		t.Error("the keeper outlives its cells")
	}
	if left := files(t, next); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// A cell that its family's keeper does not have is not found, and the family stays.
func TestF28AbsentForksAreNotFound(t *testing.T) {
	h := newHost(t, t.TempDir())
	first := cell.NewID()
	_, c := keep(t, h, first)
	defer c.Close()
	if _, err := h.Attach(t.Context(), cell.NewID(), first); cell.KindOf(err) != cell.NotFound {
		t.Errorf("attach to no cell: %v", err)
	}
	if list := h.Members(t.Context(), first); !slices.Equal(list, []cell.ID{first}) {
		t.Errorf("the family is %v, not %s alone", list, first)
	}
	i, err := h.Attach(t.Context(), first, "")
	must(t, err)
	defer i.Close()
	must(t, i.Remove(t.Context(), "removed"))
}
