package gc

import (
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/oci"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/store"
	"github.com/pando-dev/pando/internal/store/disk"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/clone"
)

const megabyte = 1 << 20

// bed is a manager over real records, layers and objects. Cells have no processes.
type bed struct {
	testing.TB
	*Manager
	reg    *state.Registry
	clone  *clone.Provider
	locked map[cell.ID]bool // TryLock fails for these
	// meanwhile happens before such a failure.
	meanwhile func()
	removed   []cell.ID // by the manager's decision
	sources   []Source
	leftover  []string
	work      sync.WaitGroup // in the background
	began     time.Time
	made      int // checkpoints
}

func newBed(t testing.TB) *bed {
	t.Helper()
	dir := t.TempDir()
	home := paths.Home{State: filepath.Join(dir, "state"), Cache: filepath.Join(dir, "cache"), Run: filepath.Join(dir, "run")}
	b := &bed{TB: t, locked: map[cell.ID]bool{}, began: time.Now().Add(-time.Hour).UTC()}
	b.must(home.Make())
	for _, d := range []string{home.Layers(), home.Images()} {
		b.must(os.MkdirAll(d, 0o700))
	}
	var err error
	b.reg, err = state.Open(durable.Disk(home.State), "registry.log", home)
	b.must(err)
	objects, err := disk.Open(home.Trees())
	b.must(err)
	t.Cleanup(func() {
		b.work.Wait()
		b.must(b.reg.Close())
		b.must(objects.Close())
	})
	b.clone = clone.New(home.Layers())
	pins := NewPins(objects)
	b.Manager = New(Config{
		Home: home, Log: slog.New(slog.DiscardHandler), Records: b.reg, Providers: []workspace.Provider{b.clone}, Pins: pins, Etc: filepath.Join(home.Images(), "etc"),
		Provider: func(string) (workspace.Provider, error) { return b.clone, nil },
		Dropped:  func(*state.Cell) {},
		Sources:  b, Images: func() ([]oci.Image, error) { return nil, nil },
		Lock: func(context.Context, cell.ID, string) (func(), error) { return func() {}, nil },
		TryLock: func(id cell.ID, why string) (func(), error) {
			if b.locked[id] {
				if b.meanwhile != nil {
					b.meanwhile()
				}
				return nil, cell.Errorf(cell.Conflict, "bed", "", "%s is in use", id)
			}
			return func() {}, nil
		},
		ExpireEvidence: func(context.Context, bool, time.Time) ([]api.GCItem, error) { return nil, nil },
		AtRest:         func(cell.ID) bool { return true },
		AwaitGone:      func(context.Context, cell.ID) error { return nil },
		Remove:         b.remove,
		Tree: func(d cell.Digest) (*workspace.Tree, error) {
			text, err := pins.Get(d)
			if err != nil {
				return nil, err
			}
			return workspace.DecodeTree(text, pins)
		},
		ForgetTrees:  func() {},
		Above:        func(cell.ID) []workspace.State { return nil },
		Begun:        func(*operation.Redo) []*workspace.Generation { return nil },
		BegunObjects: func(*operation.Redo) (trees, contents []cell.Digest) { return nil, nil },
		Kept:         func(*state.Lease) (time.Duration, string) { return 0, "" },
		Leftovers:    func(context.Context, bool) ([]string, error) { return b.leftover, nil },
		Background:   func(do func(context.Context)) { b.work.Go(func() { do(t.Context()) }) },
	})
	return b
}

func (b *bed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// remove is a removal as the engine does it.
func (b *bed) remove(_ context.Context, id cell.ID) error {
	c, err := b.reg.Cell(id)
	if err != nil {
		return err
	}
	objects := []any{&c}
	if err := c.To(cell.Removed); err != nil {
		return err
	}
	for _, k := range b.reg.Checkpoints(id) {
		k.Gone = true
		objects = append(objects, &k)
	}
	if err := b.reg.Commit(objects...); err != nil {
		return err
	}
	b.removed = append(b.removed, id)
	b.DropCell(&c)
	return nil
}

func (b *bed) Loaded() []*workspace.Imported { return nil }

func (b *bed) Recorded() ([]Source, error) { return b.sources, nil }

func (b *bed) Forget(name string) {
	b.sources = slices.DeleteFunc(b.sources, func(s Source) bool { return s.Name == name })
}

// layer makes a layer with a file of so many random bytes.
func (b *bed) layer(bytes int) workspace.State {
	b.Helper()
	w, err := b.clone.Extend(b.Context(), workspace.State{})
	b.must(err)
	text := make([]byte, bytes)
	rand.Read(text)
	b.must(os.WriteFile(filepath.Join(w.Dir(), "f"), text, 0o644))
	s, err := w.Done()
	b.must(err)
	return s
}

// cell records a cell of a name at a checkpoint of its own.
func (b *bed) cell(name string, bytes int) state.Cell {
	b.Helper()
	c := state.Cell{ID: cell.NewID(), Name: name, State: cell.Idle, Created: b.began, Provider: "clone", Next: 1}
	b.checkpoint(&c, bytes, nil)
	return c
}

// checkpoint gives a cell another head, with a layer and a tree. With kept, which may change
// it, the checkpoint is beside the head.
func (b *bed) checkpoint(c *state.Cell, bytes int, kept func(*state.Checkpoint)) state.Checkpoint {
	b.Helper()
	defer b.cfg.Pins.Begin().End()
	k := state.Checkpoint{ID: cell.NewCheckpointID(), Cell: c.ID, Number: c.Next, Parent: c.Head, Kind: state.KindAfter, State: b.layer(bytes)}
	b.made++
	k.Created = b.began.Add(time.Duration(b.made) * time.Second)
	t, err := b.clone.Walk(b.Context(), k.State, b.cfg.Pins)
	b.must(err)
	k.Tree = t.Digest()
	b.must(b.cfg.Pins.Put(k.Tree, t.Encode()))
	c.Next++
	if kept != nil {
		kept(&k)
	} else {
		c.Head = k.ID
	}
	b.must(b.reg.Commit(c, &k))
	return k
}

// run records a run of a cell that ended with a verdict and a checkpoint.
func (b *bed) run(c *state.Cell, k *state.Checkpoint, v cell.Verdict) state.Run {
	b.Helper()
	r := state.Run{ID: string(cell.NewRunID()), Cell: string(c.ID), Created: k.Created, Phase: cell.Ended, Verdict: v}
	r.In.After = k.ID
	k.Run = r.RunID()
	b.must(b.reg.Commit(&r, k))
	return r
}

// result records a run, restored, with a result that is kept for an hour.
func (b *bed) result(c *state.Cell, bytes int) state.Checkpoint {
	b.Helper()
	k := b.checkpoint(c, bytes, func(k *state.Checkpoint) { k.Expires = time.Now().Add(time.Hour) })
	b.run(c, &k, cell.Restored)
	return k
}

// age makes every layer look as if no work were under way on it.
func (b *bed) age() {
	b.Helper()
	for _, l := range b.layers() {
		b.must(os.Chtimes(filepath.Join(b.cfg.Home.Layers(), l), time.Time{}, time.Now().Add(-time.Hour)))
	}
}

func (b *bed) layers() []string {
	b.Helper()
	all, err := b.clone.Layers()
	b.must(err)
	slices.Sort(all)
	return all
}

func (b *bed) has(s workspace.State) bool { return slices.Contains(b.layers(), s.Layers[0]) }

// collected is what a collection removes, as "what name". Layers have no names.
func (b *bed) collected(dry bool) (went []string) {
	b.Helper()
	res, err := b.Collect(b.Context(), dry)
	b.must(err)
	b.work.Wait()
	for _, i := range res.Items {
		if i.What == "layer" {
			i.Name = ""
		}
		went = append(went, strings.TrimSpace(i.What+" "+i.Name))
	}
	slices.Sort(went)
	return went
}

// gone reports whether a checkpoint was removed.
func (b *bed) gone(k state.Checkpoint) bool {
	b.Helper()
	now, err := b.reg.Checkpoint(k.ID)
	b.must(err)
	return now.Gone
}

type nothing struct{ store.Store }

func (nothing) Put(cell.Digest, []byte) error { return nil }
