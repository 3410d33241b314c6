package workspacetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// follow are the names that snapshots of one generation are tried with: few, so that one is often
// several things in turn.
var follow = []string{"a", "b", "d", "d/e", "d/e/f", "d/g", "h", "base", "base/x", "base/y", "old", "twin"}

// far are such names below folders with long paths, which change places.
func far() []string {
	list := []string{"d", "d/e", "p", "q", "r"}
	for _, top := range []string{"p", "q", "r"} {
		at := top
		for range 3 {
			at += "/" + strings.Repeat("l", 250)
		}
		list = append(list, at, at+"/e", at+"/e/f", at+"/g")
	}
	return list
}

func randomOp(r *rand.Rand, names []string) Op {
	p, q := names[r.Intn(len(names))], names[r.Intn(len(names))]
	switch r.Intn(16) {
	case 0, 1:
		return Op{Do: "remove", Path: p}
	case 2, 3:
		return Op{Do: "rename", Path: p, To: q}
	case 4:
		return Op{Do: "link", Path: p, To: q}
	case 5:
		return Op{Do: "symlink", Path: p, To: "nowhere"}
	case 6:
		return Op{Do: "chmod", Path: p, Mode: 0o700 | uint32(r.Intn(0o100))}
	case 7:
		return Op{Do: "xattr", Path: p, Data: fmt.Sprint(r.Intn(3))}
	case 8, 9:
		return Op{Do: "folder", Path: p}
	case 10:
		return Op{Do: "fifo", Path: p}
	case 11:
		return Op{Do: "append", Path: p, Data: "+"}
	case 12:
		return Op{Do: "map", Path: p, Data: fmt.Sprint(r.Intn(9))}
	case 13:
		return Op{Do: "replace", Path: p, Data: fmt.Sprint(r.Intn(3))}
	}
	return Op{Do: "write", Path: p, Data: fmt.Sprint(r.Int())}
}

func signal() chan struct{} { return make(chan struct{}) }

// unlinked compares without the names of a file that has several: a process inside can see those of a file
// of a lower layer as files of their own.
func unlinked() cmp.Option { return cmpopts.IgnoreFields(Seen{}, "Names") }

// snapshotsFollow takes snapshots of one generation, each over the last: what a process saw is what each
// has, whatever happened between them and while they were made.
func snapshotsFollow(t *testing.T, make New) {
	for seed := range int64(18) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewSource(seed))
			names := follow
			if seed >= 12 {
				names = far()
			}
			b := lay(t, make)
			k := b.run(b.empty(), ops(W("base/x", "x"), W("base/y", "y"), W("old", "o"), []Op{{Do: "link", Path: "old", To: "twin"}, {Do: "link", Path: "old", To: "base/z"}})...)
			g := b.begin(k)
			in := b.enter(g)
			list := func(most int) (list []Op) {
				for range r.Intn(most) {
					list = append(list, randomOp(r, names))
				}
				return list
			}
			some := func() { in.Try(list(6)...) }
			during := func(f func(context.Context) error) error {
				list, done := list(12), signal()
				go func() {
					defer close(done)
					in.Try(list...)
				}()
				err := f(ctx)
				<-done
				return err
			}
			if seed >= 12 {
				for _, name := range names {
					if strings.HasSuffix(name, "/e/f") {
						in.Do(W(name, name[:1])...)
					}
				}
			}
			at := k
			for n := range 14 {
				some()
				s, err := b.p.Snapshot(ctx, g, workspace.SnapshotOptions{Stands: b.stands})
				b.must(err)
				if r.Intn(2) == 0 {
					was, ok, err := s.Unmoved(ctx)
					b.must(err)
					if ok {
						tree := at.tree
						if !was.Same(at.State) {
							tree = k.tree // nothing is written yet
						}
						if d := cmp.Diff(in.Look(), b.view(tree), unlinked()); d != "" {
							t.Fatalf("at snapshot %d it is said to be unmoved (- seen, + tree):\n%s", n, d)
						}
					}
				}
				for range r.Intn(3) {
					b.must(during(s.Ahead))
					some()
				}
				b.must(s.Take(ctx))
				saw := in.Look()
				if r.Intn(2) == 0 {
					b.must(b.settle())
				}
				goesOn := r.Intn(3) > 0
				if goesOn {
					some()
				}
				complete := s.After
				if goesOn {
					complete = func(context.Context) error { return during(s.After) }
				}
				if err := complete(ctx); errors.Is(err, workspace.ErrMoved) {
					b.must(s.Ahead(ctx))
					some()
					b.must(s.Take(ctx))
					saw = in.Look()
					b.must(s.After(ctx))
				} else {
					b.must(err)
				}
				state, err := s.Done(ctx)
				b.must(err)
				below := k
				if len(state.Layers) > 1 && !state.Same(at.State) && at.State.Same(workspace.State{Provider: at.Provider, Layers: state.Layers[:len(state.Layers)-1]}) {
					below = at
				}
				now := at
				if !state.Same(at.State) {
					now = b.read(below, state)
				}
				if d := cmp.Diff(saw, b.view(now.tree), unlinked()); d != "" {
					t.Fatalf("snapshot %d is not that moment (- seen, + tree):\n%s", n, d)
				}
				if !goesOn {
					all, made, err := workspace.SnapshotNow(ctx, b.p, g)
					b.must(err)
					if d := cmp.Diff(b.view(b.read(k, all).tree), b.view(now.tree)); d != "" {
						t.Fatalf("snapshot %d is not what a copy of all is (- all, + snapshot):\n%s", n, d)
					}
					if made != "" {
						b.must(b.p.Drop(made))
					}
				}
				switch same := cmp.Diff(b.view(at.tree), b.view(now.tree)) == ""; {
				case same && r.Intn(2) == 0:
					b.must(s.Keep(at.State)) // the copy says nothing that it does not
				case r.Intn(4) > 0:
					b.must(s.Keep(state))
					at = now
				}
				b.must(s.Drop())
				if r.Intn(4) == 0 {
					b.shows(now)
				}
			}
			saw := in.Look()
			in.Leave()
			end := b.freeze(k, g)
			if d := cmp.Diff(saw, b.view(end.tree), unlinked()); d != "" {
				t.Errorf("the generation did not go on (- seen, + tree):\n%s", d)
			}
		})
	}
}

// writtenThroughMemory: a page that is dirty already is written without a trace in the file's times.
func writtenThroughMemory(t *testing.T, make New) {
	b := lay(t, make)
	k := b.run(b.empty(), W("base", "0")...)
	g := b.begin(k)
	in := b.enter(g)
	in.Do(ops(W("d/table", "aaaa"), []Op{{Do: "hold", Path: "d/table"}})...)
	mapped := cell.MappedFile{Path: "/w/d/table"}
	shared := func(context.Context) ([]cell.MappedFile, error) { return []cell.MappedFile{mapped}, nil }
	at := k
	for _, word := range []string{"bbbb", "cccc", "eeee", "dddd"} {
		switch word {
		case "eeee": // under another name: the kernel knows it by that which it had
			in.Do(Op{Do: "link", Path: "d/table", To: "d/other"}, Op{Do: "remove", Path: "d/table"})
			mapped.Path += " (deleted)"
			if b.p.Mounts() {
				var st unix.Stat_t
				b.must(unix.Lstat(filepath.Join(b.root, g.Layer, "fs/d/other"), &st))
				mapped.Inode = st.Ino
			}
		case "dddd":
			shared = nil // it was held when the last snapshot was taken
		}
		b.must(b.settle())
		s, err := b.p.Snapshot(ctx, g, workspace.SnapshotOptions{Mapped: shared, Stands: b.stands})
		b.must(err)
		b.must(s.Ahead(ctx))
		if shared != nil {
			in.Do(Op{Do: "poke", Path: "d/table", Data: word})
		}
		b.must(s.Take(ctx))
		b.must(s.After(ctx))
		state, err := s.Done(ctx)
		b.must(err)
		at = b.read(at, state)
		if d := cmp.Diff(in.Look(), b.view(at.tree)); d != "" {
			t.Fatalf("%s was not seen (- seen, + tree):\n%s", word, d)
		}
		b.must(s.Keep(state))
		b.must(s.Drop())
		if word == "eeee" {
			in.Do(Op{Do: "poke", Path: "d/table", Data: "dddd"})
		}
	}
}

// copiesWhatChanged: a snapshot has what changed since the last, and nothing else.
func copiesWhatChanged(t *testing.T, make New) {
	b := lay(t, make)
	k := b.run(b.empty(), W("base", "0")...)
	g := b.begin(k)
	if !b.p.Mounts() {
		return // its copies are whole
	}
	in := b.enter(g)
	for i := range 30 {
		in.Do(W(fmt.Sprintf("d%d/f", i), "1")...)
	}
	take := func() (workspace.State, []string) {
		t.Helper()
		in.Look()
		b.must(b.settle())
		s, err := b.p.Snapshot(ctx, g, workspace.SnapshotOptions{Stands: b.stands})
		b.must(err)
		defer func() { b.must(s.Drop()) }()
		b.must(s.Take(ctx))
		b.must(s.After(ctx))
		state, err := s.Done(ctx)
		b.must(err)
		b.must(s.Keep(state))
		var has []string
		if layer := s.Made(); layer != "" {
			top := filepath.Join(b.root, layer, "fs")
			b.must(filepath.WalkDir(top, func(at string, d os.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					has = append(has, strings.TrimPrefix(at, top+"/"))
				}
				return err
			}))
		}
		return state, has
	}
	first, has := take()
	if len(has) != 30 {
		t.Errorf("the first snapshot has %d files", len(has))
	}
	again, has := take()
	if !again.Same(first) || has != nil {
		t.Errorf("of what has not changed there is %v with %q", again.Layers, has)
	}
	unmoved := func() bool {
		t.Helper()
		in.Look()
		s, err := b.p.Snapshot(ctx, g, workspace.SnapshotOptions{Stands: b.stands})
		b.must(err)
		state, ok, err := s.Unmoved(ctx)
		b.must(err)
		b.must(s.Drop())
		if ok && !state.Same(first) {
			t.Errorf("what is unmoved is said to be %v, not %v", state.Layers, first.Layers)
		}
		return ok
	}
	layers := len(b.layers())
	if !unmoved() {
		t.Error("what has not changed is said to have moved")
	}
	if n := len(b.layers()); n != layers {
		t.Errorf("a look made %d layers", n-layers)
	}
	in.Do(ops(W("d7/f", "2"), []Op{{Do: "remove", Path: "d9/f"}, {Do: "chmod", Path: "d11", Mode: 0o700}})...)
	if unmoved() {
		t.Error("what has changed is said to be unmoved")
	}
	next, has := take()
	if want := []string{"d7/f", "d9/f"}; !slices.Equal(has, want) || len(next.Layers) != len(first.Layers)+1 {
		t.Errorf("after a change there are %d layers, not %d, the top with %q", len(next.Layers), len(first.Layers)+1, has)
	}
	in.Do([]Op{{Do: "folder", Path: "e"}, {Do: "link", Path: "d1/f", To: "e/l"}}...)
	take()
	in.Do(Op{Do: "rename", Path: "e", To: "n"}) // which does not touch the file: both names are copied all the same
	if _, has := take(); !slices.Equal(has, []string{"d1/f", "e", "n/l"}) {
		t.Errorf("after the folder of a name was renamed there are %q", has)
	}
	next, _ = take()
	in.Do(W("large", string(make2(2<<20)))...)
	s, err := b.p.Snapshot(ctx, g, workspace.SnapshotOptions{Most: 1 << 20})
	b.must(err)
	if err := s.Take(ctx); cell.KindOf(err) != cell.TooLarge {
		t.Errorf("a copy of more than its most: %v", err)
	}
	b.must(s.Drop())
	in.Do(Op{Do: "remove", Path: "large"})
	// What it stood on is gone.
	b.must(b.p.Drop(next.Layers[len(next.Layers)-1]))
	if alone, has := take(); len(alone.Layers) != len(k.Layers)+1 || len(has) != 30 {
		t.Errorf("without the last snapshot there are %d layers, the top with %q", len(alone.Layers), has)
	}
}

// stands reports whether the layers of a state are there.
func (b *bed) stands(s workspace.State) bool {
	return !slices.ContainsFunc(s.Layers, func(l string) bool { return !slices.Contains(b.layers(), l) })
}
