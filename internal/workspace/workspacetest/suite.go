package workspacetest

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// New makes a provider over a directory, as an earlier one left it.
type New func(root string) workspace.Provider

// Suite is what every provider must pass. The test's TestMain calls Main.
func Suite(t *testing.T, make New) {
	for _, c := range []struct {
		name string
		f    func(*testing.T, New)
	}{
		{"a generation looks like its base", looksLikeItsBase},
		{"everything a cell can make", everything},
		{"what is in the way of a layer", inTheWay},
		{"freezing moves nothing", freezingMovesNothing},
		{"unchanged", unchanged},
		{"F13 a checkpoint holds its moment", holdsItsMoment},
		{"F16 a folder swapped for a symlink", swapped},
		{"F17 changes without times", changesWithoutTimes},
		{"F34 forks share no writable file", forksShareNothing},
		{"resumes", resumes},
		{"a place of its own", placed},
		{"X26 names of one file stay one file", joins},
		{"begins nothing when it fails", beginFails},
		{"contents are verified", verified},
		{"extends", extends},
		{"folders that may not be entered", forbidden},
		{"owners survive", owners},
		{"long chains", longChains},
		{"F23 a full disk", fullDisk},
		{"drops", drops},
	} {
		t.Run(c.name, func(t *testing.T) { c.f(t, make) })
	}
	Snapshots(t, make)
}

// Snapshots is the part of Suite about copies of generations in use.
func Snapshots(t *testing.T, make New) {
	for _, c := range []struct {
		name string
		f    func(*testing.T, New)
	}{
		{"snapshots under living processes", snapshots},
		{"snapshots follow one another", snapshotsFollow},
		{"stamps tell changes", stamps},
		{"snapshots have what was written through memory", writtenThroughMemory},
		{"snapshots copy what changed", copiesWhatChanged},
	} {
		t.Run(c.name, func(t *testing.T) { c.f(t, make) })
	}
}

// bed is a provider under test.
type bed struct {
	t    testing.TB
	p    workspace.Provider
	root string
	objs *Objects
}

func lay(t testing.TB, make New) *bed {
	t.Helper()
	b := &bed{t: t, root: filepath.Join(t.TempDir(), "layers"), objs: NewObjects()}
	if err := os.Mkdir(b.root, 0o700); err != nil {
		t.Fatal(err)
	}
	b.p = make(b.root)
	t.Cleanup(func() { workspace.RemoveTree(b.root) })
	return b
}

var ctx = context.Background()

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// point is a state with its tree.
type point struct {
	workspace.State
	tree *workspace.Tree
}

// empty is a base in which there is nothing.
func (b *bed) empty() point {
	b.t.Helper()
	w, err := b.p.Extend(ctx, workspace.State{})
	b.must(err)
	b.must(os.Chmod(w.Dir(), 0o755))
	s, err := w.Done()
	b.must(err)
	t, err := workspace.EmptyTree(b.objs)
	b.must(err)
	t, err = b.p.Tree(ctx, t, s)
	b.must(err)
	return point{s, t}
}

func (b *bed) begin(at point) workspace.Generation {
	b.t.Helper()
	g, err := b.p.Begin(ctx, at.State, at.tree.Root, "")
	b.must(err)
	groups, _, err := at.tree.Joinable(workspace.MaxJoinedNames, workspace.MaxJoinedBytes)
	b.must(err)
	b.must(b.p.Join(ctx, g, groups))
	return g
}

func (b *bed) enter(g workspace.Generation) *Inside {
	b.t.Helper()
	return Enter(b.t, b.p.Mount(g, "/w"))
}

// freeze makes g a state and its tree, found in the cheap way, and holds the
// tree against that of a whole walk.
func (b *bed) freeze(at point, g workspace.Generation) point {
	b.t.Helper()
	s, err := b.p.Freeze(ctx, g)
	b.must(err)
	if !slices.Contains(s.Layers, g.Layer) {
		b.must(b.p.Drop(g.Layer))
	}
	return b.read(at, s)
}

// snapshot copies g as it is now.
func (b *bed) snapshot(g workspace.Generation) (workspace.State, error) {
	s, _, err := workspace.SnapshotNow(ctx, b.p, g)
	return s, err
}

// settle waits until the times of what was written last are older than what snapshots doubt.
func (b *bed) settle() error {
	at := filepath.Join(b.root, "tick")
	now := func() (time.Time, error) {
		if err := os.WriteFile(at, nil, 0o600); err != nil {
			return time.Time{}, err
		}
		fi, err := os.Stat(at)
		if err != nil {
			return time.Time{}, err
		}
		return fi.ModTime(), os.Remove(at)
	}
	first, err := now()
	for is := first; err == nil && is.Sub(first).Nanoseconds() <= 2*workspace.RacySlack; {
		is, err = now()
	}
	return err
}

func (b *bed) read(at point, s workspace.State) point {
	b.t.Helper()
	if s.Same(at.State) {
		return at
	}
	tree, err := b.p.Tree(ctx, at.tree, s)
	b.must(err)
	p := point{s, tree}
	b.whole(p)
	return p
}

// whole checks a state by reading all of it.
func (b *bed) whole(p point) {
	b.t.Helper()
	walked, err := b.p.Walk(ctx, p.State, b.objs)
	b.must(err)
	if walked.Digest() != p.tree.Digest() {
		b.t.Fatalf("the tree is not what a walk finds:\n%s", cmp.Diff(b.view(walked), b.view(p.tree)))
	}
}

func (b *bed) view(t *workspace.Tree) View {
	b.t.Helper()
	v, err := ViewOf(t)
	b.must(err)
	return v
}

// run does something in a new generation over at, and freezes it; what the
// process inside saw at its end is what the tree must say.
func (b *bed) run(at point, ops ...Op) point {
	b.t.Helper()
	g := b.begin(at)
	in := b.enter(g)
	in.Do(ops...)
	saw := in.Look()
	in.Leave()
	p := b.freeze(at, g)
	if d := cmp.Diff(saw, b.view(p.tree)); d != "" {
		b.t.Fatalf("the tree is not what was seen inside (- seen, + tree):\n%s", d)
	}
	return p
}

// shows checks what a cell over a state sees.
func (b *bed) shows(p point) {
	b.t.Helper()
	g := b.begin(p)
	in := b.enter(g)
	saw := in.Look()
	in.Leave()
	if d := cmp.Diff(b.view(p.tree), saw); d != "" {
		b.t.Fatalf("a cell sees something else (- tree, + seen):\n%s", d)
	}
	b.must(b.p.Drop(g.Layer))
}

func ops(lists ...[]Op) []Op { return slices.Concat(lists...) }

func looksLikeItsBase(t *testing.T, make New) {
	b := lay(t, make)
	k := b.run(b.empty(), ops(W("a", "1"), []Op{{Do: "chmod", Path: ".", Mode: 0o1751}, {Do: "xattr", Path: ".", Data: "top"}, {Do: "times", Path: ".", Time: 77}})...)
	b.shows(k)
	if again := b.run(k, Op{Do: "xattr", Path: ".", Data: "only this"}); again.tree.Digest() == k.tree.Digest() {
		t.Error("another attribute of the top was not seen")
	}
	if r := k.tree.Root; r.Mode != 0o1751 || r.MTime != 77 || len(r.XAttrs) != 1 {
		t.Errorf("the top is %+v", r)
	}
}

// manyThings makes at least one of everything.
func manyThings() []Op {
	return ops(W("d/e/f/deep", "deep"), W("a", "1"), W("empty", ""), W("\xff\xfe", "odd"), W("new\nline", "x"), W(fmt.Sprintf("%0255d", 1), "long"),
		W("d/twin", "same"), []Op{
			{Do: "link", Path: "d/twin", To: "twin"}, {Do: "link", Path: "twin", To: "d/e/twin"},
			{Do: "symlink", Path: "in", To: "d/e"}, {Do: "symlink", Path: "out", To: "/etc/passwd"}, {Do: "symlink", Path: "dangling", To: "nowhere\xff"},
			{Do: "mkdir", Path: "hollow"}, {Do: "fifo", Path: "pipe"}, {Do: "socket", Path: "sock"},
			{Do: "sparse", Path: "holes", Data: "end"},
			{Do: "xattr", Path: "a", Data: "v\x00w"}, {Do: "xattr", Path: "d", Data: "dir"},
			{Do: "chmod", Path: "a", Mode: 0o400}, {Do: "chmod", Path: "empty", Mode: 0o4755}, {Do: "chmod", Path: "hollow", Mode: 0o1777},
			{Do: "times", Path: "a", Time: 1_000_000_007}, {Do: "times", Path: "in", Time: -5_000_000_000},
			{Do: "times", Path: "d/e", Time: 123_456_789_000_000_001}, {Do: "times", Path: "", Time: 42},
		})
}

func everything(t *testing.T, make New) {
	b := lay(t, make)
	all := manyThings()
	all[len(all)-1].Path = "."
	k := b.run(b.empty(), all...)
	if n := len(b.view(k.tree)); n != 20 {
		t.Fatalf("%d things, not 20", n)
	}
	b.shows(k)
}

func inTheWay(t *testing.T, make New) {
	b := lay(t, make)
	k := b.run(b.empty(), manyThings()[:len(manyThings())-1]...)
	k = b.run(k, ops([]Op{
		{Do: "remove", Path: "d"}, {Do: "remove", Path: "a"}, {Do: "remove", Path: "sock"},
		{Do: "remove", Path: "hollow"}, {Do: "replace", Path: "empty", Data: "new"},
		{Do: "remove", Path: "in"}, {Do: "rename", Path: "out", To: "in"},
	}, W("d/e/other", "only this is in d now"), W("a/was/a/file", "x"), W("hollow", "was a folder"))...)
	v := b.view(k.tree)
	for _, gone := range []string{"d/e/f", "d/twin", "sock", "out", "d/e/twin"} {
		if _, ok := v[gone]; ok {
			t.Errorf("%s is still there", gone)
		}
	}
	b.shows(k)
	k = b.run(k, W("d/e/f/deep", "again")...)
	k = b.run(k, Op{Do: "remove", Path: "a"}, Op{Do: "mkdir", Path: "a"}, Op{Do: "chmod", Path: "d", Mode: 0o700})
	b.shows(k)
	if _, ok := b.view(k.tree)["a/was"]; ok {
		t.Error("a folder made anew shows what was in the old one")
	}
}

// inodes lists the regular files below a directory.
func inodes(t testing.TB, dir string) map[string]uint64 {
	t.Helper()
	m := map[string]uint64{}
	err := filepath.WalkDir(dir, func(at string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var st unix.Stat_t
			if err = unix.Lstat(at, &st); err == nil {
				m[at] = st.Ino
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func freezingMovesNothing(t *testing.T, make New) {
	b := lay(t, make)
	k := b.run(b.empty(), W("kept", "k")...)
	g := b.begin(k)
	in := b.enter(g)
	in.Do(ops(W("d/x", "1"), W("y", "2"))...)
	in.Leave()
	dir := filepath.Join(b.root, g.Layer, "fs")
	before := inodes(t, dir)
	s, err := b.p.Freeze(ctx, g)
	b.must(err)
	if len(before) < 2 || !slices.Contains(s.Layers, g.Layer) {
		t.Fatalf("layer %s with %d files is not in %v", g.Layer, len(before), s.Layers)
	}
	if d := cmp.Diff(before, inodes(t, dir)); d != "" {
		t.Errorf("freezing moved files:\n%s", d)
	}
	again, err := b.p.Freeze(ctx, g)
	b.must(err)
	if !again.Same(s) {
		t.Errorf("frozen again it is %v, not %v", again, s)
	}
	b.read(k, s)
}

func unchanged(t *testing.T, make New) {
	b := lay(t, make)
	k := b.run(b.empty(), manyThings()[:len(manyThings())-1]...)
	same := b.run(k)
	if same.tree.Digest() != k.tree.Digest() {
		t.Errorf("an unchanged workspace has another tree:\n%s", cmp.Diff(b.view(k.tree), b.view(same.tree)))
	}
	// Also when the folder itself has the time that it had.
	top := k.tree.Root.MTime
	back := b.run(k, Op{Do: "write", Path: "z"}, Op{Do: "remove", Path: "z"}, Op{Do: "times", Path: ".", Time: top})
	if back.tree.Digest() != k.tree.Digest() {
		t.Errorf("what was taken back is still there:\n%s", cmp.Diff(b.view(k.tree), b.view(back.tree)))
	}
}

func holdsItsMoment(t *testing.T, make New) {
	b := lay(t, make)
	first := b.run(b.empty(), W("base", "0")...)
	k := b.run(first, ops(W("work", "of A"), []Op{{Do: "append", Path: "base", Data: "A"}})...)
	want := k.tree.Digest()
	worse := b.run(k, Op{Do: "remove", Path: "work"}, Op{Do: "write", Path: "base", Data: "B"})
	b.run(worse, W("more", "m")...)
	for _, at := range []point{k, first} {
		b.whole(at)
		b.shows(at)
	}
	if k.tree.Digest() != want {
		t.Error("the checkpoint's digest changed")
	}
	if e, err := k.tree.Lookup("work"); err != nil || e.Size != 4 {
		t.Errorf("A's work is not in the checkpoint: %v", err)
	}
	if _, err := first.tree.Lookup("work"); cell.KindOf(err) != cell.NotFound {
		t.Error("A's work is in the checkpoint before it")
	}
}

func swapped(t *testing.T, make New) {
	b := lay(t, make)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "x"), []byte("outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	was, err := Look(outside)
	b.must(err)
	k := b.run(b.empty(), ops(W("d/x", "inside"), W("s/y", "2"))...)
	bad := b.run(k, Op{Do: "remove", Path: "d"}, Op{Do: "symlink", Path: "d", To: outside},
		Op{Do: "remove", Path: "s"}, Op{Do: "symlink", Path: "s", To: "/"})
	if e, err := bad.tree.Lookup("d"); err != nil || e.Target != outside {
		t.Errorf("the symlink is %+v, %v", e, err)
	}
	if _, err := b.p.Contents(bad.State).Open("d/x", workspace.Entry{Type: workspace.File}); err == nil {
		t.Error("a file was opened through a symlink")
	}
	b.shows(k)
	worst := b.run(bad, Op{Do: "chmod", Path: ".", Mode: 0o755}, Op{Do: "remove", Path: "d"}, Op{Do: "mkdir", Path: "d"})
	b.shows(worst)
	for _, l := range worst.Layers {
		b.must(b.p.Drop(l))
	}
	now, err := Look(outside)
	b.must(err)
	if d := cmp.Diff(was, now); d != "" {
		t.Errorf("what the symlink led to changed:\n%s", d)
	}
}

func changesWithoutTimes(t *testing.T, make New) {
	b := lay(t, make)
	many := ops(W("a", "AAAA"), W("m", "MMMM"), []Op{{Do: "times", Path: "a", Time: 1e18}, {Do: "times", Path: "m", Time: 1e18}, {Do: "mkdir", Path: "z"}})
	for i := range 2000 { // so that what is copied first is old enough to be trusted when all is
		many = append(many, Op{Do: "write", Path: fmt.Sprint("z/", i), Data: "z"})
	}
	k := b.run(b.empty(), many...)
	now := b.run(k, Op{Do: "write", Path: "a", Data: "BBBB"}, Op{Do: "times", Path: "a", Time: 1e18}, Op{Do: "map", Path: "m", Data: "X"})
	for _, p := range []string{"a", "m"} {
		o, err := k.tree.Lookup(p)
		b.must(err)
		n, err := now.tree.Lookup(p)
		b.must(err)
		if o.MTime != n.MTime || o.Digest == n.Digest {
			t.Errorf("%s: time %d and %d, digest %s and %s", p, o.MTime, n.MTime, o.Digest.Short(), n.Digest.Short())
		}
	}
}

func forksShareNothing(t *testing.T, make New) {
	b := lay(t, make)
	k := b.run(b.empty(), ops(W("a", "0000"), W("d/b", "0000"), W("m", "0000"), []Op{{Do: "link", Path: "a", To: "twin"}})...)
	var gens []workspace.Generation
	var in []*Inside
	for range 3 {
		gens = append(gens, b.begin(k))
		in = append(in, b.enter(gens[len(gens)-1]))
	}
	for i := range in {
		mine := fmt.Sprint("fork", i)
		in[i].Do(ops([]Op{{Do: "write", Path: "a", Data: mine}, {Do: "append", Path: "d/b", Data: mine}, {Do: "map", Path: "m", Data: mine},
			{Do: "append", Path: "twin", Data: mine}, {Do: "chmod", Path: "d", Mode: 0o700 + uint32(i)}}, W("d/"+mine, ""))...)
	}
	owner := map[uint64]int{}
	for _, ino := range inodes(t, filepath.Join(b.root, k.Layers[0], "fs")) {
		owner[ino] = -1
	}
	for i := range in {
		for at, ino := range inodes(t, filepath.Join(b.root, gens[i].Layer, "fs")) {
			if o, taken := owner[ino]; taken && o != i {
				t.Errorf("%s of fork %d is also a file of %d", at, i, o)
			}
			owner[ino] = i
		}
	}
	b.whole(k)
	for i := range in {
		v := in[i].Look()
		other := fmt.Sprint("d/fork", (i+1)%3)
		if _, ok := v[other]; ok || v["d"].Mode != 0o700+uint32(i) {
			t.Errorf("fork %d has something of another", i)
		}
		in[i].Leave()
		if d := cmp.Diff(v, b.view(b.freeze(k, gens[i]).tree)); d != "" {
			t.Errorf("fork %d (- seen, + tree):\n%s", i, d)
		}
	}
	b.whole(k)
	b.shows(k)
}

func readAll(c workspace.Contents, path string, e workspace.Entry) (string, error) {
	f, err := c.Open(path, e)
	if err != nil {
		return "", err
	}
	defer f.Close()
	s, err := io.ReadAll(f)
	return string(s), err
}
