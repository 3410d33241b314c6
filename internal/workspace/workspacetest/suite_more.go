package workspacetest

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

func snapshots(t *testing.T, make New) {
	b := lay(t, make)
	k := b.run(b.empty(), ops(W("d/old", "o"), W("gone", "g"), W("e/x", "x"))...)
	g := b.begin(k)
	in := b.enter(g)
	in.Do(ops(W("d/new", "1"), []Op{{Do: "remove", Path: "gone"}, {Do: "remove", Path: "e"}, {Do: "mkdir", Path: "e"},
		{Do: "link", Path: "d/new", To: "twin"}, {Do: "xattr", Path: "d", Data: "v"}, {Do: "symlink", Path: "s", To: "x"}})...)
	saw := in.Look()
	s, err := b.snapshot(g)
	b.must(err)
	if slices.Contains(s.Layers, g.Layer) {
		t.Fatal("the snapshot has the writable layer")
	}
	in.Do(ops(W("later", "2"), []Op{{Do: "append", Path: "d/new", Data: "!"}, {Do: "remove", Path: "d/old"}})...)
	snap := b.read(k, s)
	if d := cmp.Diff(saw, b.view(snap.tree)); d != "" {
		t.Errorf("the snapshot is not that moment (- seen, + tree):\n%s", d)
	}
	after := in.Look()
	in.Leave()
	end := b.freeze(k, g)
	if d := cmp.Diff(after, b.view(end.tree)); d != "" {
		t.Errorf("the generation did not go on (- seen, + tree):\n%s", d)
	}
	b.whole(snap)
	b.shows(snap)
	b.shows(end)
}

func stamps(t *testing.T, make New) {
	b := lay(t, make)
	k := b.run(b.empty(), ops(W("d/old", "old"), W("gone", "g"), W("moves", "m"))...)
	g := b.begin(k)
	in := b.enter(g)
	settled := func() cell.Digest {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
			sum, ok, err := b.p.Stamp(ctx, g)
			b.must(err)
			if ok {
				return sum
			}
			if time.Now().After(end) {
				t.Fatal("the stamp never settled")
			}
		}
	}
	was := settled()
	for _, o := range [][]Op{
		W("d/new", "1"), {{Do: "append", Path: "d/new", Data: "2"}}, W("d/new", "34"), {{Do: "append", Path: "d/old", Data: "!"}},
		{{Do: "remove", Path: "gone"}}, {{Do: "mkdir", Path: "e"}}, {{Do: "symlink", Path: "s", To: "x"}}, {{Do: "rename", Path: "moves", To: "e/moved"}},
		{{Do: "chmod", Path: "d/new", Mode: 0o755}},
	} {
		if again := settled(); again != was {
			t.Errorf("before %+v the stamp changed by itself", o)
		}
		in.Do(o...)
		if sum, _, err := b.p.Stamp(ctx, g); err != nil || sum == was {
			t.Errorf("after %+v it is the same, %v", o, err)
		}
		was = settled()
	}
	in.Leave()
}

func resumes(t *testing.T, make New) {
	b := lay(t, make)
	k := b.run(b.empty(), W("a", "0")...)
	g := b.begin(k)
	in := b.enter(g)
	in.Do(W("b", "1")...)
	in.Leave()
	b.p = make(b.root) // a new daemon
	b.must(b.p.Resume(ctx, g))
	in = b.enter(g)
	in.Do(Op{Do: "append", Path: "b", Data: "2"})
	saw := in.Look()
	in.Leave()
	if d := cmp.Diff(saw, b.view(b.freeze(k, g).tree)); d != "" || saw["b"].Size != 2 {
		t.Errorf("b has %d bytes; (- seen, + tree):\n%s", saw["b"].Size, d)
	}
}

func placed(t *testing.T, make New) {
	b := lay(t, make)
	k := b.run(b.empty(), W("d/a", "0")...)
	place := t.TempDir()
	g, err := b.p.Begin(ctx, k.State, k.tree.Root, place)
	b.must(err)
	in := b.enter(g)
	in.Do(ops(W("d/b", "1"), []Op{{Do: "remove", Path: "d/a"}})...)
	saw := in.Look()
	if found := inodes(t, filepath.Join(place, g.Layer, "fs")); len(found) == 0 {
		t.Error("nothing was written to the place")
	}
	in.Leave()
	s, err := b.p.Freeze(ctx, g)
	b.must(err)
	b.must(b.p.Drop(g.Layer))
	if left, err := os.ReadDir(place); err != nil || len(left) > 0 {
		t.Errorf("the place still holds %v, %v", left, err)
	}
	now := b.read(k, s)
	if d := cmp.Diff(saw, b.view(now.tree)); d != "" {
		t.Errorf("- seen, + tree:\n%s", d)
	}
	b.shows(now)
}

func (b *bed) layers() []string {
	b.t.Helper()
	all, err := b.p.Layers()
	b.must(err)
	return all
}

func beginFails(t *testing.T, make New) {
	b := lay(t, make)
	k := b.run(b.empty(), W("a", "0")...)
	had := b.layers()
	if _, err := b.p.Begin(ctx, k.State, k.tree.Root, filepath.Join(b.root, "no", "such", "place")); err == nil {
		t.Fatal("a generation in a place that is not there")
	}
	if now := b.layers(); !slices.Equal(had, now) {
		t.Errorf("layers before %v, now %v", had, now)
	}
	if left, _ := os.ReadDir(b.root); len(left) != len(had) {
		t.Errorf("%d things among %d layers", len(left), len(had))
	}
}

func verified(t *testing.T, make New) {
	b := lay(t, make)
	k := b.run(b.empty(), ops(W("a", "one"), W("d/e/b", "two"))...)
	k = b.run(k, ops(W("d/e/c", "three"), []Op{{Do: "append", Path: "a", Data: "!"}})...)
	c := b.p.Contents(k.State)
	for p, want := range map[string]string{"a": "one!", "d/e/b": "two", "d/e/c": "three"} {
		e, err := k.tree.Lookup(p)
		b.must(err)
		if got, err := readAll(c, p, e); got != want || err != nil {
			t.Errorf("%s is %q, %v", p, got, err)
		}
	}
	for _, p := range []string{"nothing", "d/e/nothing", "a/b"} {
		if _, err := readAll(c, p, workspace.Entry{Type: workspace.File}); err == nil {
			t.Errorf("%s could be opened", p)
		}
	}
	at := filepath.Join(b.root, k.Layers[len(k.Layers)-1], "fs/d/e/c")
	b.must(os.WriteFile(at, []byte("THREE"), 0o600))
	e, err := k.tree.Lookup("d/e/c")
	b.must(err)
	if _, err := readAll(c, "d/e/c", e); cell.KindOf(err) != cell.Corrupt {
		t.Errorf("a changed layer was read: %v", err)
	}
}

func extends(t *testing.T, make New) {
	b := lay(t, make)
	k := b.run(b.empty(), ops(W("a", "0"), W("d/b", "1"), W("d/c", "2"))...)
	was := b.layers()
	for _, abort := range []bool{true, false} {
		w, err := b.p.Extend(ctx, k.State)
		b.must(err)
		b.must(os.WriteFile(filepath.Join(w.Dir(), "new"), []byte("n"), 0o644))
		b.must(w.Remove("a"))
		if w.Sparse() {
			b.must(os.Mkdir(filepath.Join(w.Dir(), "d"), 0o755))
		}
		b.must(w.Remove("d/b"))
		if abort {
			w.Abort()
			if now := b.layers(); !slices.Equal(was, now) {
				t.Errorf("after Abort there are %v, not %v", now, was)
			}
			continue
		}
		s, err := w.Done()
		b.must(err)
		w.Abort() // does nothing any more
		now := b.read(k, s)
		var paths []string
		for p := range b.view(now.tree) {
			paths = append(paths, p)
		}
		slices.Sort(paths)
		if want := []string{"", "d", "d/c", "new"}; !slices.Equal(paths, want) {
			t.Errorf("it has %q", paths)
		}
		b.shows(now)
	}
	b.whole(k)
}

// forbidden: the owner of a file may have taken its own rights away.
func forbidden(t *testing.T, make New) {
	b := lay(t, make)
	k := b.run(b.empty(), ops(W("d/e/f", "0"), W("g", "1"), W("h/i", "2"), []Op{
		{Do: "chmod", Path: "d/e", Mode: 0}, {Do: "chmod", Path: "d", Mode: 0o400}, {Do: "chmod", Path: "g", Mode: 0}, {Do: "chmod", Path: "h", Mode: 0o300}})...)
	b.shows(k)
	e, err := k.tree.Lookup("d/e/f")
	b.must(err)
	if s, err := readAll(b.p.Contents(k.State), "d/e/f", e); s != "0" || err != nil {
		t.Errorf("d/e/f is %q, %v", s, err)
	}
	k = b.run(k, Op{Do: "append", Path: "d/e/f", Data: "1"}, Op{Do: "remove", Path: "h"})
	b.shows(k)
	g := b.begin(k)
	in := b.enter(g)
	in.Do(Op{Do: "append", Path: "g", Data: "1"})
	s, err := b.snapshot(g)
	b.must(err)
	in.Leave()
	b.shows(b.read(k, s))
	for _, l := range b.layers() {
		b.must(b.p.Drop(l))
	}
}

// owners: a state keeps the owners of files, though digests do not cover them.
func owners(t *testing.T, make New) {
	if os.Geteuid() != 0 {
		t.Skip("needs root") // an ordinary user's workspace has one owner
	}
	b := lay(t, make)
	k := b.run(b.empty(), ops(W("d/f", "0"), W("plain", ""), []Op{{Do: "symlink", Path: "s", To: "x"}, {Do: "fifo", Path: "p"},
		{Do: "chown", Path: "d", Mode: 7}, {Do: "chown", Path: "d/f", Mode: 8}, {Do: "chown", Path: "s", Mode: 9}, {Do: "chown", Path: "p", Mode: 10}})...)
	check := func(what string, k point) {
		t.Helper()
		g := b.begin(k)
		m := b.p.Mount(g, "/w")
		for p, want := range map[string]uint32{"d": 7, "d/f": 8, "s": 9, "p": 10} {
			at := find(m, p)
			var st unix.Stat_t
			if err := unix.Lstat(at, &st); err != nil || st.Uid != want || st.Gid != want+1 {
				t.Errorf("%s: %s belongs to %d:%d, not %d:%d (%v)", what, p, st.Uid, st.Gid, want, want+1, err)
			}
		}
		b.must(b.p.Drop(g.Layer))
	}
	check("frozen", k)
	g := b.begin(k)
	in := b.enter(g)
	in.Do(Op{Do: "chmod", Path: "d", Mode: 0o750}, Op{Do: "times", Path: "s", Time: 1}, Op{Do: "times", Path: "p", Time: 1}, Op{Do: "append", Path: "d/f", Data: "1"})
	s, err := b.snapshot(g)
	b.must(err)
	in.Leave()
	check("copied", b.read(k, s))
	check("compacted", b.compacted(k))
}

// find looks for a path in the directories of a mount, topmost first.
func find(m cell.Mount, path string) string {
	for _, d := range append([]string{m.Source, m.Upper}, m.Lower...) {
		if d == "" {
			continue
		}
		if at := filepath.Join(d, path); unix.Access(at, unix.F_OK) == nil || isLink(at) {
			return at
		}
	}
	return ""
}

func isLink(at string) bool {
	_, err := os.Readlink(at)
	return err == nil
}

// compacted makes a chain over k long enough to be compacted.
func (b *bed) compacted(k point) point {
	b.t.Helper()
	for i := range 200 {
		s, err := b.p.Compact(ctx, k.State, k.tree)
		b.must(err)
		if !s.Same(k.State) {
			return point{s, k.tree}
		}
		w, err := b.p.Extend(ctx, k.State)
		b.must(err)
		if !w.Sparse() {
			w.Abort()
			return k // one layer always
		}
		b.must(os.WriteFile(filepath.Join(w.Dir(), "step"), []byte(strconv.Itoa(i)), 0o644))
		if s, err = w.Done(); err != nil {
			b.t.Fatal(err)
		}
		t, err := b.p.Tree(ctx, k.tree, s)
		b.must(err)
		k = point{s, t}
	}
	b.t.Fatal("a chain of 200 layers was not compacted")
	return k
}

func longChains(t *testing.T, make New) {
	b := lay(t, make)
	things := manyThings()
	k := b.run(b.empty(), things[:len(things)-1]...)
	k = b.run(k, Op{Do: "rename", Path: "d/twin", To: "moved"}, Op{Do: "remove", Path: "d/e/f"}, Op{Do: "chmod", Path: "d/e", Mode: 0o711})
	if os.Geteuid() == 0 { // overlayfs gives an ordinary user EXDEV, and mv copies then
		k = b.run(k, Op{Do: "rename", Path: "d", To: "e"})
	}
	old := k
	c := b.compacted(k)
	b.whole(c)
	b.shows(c)
	b.whole(old)
	end := b.run(c, ops(W("e2/after", "1"), []Op{{Do: "append", Path: "moved", Data: "!"}, {Do: "remove", Path: "twin"}})...)
	b.whole(c)
	if b.p.Mounts() {
		if len(c.Layers) != 1 {
			t.Fatalf("%d layers are left", len(c.Layers))
		}
		for _, l := range b.layers() {
			if !slices.Contains(end.Layers, l) {
				b.must(b.p.Drop(l))
			}
		}
		b.whole(c)
		b.shows(end)
	}
}

// fullDisk: what can't be written leaves nothing behind, and what was there is
// whole.
func fullDisk(t *testing.T, make New) {
	if os.Geteuid() != 0 {
		t.Skip("needs root") // to mount a small disk
	}
	b := lay(t, make)
	if err := unix.Mount("tmpfs", b.root, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("needs a file system of its own: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(b.root, unix.MNT_DETACH) })
	k := b.run(b.empty(), ops(W("d/base", "0"), W("gone", "1"))...)
	g := b.begin(k)
	in := b.enter(g)
	in.Do(ops(W("d/new", string(make2(1<<20))), []Op{{Do: "remove", Path: "gone"}})...)
	filler := filepath.Join(b.root, "filler")
	f, err := os.Create(filler)
	b.must(err)
	for err == nil {
		_, err = f.Write(make2(64 << 10))
	}
	f.Close()
	had := b.layers()
	if _, err := b.snapshot(g); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a snapshot on a full disk: %v", err)
	}
	if w, err := b.p.Extend(ctx, k.State); err == nil {
		err = os.WriteFile(filepath.Join(w.Dir(), "more"), make2(64<<10), 0o600)
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("an extension on a full disk: %v", err)
		}
		w.Abort()
	}
	if now := b.layers(); !slices.Equal(had, now) {
		t.Errorf("layers before %v, now %v", had, now)
	}
	b.whole(k)
	b.must(os.Remove(filler))
	in.Do(W("d/after", "2")...)
	saw := in.Look()
	in.Leave()
	end := b.freeze(k, g)
	if d := cmp.Diff(saw, b.view(end.tree)); d != "" {
		t.Errorf("afterwards (- seen, + tree):\n%s", d)
	}
	b.shows(k)
}

func drops(t *testing.T, make New) {
	b := lay(t, make)
	k := b.run(b.empty(), ops(W("a", string(make2(64<<10))), W("d/b", "1"))...)
	g := b.begin(k)
	all := b.layers()
	if !slices.Contains(all, g.Layer) || !slices.Contains(all, k.Layers[0]) {
		t.Fatalf("layers are %v", all)
	}
	if n, err := b.p.Size(k.Layers[len(k.Layers)-1]); err != nil || n < 64<<10 || n > 1<<20 {
		t.Errorf("the layer holds %d bytes, %v", n, err)
	}
	for _, l := range all {
		b.must(b.p.Drop(l))
		b.must(b.p.Drop(l)) // again
	}
	if left, err := os.ReadDir(b.root); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func make2(n int) []byte {
	b := []byte{}
	for i := range n {
		b = append(b, byte(i*i>>3))
	}
	return b
}
