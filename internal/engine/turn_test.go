package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/workspace"
)

// The turns of an agent become checkpoints while its run goes on, with its home. One is forked, and
// undone with what it changed and what came after it, while the run goes on, too.
func TestTurnsAreCheckpoints(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("w", "echo 1 > f")
	id := b.id("w")
	c, err := b.reg.Cell(id)
	b.must(err)
	c.Agent = "claude"
	b.must(b.reg.Commit(&c))
	home := func(id cell.ID) string { // the directory to which the cell writes
		c, err := b.reg.Cell(id)
		b.must(err)
		if dir := b.ownDir(&c, cell.RoleHome); dir != "" {
			return dir
		}
		return filepath.Join(b.private(id), "home")
	}
	r, err := b.StartRun(b.ctx, b.request("w", "while [ ! -e go ]; do sleep 0.01; done"))
	b.must(err)
	b.told(r, evidence.EventQuery{Follow: true}, func(ev api.Event) {
		if ev.Kind != "process.running" {
			return
		}
		for i, text := range []string{"first", "again", "second"} {
			if text != "again" { // nothing has changed since
				b.must(os.WriteFile(filepath.Join(home(id), "said"), []byte(text), 0o644))
			}
			b.must(b.takeTurn(b.ctx, id, cell.Turn{Text: text}))
			k, err := b.reg.AtTurn(id, i+1)
			b.must(err)
			if k.Kind != state.KindTurn || k.Message != text || k.Home == nil || k.Run != cell.RunID(r.ID) || k.Expires.IsZero() {
				t.Errorf("turn %d: %+v", i+1, k)
			}
		}
		if one, err := b.reg.AtTurn(id, 1); err == nil {
			if two, err := b.reg.AtTurn(id, 2); err != nil || !two.State.Same(one.State) {
				t.Errorf("a turn in which nothing changed has layers of its own: %v, %v", one.State, two.State)
			}
		}
		forked, err := b.Fork(b.ctx, id, api.ForkRequest{Turn: 2, Name: "child"})
		b.must(err)
		if !strings.HasPrefix(forked.Took, "files and home as of w@") || forked.Dropped != "memory, processes and /tmp" {
			t.Errorf("a fork has %s, and not %s", forked.Took, forked.Dropped)
		}
		b.wantKind("a turn that there was not", second(b.Fork(b.ctx, id, api.ForkRequest{Turn: 9})), cell.NotFound, "no turn 9")
		b.must(second(b.All().Undo(b.ctx, id, api.UndoRequest{Turn: 3, DryRun: true})))
		// What the caller saw is compared before the agent ends, which changes the cell.
		now, err := b.reg.Cell(id)
		b.must(err)
		saw := func(tag string) Seen {
			return func(is string) error {
				if is != tag {
					return cell.Errorf(cell.Stale, "test", "", "it is another")
				}
				return nil
			}
		}
		b.wantKind("a cell that was changed", second(b.All().Undo(b.ctx, id, api.UndoRequest{Turn: 1}, saw("other"))), cell.Stale, "another")
		if b.runs.In(id) == nil {
			t.Error("the agent was ended")
		}
		go func() {
			if _, err := b.All().Undo(b.ctx, id, api.UndoRequest{Turn: 1}, saw(b.cellTag(&now))); err != nil {
				t.Errorf("undo: %v", err)
			}
		}()
	})
	testenv.Eventually(t, func() bool {
		c, err := b.reg.Cell(id)
		return err == nil && c.State == cell.Idle && b.headTurn(id) == 1
	}, "the undo")
	if said, err := os.ReadFile(filepath.Join(b.belowHome(id), "said")); string(said) != "first" {
		t.Errorf("in the home there is %q, %v", said, err)
	}
	b.has("w", "f: 1")
	b.has("child", "f: 1")
	b.wantKind("two words for one", second(b.All().Undo(b.ctx, id, api.UndoRequest{Turn: 1, To: 1})), cell.Invalid, "both")
	// What was is kept, and so is the conversation.
	list, err := b.All().History(id)
	b.must(err)
	if !slices.ContainsFunc(list, func(k api.Checkpoint) bool { return k.Turn == 3 && k.Home }) {
		t.Errorf("the history has %+v", list)
	}
}

// Of the cell of an agent that is at rest with unchanged files, a checkpoint and a fork have the home, an
// undo gives it back and keeps what it was, and the files' own history is as it was.
func TestHomeOfACellAtRest(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	r := b.run("w", "echo 1 > f")
	id := b.id("w")
	c, err := b.reg.Cell(id)
	b.must(err)
	c.Agent = "claude"
	b.must(b.reg.Commit(&c))
	b.must(second(b.All().Stop(b.ctx, id)))
	says := func(text string) {
		t.Helper()
		c, err := b.reg.Cell(id)
		b.must(err)
		if c.Gen != nil {
			t.Fatal("it is not at rest")
		}
		dir := b.ownDir(&c, cell.RoleHome)
		if dir == "" {
			dir = filepath.Join(b.private(id), "home")
		}
		b.must(os.WriteFile(filepath.Join(dir, "said"), []byte(text), 0o644))
	}
	said := func(what string, id cell.ID, want string) {
		t.Helper()
		got, err := os.ReadFile(filepath.Join(b.belowHome(id), "said"))
		if string(got) != want {
			t.Errorf("%s: in the home there is %q, %v", what, got, err)
		}
	}
	kept := func() api.Checkpoint {
		t.Helper()
		k, err := b.Checkpoint(b.ctx, id, api.CheckpointRequest{})
		b.must(err)
		return k
	}

	says("first")
	one := kept()
	if !one.Home || one.Number == 0 {
		t.Fatalf("the checkpoint has no home: %+v", one)
	}
	says("second")
	forked, err := b.Fork(b.ctx, id, api.ForkRequest{Name: "child"})
	b.must(err)
	if !strings.HasPrefix(forked.Took, "files and home") {
		t.Errorf("the fork has %s", forked.Took)
	}
	said("a fork", b.id("child"), "second")
	if now, err := b.reg.Run(cell.RunID(r.ID)); err != nil || now.Verdict != cell.Forked {
		t.Errorf("the run whose result was forked is %s, %v", now.Verdict, err)
	}
	says("third")
	b.must(second(b.All().Undo(b.ctx, id, api.UndoRequest{To: one.Number})))
	said("an undo", id, "first")
	b.has("w", "f: 1")
	list, err := b.All().History(id)
	b.must(err)
	last := list[len(list)-1]
	if !last.Home || last.Message != "before the restore" {
		t.Fatalf("the home before the undo is not kept: %+v", last)
	}
	b.must(second(b.All().Undo(b.ctx, id, api.UndoRequest{To: last.Number})))
	said("what was before the undo", id, "third")

	// The change of files is what is undone, not the checkpoints of the home.
	b.must(second(b.All().Undo(b.ctx, id, api.UndoRequest{})))
	b.has("w", "f: 0")

	// A decision makes none, and there is nothing to decide about.
	before, err := b.reg.Cell(id)
	b.must(err)
	_, err = b.All().Discard(b.ctx, b.cellTarget("w"), api.DiscardRequest{})
	b.wantKind("a discard of nothing", err, cell.Conflict, "nothing waits")
	if after, err := b.reg.Cell(id); err != nil || after.Head != before.Head {
		t.Errorf("the head was %s and is %s, %v", before.Head, after.Head, err)
	}
}

// headTurn is the turn that begins where a cell is.
func (b *bed) headTurn(id cell.ID) int {
	c, err := b.reg.Cell(id)
	b.must(err)
	k, err := b.reg.Checkpoint(c.Head)
	b.must(err)
	return k.Turn
}

// belowHome is the topmost layer below that to which a cell writes what is in its home.
func (b *bed) belowHome(id cell.ID) string {
	c, err := b.reg.Cell(id)
	b.must(err)
	if c.Home == nil || len(c.Home.Base.Layers) == 0 {
		b.Fatalf("the home is %+v", c.Home)
	}
	p, err := b.providerOf(c.Provider)
	b.must(err)
	m := p.Mount(workspace.Generation{Layer: c.Home.Base.Layers[len(c.Home.Base.Layers)-1]}, "/")
	return writable(&m)
}
