package engine

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/result"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/workspace"
)

// A cell that is watched tells each change once, keeps one checkpoint of having been looked at, and is not started
// for it. What was told can be decided about by its digest.
func TestWatchDiff(t *testing.T) {
	b := newBed(t, "f: 0")
	dir := t.TempDir()
	step := func(n string) string {
		return "while ! test -e " + filepath.Join(dir, n) + "; do sleep 0.01; done; "
	}
	r, err := b.StartRun(b.ctx, b.request("w", "echo 1 > f; "+step("a")+"echo 2 > g; "+step("b")+"echo 3 > g; "+step("c")))
	b.must(err)
	b.starts(r)
	id := b.id("w")
	b.until("the first file is written", func() bool {
		d, err := b.results.Diff(b.ctx, result.DiffRequest{Target: result.Target{Cell: id}})
		b.must(err)
		return len(d.Files) == 1
	})
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	changes, ended := make(chan api.DiffChange), make(chan error, 1)
	watch := func(ctx context.Context) {
		ended <- b.All().WatchDiff(ctx, result.DiffRequest{Target: result.Target{Cell: id}, Form: "text"}, func(c api.DiffChange) error {
			select {
			case changes <- c:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}
	go watch(ctx)
	told := func(files, added int, words string, changed ...string) api.DiffChange {
		t.Helper()
		c, _ := testenv.Receive(t, changes, "a change")
		var paths []string
		for _, f := range c.Changed {
			paths = append(paths, f.Path)
		}
		if c.Files != files || c.Added != added || strings.Join(paths, " ") != strings.Join(changed, " ") || !strings.Contains(c.Text, words) {
			t.Errorf("told: %+v", c)
		}
		return c
	}
	looks := func(want int) {
		t.Helper()
		n := 0
		for _, k := range b.reg.Checkpoints(id) {
			if k.Kind == state.KindLooked && !k.Gone {
				n++
			}
		}
		if n != want {
			t.Errorf("there are %d checkpoints of having been looked at, not %d", n, want)
		}
	}
	goOn := func(n string) { b.must(os.WriteFile(filepath.Join(dir, n), nil, 0o600)) }
	told(1, 1, "1 file changed", "f")
	goOn("a")
	told(2, 2, "+2", "g")
	looks(1)
	c, err := b.reg.Cell(id)
	b.must(err)
	head, err := b.reg.Checkpoint(c.Head)
	b.must(err)
	_, err = b.NameCheckpoint(b.ctx, id, head.Number, "this one")
	b.must(err)
	goOn("b")
	last := told(2, 2, "-2\n+3", "g")
	looks(2) // one has a name
	goOn("c")
	_, err = b.All().WaitRun(b.ctx, cell.RunID(r.ID))
	b.must(err)
	_, err = b.results.Accept(b.ctx, result.Target{Cell: id}, api.AcceptRequest{Apply: true, Expect: last.Digest})
	b.must(err)
	told(0, 0, "")
	cancel()
	if err, _ := testenv.Receive(t, ended, "the end"); err != nil {
		t.Errorf("it ends with %v", err)
	}

	go watch(b.ctx)
	told(0, 0, "")
	if c, err := b.reg.Cell(id); err != nil || c.Gen != nil {
		t.Errorf("the cell at rest is %+v, %v", c, err)
	}
	_, err = b.All().Remove(b.ctx, id, false)
	b.must(err)
	if err, _ := testenv.Receive(t, ended, "the end"); cell.KindOf(err) != cell.NotFound {
		t.Errorf("of a removed cell it ends with %v", err)
	}
	b.wantKind("of a form", b.results.WatchDiff(b.ctx, result.DiffRequest{Target: result.Target{Cell: id}, Form: "bogus"}, nil), cell.Invalid, "is no form")
	b.wantKind("of a run", b.results.WatchDiff(b.ctx, result.DiffRequest{Target: result.Target{Run: cell.RunID(r.ID)}}, nil), cell.Invalid, "does not change any more")
}

// What another act commits while a cell is looked at is told, and so is what could not be compared at first.
func TestWatchMissesNothing(t *testing.T) {
	b := newBed(t, "f: 0")
	b.run("w", "echo 1 > f")
	id := b.id("w")
	sides, refused := 0, false
	cfg := b.resultConfig()
	side := cfg.Side
	cfg.Side = func(ctx context.Context, k *state.Checkpoint) (workspace.Side, error) {
		out, err := side(ctx, k)
		switch sides++; sides { // each look asks for what there was and what there is, later ones for what was told last
		case 2:
			_, aerr := b.results.Accept(b.ctx, result.Target{Cell: id}, api.AcceptRequest{Apply: true})
			b.must(aerr)
		case 4:
			b.run("w", "echo 2 > g")
		case 7:
			out.Contents = slowDisk{out.Contents, &refused}
		}
		return out, err
	}
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	var told []int
	err := result.New(cfg).WatchDiff(ctx, result.DiffRequest{Target: result.Target{Cell: id}, Form: "text"}, func(c api.DiffChange) error {
		if told = append(told, c.Files); len(told) == 3 {
			cancel()
		}
		return nil
	})
	if err != nil || !refused || !slices.Equal(told, []int{1, 0, 1}) {
		t.Errorf("told of %d files, %v; a comparison was refused: %v", told, err, refused)
	}
}

// slowDisk is contents that can't be read for a moment.
type slowDisk struct {
	workspace.Contents
	asked *bool
}

func (u slowDisk) Open(path string, e workspace.Entry) (io.ReadCloser, error) {
	if !*u.asked {
		*u.asked = true
		return nil, cell.Errorf(cell.Unavailable, "test", "", "the disk is slow")
	}
	return u.Contents.Open(path, e)
}

// Looks at a cell that lives on take each other's place, and hide no step of undo. One that was gone back to stays.
func TestLooksTakeTurns(t *testing.T) {
	b := newBed(t, "f: 0")
	b.run("w", "echo 1 > f")
	id := b.id("w")
	write := func(text string) {
		t.Helper()
		_, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sh", "-c", "echo " + text + " > f"}, Wait: true})
		b.must(err)
	}
	_, err := b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sleep", "300"}})
	b.must(err)
	look := func() state.Checkpoint {
		t.Helper()
		_, err := b.results.Diff(b.ctx, result.DiffRequest{Target: result.Target{Cell: id}})
		b.must(err)
		c, err := b.reg.Cell(id)
		b.must(err)
		k, err := b.reg.Checkpoint(c.Head)
		b.must(err)
		if k.Kind != state.KindLooked {
			t.Fatalf("a look is %+v", k)
		}
		return k
	}
	write("2")
	first := look()
	write("3")
	second := look()
	if k, err := b.reg.Checkpoint(first.ID); err != nil || !k.Gone {
		t.Errorf("the first look is %+v, %v", k, err)
	}
	if _, err := b.results.Undo(b.ctx, id, api.UndoRequest{Lose: true}); err != nil {
		t.Fatal(err)
	}
	b.has("w", "f: 1")

	_, err = b.results.Restore(b.ctx, id, api.RestoreRequest{Number: second.Number, Lose: true})
	b.must(err)
	b.has("w", "f: 3")
	_, err = b.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"sleep", "300"}})
	b.must(err)
	write("4")
	look()
	if k, err := b.reg.Checkpoint(second.ID); err != nil || k.Gone {
		t.Errorf("a look that was gone back to is %+v, %v", k, err)
	}

	accepted := look()
	_, err = b.results.Accept(b.ctx, result.Target{Cell: id}, api.AcceptRequest{})
	b.must(err)
	write("5")
	look()
	if k, err := b.reg.Checkpoint(accepted.ID); err != nil || k.Gone || k.Message != state.AcceptedMessage {
		t.Errorf("a look that was accepted is %+v, %v", k, err)
	}
}
