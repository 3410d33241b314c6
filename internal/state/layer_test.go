package state

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable/durabletest"
	"github.com/pando-dev/pando/internal/workspace"
)

// named is what records name, found by a walk over all, as if the checkpoint but were gone.
func named(r *Registry, but cell.CheckpointID) map[string]bool {
	layers := map[string]bool{}
	need := func(s workspace.State) {
		for _, l := range s.Layers {
			layers[l] = true
		}
	}
	r.Look(func(now Records) {
		for k := range now.Checkpoints() {
			if !k.Gone && k.ID != but {
				for _, s := range k.States() {
					need(s)
				}
			}
		}
		for c := range now.Cells() {
			if c.State == cell.Removed {
				continue
			}
			for _, g := range c.Gens() {
				layers[g.Layer] = true
				need(g.Base)
			}
			if k := r.founder(c.Head); k != nil {
				need(k.State)
			}
			for _, id := range c.KnownAt {
				if k := now.Checkpoint(id); k != nil {
					need(k.State)
				}
			}
		}
	})
	return layers
}

// unneeded are the removed cells that no other record needs, found by a walk over all.
func unneeded(r *Registry) map[cell.ID]bool {
	needed := map[cell.ID]bool{}
	var removed []cell.ID
	r.Look(func(now Records) {
		for c := range now.Cells() {
			if c.Parent != nil {
				needed[c.Parent.Cell] = true
			}
			if c.State == cell.Removed {
				removed = append(removed, c.ID)
				continue
			}
			holds := slices.Clone(c.KnownAt)
			if k := r.founder(c.Head); k != nil {
				holds = append(holds, k.ID)
			}
			for _, id := range holds {
				if k := now.Checkpoint(id); k != nil {
					needed[k.Cell] = true
				}
			}
		}
	})
	out := map[cell.ID]bool{}
	for _, id := range removed {
		if !needed[id] {
			out[id] = true
		}
	}
	return out
}

// The index counts what names a layer as a walk over all records finds it, whatever is
// recorded, and when it is read anew.
func TestLayersAreCounted(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		layersAreCounted(t, rand.New(rand.NewPCG(seed, 1)))
	}
}

func layersAreCounted(t *testing.T, rnd *rand.Rand) {
	fs := durabletest.New()
	r := open(t, fs)
	var cells []cell.ID
	var checkpoints []cell.CheckpointID
	layers := 0
	state := func(base ...string) workspace.State {
		layers++
		return workspace.State{Layers: append(slices.Clone(base), fmt.Sprintf("l-%d", layers))}
	}
	commit := func(objects ...any) {
		t.Helper()
		if err := r.Commit(objects...); err != nil {
			t.Fatal(err)
		}
	}
	// checkpoint makes a cell's next head; with memory it has more files than the workspace.
	checkpoint := func(c *Cell) *Checkpoint {
		k := &Checkpoint{ID: cell.NewCheckpointID(), Cell: c.ID, Number: c.Next, Parent: c.Head, State: state()}
		if up, err := r.Checkpoint(c.Head); err == nil && rnd.IntN(4) > 0 {
			k.State = state(up.State.Layers...)
		}
		if rnd.IntN(4) == 0 {
			k.Memory = &MemorySnapshot{Home: state(), Above: map[string]workspace.State{"/": state()}}
		}
		c.Next, c.Head = c.Next+1, k.ID
		checkpoints = append(checkpoints, k.ID)
		return k
	}
	for step := range 120 {
		what := rnd.IntN(9)
		if len(cells) < 3 {
			what = 0
		}
		c := Cell{ID: cell.NewID(), State: cell.Idle, Next: 1}
		if what > 1 {
			c, _ = r.Cell(cells[rnd.IntN(len(cells))])
		} else {
			cells = append(cells, c.ID)
		}
		var k Checkpoint
		if len(checkpoints) > 0 {
			k, _ = r.Checkpoint(checkpoints[rnd.IntN(len(checkpoints))])
		}
		switch what {
		case 0: // made
			commit(&c, checkpoint(&c))
		case 1: // forked; its head is recorded later
			c.Head, c.Parent = k.ID, &Origin{Cell: k.Cell, Checkpoint: k.ID}
			commit(&c)
			commit(&c, checkpoint(&c))
		case 2: // run; what comes first may be recorded alone
			k := checkpoint(&c)
			switch rnd.IntN(3) {
			case 0:
				commit(&c)
				commit(k)
			case 1:
				commit(k)
				commit(&c)
			default:
				commit(k, &c)
			}
		case 3: // brought back, or onto the files of another
			c.Head = k.ID
			commit(&c)
		case 4: // expired
			k.Gone = true
			commit(&k)
		case 5: // applied, or forgotten
			c.KnownAt = append(slices.Clone(c.KnownAt), k.ID)
			if rnd.IntN(3) == 0 {
				c.KnownAt = nil
			}
			commit(&c)
		case 6: // merged
			k.State = state()
			commit(&k)
		case 7: // in use, or at rest
			g := workspace.Generation{Layer: state().Layers[0], Base: k.State}
			if c.Gen, c.Home = &g, nil; rnd.IntN(2) == 0 {
				c.Gen, c.Home = nil, &g
			}
			commit(&c)
		case 8: // removed
			c.State = cell.Removed
			objects := []any{&c}
			for _, k := range r.Checkpoints(c.ID) {
				k.Gone = true
				objects = append(objects, &k)
			}
			commit(objects...)
			cells = slices.DeleteFunc(cells, func(id cell.ID) bool { return id == c.ID })
		}
		if want := unneeded(r); len(want) != len(r.x.unnamed) || slices.ContainsFunc(slices.Collect(maps.Keys(want)), func(id cell.ID) bool { return r.x.unnamed[id].id != id }) {
			t.Fatalf("step %d (%d): no record needs %v, want %v", step, what, r.x.unnamed, want)
		}
		for _, but := range []cell.CheckpointID{"", k.ID} {
			want := named(r, but)
			for n := range layers {
				if l := fmt.Sprintf("l-%d", n+1); r.NamesLayer(l, but) != want[l] {
					t.Fatalf("step %d (%d), but %q: layer %s is named: %v, want %v", step, what, but, l, !want[l], want[l])
				}
			}
		}
	}
	counts := r.x.layers
	if err := r.Rewrite(); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, fs)
	if fmt.Sprint(again.x.layers) != fmt.Sprint(counts) || fmt.Sprint(again.x.held) != fmt.Sprint(r.x.held) || fmt.Sprint(again.x.unnamed) != fmt.Sprint(r.x.unnamed) {
		t.Errorf("read anew it counts %v and %v, it was %v and %v", again.x.layers, again.x.unnamed, counts, r.x.unnamed)
	}
	for _, id := range cells { // all of it is taken back
		c, _ := again.Cell(id)
		c.State = cell.Removed
		if err := again.Commit(&c); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range checkpoints {
		if err := again.Commit(Forget(id)); err != nil {
			t.Fatal(err)
		}
	}
	if len(again.x.layers)+len(again.x.held) > 0 {
		t.Errorf("with no record left it counts %v, %v", again.x.layers, again.x.held)
	}
}
