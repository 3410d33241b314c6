package workspacetest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pando-dev/pando/internal/workspace"
)

// joins holds what is written to one name of a file against the others, and what is not
// touched against the base.
func joins(t *testing.T, make New) {
	b := lay(t, make)
	link := func(from, to string) Op { return Op{Do: "link", Path: from, To: to} }
	k := b.run(b.empty(), ops(W("d/e/a", "one"), W("f/x", "x"), W("two", "2"), []Op{link("d/e/a", "b"), link("d/e/a", "f/c"), link("two", "twin"),
		{Do: "xattr", Path: "d", Data: "attribute"}, {Do: "xattr", Path: "b", Data: "attribute"}, {Do: "times", Path: "b", Time: 5e17}, {Do: "chmod", Path: "b", Mode: 0o640},
		{Do: "times", Path: "d/e", Time: 6e17}, {Do: "chmod", Path: "d/e", Mode: 0o500}, {Do: "times", Path: "d", Time: 7e17}, {Do: "times", Path: ".", Time: 8e17}})...)
	groups := func(p point, want ...[]string) {
		t.Helper()
		if !slices.EqualFunc(p.tree.Links, want, slices.Equal) {
			t.Errorf("one file are %v, want %v", p.tree.Links, want)
		}
	}
	same := func(p point, paths ...string) {
		t.Helper()
		first, err := p.tree.Lookup(paths[0])
		b.must(err)
		for _, path := range paths[1:] {
			e, err := p.tree.Lookup(path)
			b.must(err)
			if e.Digest != first.Digest || e.Size != first.Size || e.Mode != first.Mode || e.MTime != first.MTime {
				t.Errorf("%s is %+v, and %s is %+v", path, e, paths[0], first)
			}
		}
	}
	one, two := []string{"b", "d/e/a", "f/c"}, []string{"twin", "two"}
	groups(k, one, two)

	// Nothing happens: nothing changes.
	g := b.begin(k)
	in := b.enter(g)
	in.Look()
	in.Leave()
	s, err := b.p.Freeze(ctx, g)
	b.must(err)
	if b.p.Mounts() && !s.Same(k.State) {
		t.Error("what nothing touched became another state")
	}
	if n := b.read(k, s); n.tree.Digest() != k.tree.Digest() {
		t.Error("what nothing touched has another digest")
	}
	b.must(b.p.Drop(g.Layer))

	// What is written to one name is read at the others, again and again.
	now := b.run(k, Op{Do: "append", Path: "b", Data: "+1"})
	groups(now, one, two)
	same(now, one...)
	if e, err := now.tree.Lookup("f/c"); err != nil || e.Size != 5 || e.Mode != 0o640 {
		t.Errorf("f/c is %+v, %v", e, err)
	}
	if b.p.Mounts() { // and what was not is in the base alone
		for at := range inodes(t, filepath.Join(b.root, now.Layers[len(now.Layers)-1], "fs")) {
			if base := filepath.Base(at); base == "two" || base == "twin" {
				t.Errorf("%s was not touched, and is in the layer", at)
			}
		}
	}
	now = b.run(now, Op{Do: "append", Path: "f/c", Data: "+2"}, Op{Do: "chmod", Path: "twin", Mode: 0o600})
	groups(now, one, two)
	same(now, one...)
	same(now, two...)
	now = b.run(now, Op{Do: "write", Path: "d/new", Data: "n"})
	groups(now, one, two)

	// Names go, are replaced, and come.
	gone := b.run(k, Op{Do: "remove", Path: "b"})
	groups(gone, []string{"d/e/a", "f/c"}, two)
	parted := b.run(k, Op{Do: "replace", Path: "f/c", Data: "another"}, link("two", "third"))
	groups(parted, []string{"b", "d/e/a"}, []string{"third", "twin", "two"})

	// A symlink in the way of a name leads to no other file.
	swapped := []Op{{Do: "remove", Path: "f"}, {Do: "symlink", Path: "f", To: "d/e"}, {Do: "symlink", Path: "link", To: "twin"}}
	if os.Geteuid() == 0 { // else folders of the base can't be renamed
		swapped = append(swapped, Op{Do: "rename", Path: "d", To: "moved"}, Op{Do: "symlink", Path: "d", To: "moved"})
	}
	bad := b.run(k, swapped...)
	if _, err := bad.tree.Lookup("f/c"); err == nil {
		t.Error("f/c is still there")
	}
	b.shows(bad)

	// A snapshot of a cell that goes on.
	g = b.begin(k)
	in = b.enter(g)
	in.Do(Op{Do: "append", Path: "b", Data: "+3"})
	s, err = b.snapshot(g)
	b.must(err)
	snap := b.read(k, s)
	groups(snap, one, two)
	same(snap, one...)
	in.Do(Op{Do: "append", Path: "two", Data: "+4"})
	in.Leave()
	end := b.freeze(k, g)
	groups(end, one, two)
	same(end, two...)
	if s.Same(end.State) || snap.tree.Digest() == end.tree.Digest() {
		t.Error("the snapshot is not of its moment")
	}
	b.shows(snap)

	// There is a limit.
	groupsOf := func(limit int64) (join, rest int) {
		j, r, err := k.tree.Joinable(workspace.MaxJoinedNames, limit)
		b.must(err)
		return len(j), len(r)
	}
	for limit, want := range map[int64][2]int{0: {0, 2}, 2: {1, 1}, 10: {1, 1}, 11: {2, 0}, workspace.MaxJoinedBytes: {2, 0}} {
		if j, r := groupsOf(limit); j != want[0] || r != want[1] {
			t.Errorf("of %d bytes, %d groups are joined and %d are not; want %v", limit, j, r, want)
		}
	}
	if j, r, err := k.tree.Joinable(1, workspace.MaxJoinedBytes); err != nil || len(j) != 0 || len(r) != 2 {
		t.Errorf("of one name at most, %d groups are joined and %d are not (%v)", len(j), len(r), err)
	}
}
