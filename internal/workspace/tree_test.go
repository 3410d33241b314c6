package workspace_test

import (
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// manyThings is a model with one of everything.
func manyThings() wt.Model {
	return wt.Model{
		"a": wt.Plain("1"), "x": wt.Script("#!"), "d/e/f": wt.Plain("2"), "d/g": wt.Link("e/f"), "hollow": {Folder: true, Mode: 0o700, MTime: 9},
		"pipe": {Fifo: true}, "\xff": {Text: "odd", MTime: -1, XAttrs: []workspace.XAttr{{Name: "user.x", Value: "\x00"}}}, ".git/HEAD": wt.Plain("ref"),
	}
}

func tree(t testing.TB, m wt.Model, objs *wt.Objects) *workspace.Tree { return m.Side(t, objs).Tree }

// TestF14IdentityIsContent: the digest of a state is that of what it holds,
// however it came about, and every detail counts.
func TestF14IdentityIsContent(t *testing.T) {
	objs := wt.NewObjects()
	base := tree(t, manyThings(), objs)
	again := tree(t, manyThings(), wt.NewObjects())
	if base.Digest() != again.Digest() || base.ContentDigest() != again.ContentDigest() {
		t.Error("the same made twice has two digests")
	}
	e, err := base.Lookup("d/e/f")
	if err != nil {
		t.Fatal(err)
	}
	edits := map[string]struct {
		f       func(ed *workspace.Editor) error
		content bool // git would see it
	}{
		"name":       {func(ed *workspace.Editor) error { return errors.Join(ed.Remove("d/e/f"), ed.Put("d/e/F", e)) }, true},
		"content":    {func(ed *workspace.Editor) error { n := e; n.Digest[0] ^= 1; return ed.Put("d/e/f", n) }, true},
		"executable": {func(ed *workspace.Editor) error { n := e; n.Mode |= 0o100; return ed.Put("d/e/f", n) }, true},
		"target": {func(ed *workspace.Editor) error {
			return ed.Put("d/g", workspace.Entry{Type: workspace.Symlink, Mode: 0o777, Target: "e/F"})
		}, true},
		"type": {func(ed *workspace.Editor) error {
			return ed.Put("pipe", workspace.Entry{Type: workspace.Socket, Mode: 0o644})
		}, false},
		"mode":  {func(ed *workspace.Editor) error { n := e; n.Mode = 0o640; return ed.Put("d/e/f", n) }, false},
		"mtime": {func(ed *workspace.Editor) error { n := e; n.MTime++; return ed.Put("d/e/f", n) }, false},
		"folder": {func(ed *workspace.Editor) error {
			return ed.Put("d", workspace.Entry{Type: workspace.Folder, Mode: 0o755, MTime: 1})
		}, false},
		"top": {func(ed *workspace.Editor) error {
			return ed.Put("", workspace.Entry{Type: workspace.Folder, Mode: 0o700})
		}, false},
		"xattr": {func(ed *workspace.Editor) error {
			n := e
			n.XAttrs = []workspace.XAttr{{Name: "user.a", Value: "1"}}
			return ed.Put("d/e/f", n)
		}, false},
		"empty folder": {func(ed *workspace.Editor) error { return ed.Remove("hollow") }, false},
		"in .git":      {func(ed *workspace.Editor) error { return ed.Remove(".git/HEAD") }, false},
		"linked": {func(ed *workspace.Editor) error {
			err := ed.Put("d/e/g", e)
			ed.Link("d/e/f", "k")
			ed.Link("d/e/g", "k")
			return err
		}, true},
	}
	seen := map[cell.Digest]string{base.Digest(): "nothing"}
	for name, x := range edits {
		ed := base.Edit()
		if err := x.f(ed); err != nil {
			t.Fatal(name, err)
		}
		next, err := ed.Commit()
		if err != nil {
			t.Fatal(name, err)
		}
		if other, dup := seen[next.Digest()]; dup {
			t.Errorf("the digest is the same after a change of %s as of %s", name, other)
		}
		seen[next.Digest()] = name
		if changed := next.ContentDigest() != base.ContentDigest(); changed != x.content {
			t.Errorf("%s: content digest changed: %v", name, changed)
		}
	}
	// Files that are one and files that are equal are different states.
	ed := base.Edit()
	if err := ed.Put("d/e/g", e); err != nil {
		t.Fatal(err)
	}
	if equal, err := ed.Commit(); err != nil || seen[equal.Digest()] != "" {
		t.Errorf("equal files have the digest of %q, %v", seen[equal.Digest()], err)
	}
}

// TestEditsGiveWhatBuildingGives: the way to a state leaves no trace in it.
func TestEditsGiveWhatBuildingGives(t *testing.T) {
	r := rand.New(rand.NewSource(3))
	objs := wt.NewObjects()
	m := wt.Random(r)
	at := tree(t, m, objs)
	for range 200 {
		next := wt.Mutate(r, m)
		want := tree(t, next, objs)
		changes, err := workspace.Changes(at, want)
		if err != nil {
			t.Fatal(err)
		}
		ed := at.Edit()
		for i := len(changes) - 1; i >= 0; i-- { // children of what goes first
			if c := changes[i]; c.New == nil {
				if err := ed.Remove(c.Path); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, c := range changes {
			if c.New != nil {
				if err := ed.Put(c.Path, *c.New); err != nil {
					t.Fatal(err)
				}
			}
		}
		got, err := ed.Commit()
		if err != nil {
			t.Fatal(err)
		}
		if got.Digest() != want.Digest() {
			t.Fatalf("from %q to %q:\n%s", m.Paths(), next.Paths(), cmp.Diff(mustView(t, want), mustView(t, got)))
		}
		m, at = next, got
	}
}

func mustView(t testing.TB, tr *workspace.Tree) wt.View {
	t.Helper()
	v, err := wt.ViewOf(tr)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestChanges holds the changes between two trees against the two walked
// whole: every path that differs, once, in order, and no other.
func TestChanges(t *testing.T) {
	r := rand.New(rand.NewSource(5))
	objs := wt.NewObjects()
	for range 300 {
		a := wt.Random(r)
		b := wt.Mutate(r, a)
		ta, tb := tree(t, a, objs), tree(t, b, objs)
		changes, err := workspace.Changes(ta, tb)
		if err != nil {
			t.Fatal(err)
		}
		va, vb := mustView(t, ta), mustView(t, tb)
		want := map[string]string{}
		for p, s := range va {
			if n, ok := vb[p]; !ok {
				want[p] = "gone"
			} else if n != s {
				want[p] = "changed"
			}
		}
		for p := range vb {
			if _, ok := va[p]; !ok {
				want[p] = "new"
			}
		}
		got := map[string]string{}
		for _, c := range changes {
			switch {
			case c.Old == nil:
				got[c.Path] = "new"
			case c.New == nil:
				got[c.Path] = "gone"
			default:
				got[c.Path] = "changed"
			}
		}
		if d := cmp.Diff(want, got); d != "" || len(got) != len(changes) {
			t.Fatalf("%d changes from %q to %q (- want, + got):\n%s", len(changes), a.Paths(), b.Paths(), d)
		}
		back, err := workspace.Changes(tb, ta)
		if err != nil || len(back) != len(changes) {
			t.Fatalf("%d changes there and %d back, %v", len(changes), len(back), err)
		}
		if same, err := workspace.Changes(tb, tree(t, b, objs)); err != nil || len(same) != 0 {
			t.Fatalf("between equal trees: %v, %v", same, err)
		}
	}
}

// TestHardLinksInTrees: groups follow removals, and never name what is gone.
func TestHardLinksInTrees(t *testing.T) {
	base := tree(t, wt.Model{"a": wt.Plain("1"), "d/b": wt.Plain("1"), "d/e/c": wt.Plain("1")}, wt.NewObjects())
	ed := base.Edit()
	for _, p := range []string{"a", "d/b", "d/e/c"} {
		ed.Link(p, "one")
	}
	all, err := ed.Commit()
	if err != nil || len(all.Links) != 1 || !slices.Equal(all.Links[0], []string{"a", "d/b", "d/e/c"}) {
		t.Fatalf("links %q, %v", all.Links, err)
	}
	for remove, want := range map[string]string{"a": "d/b d/e/c", "d/b": "a d/e/c", "d/e": "a d/b", "d": ""} {
		ed := all.Edit()
		if err := ed.Remove(remove); err != nil {
			t.Fatal(err)
		}
		next, err := ed.Commit()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, g := range next.Links {
			got = append(got, g...)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("without %s: %q", remove, got)
		}
	}
	ed = all.Edit()
	if _, err := ed.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := ed.Commit(); cell.KindOf(err) != cell.Internal {
		t.Errorf("an editor used twice: %v", err)
	}
}

// TestTreeRubbish: what is not a tree is not read as one.
func TestTreeRubbish(t *testing.T) {
	objs := wt.NewObjects()
	tr := tree(t, manyThings(), objs)
	ed := tr.Edit()
	ed.Link("a", "k")
	ed.Link("x", "k")
	tr, err := ed.Commit()
	if err != nil {
		t.Fatal(err)
	}
	b := tr.Encode()
	back, err := workspace.DecodeTree(b, objs)
	if err != nil || back.Digest() != tr.Digest() || !cmp.Equal(mustView(t, back), mustView(t, tr)) {
		t.Fatalf("a tree is not the same when it is read back: %v", err)
	}
	for n := range b {
		if _, err := workspace.DecodeTree(b[:n], objs); cell.KindOf(err) != cell.Corrupt {
			t.Errorf("a tree cut after %d bytes: %v", n, err)
		}
	}
	if _, err := workspace.DecodeTree(append(slices.Clone(b), 0), objs); cell.KindOf(err) != cell.Corrupt {
		t.Errorf("a tree and more: %v", err)
	}
	// A directory that is not the one its digest names, and one that is gone.
	dir, err := objs.Get(tr.Root.Digest)
	if err != nil {
		t.Fatal(err)
	}
	for n := range dir {
		bad := slices.Clone(dir)
		bad[n] ^= 1
		other := wt.NewObjects()
		other.Put(tr.Root.Digest, bad)
		from, err := workspace.DecodeTree(b, other)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := from.Lookup("a"); cell.KindOf(err) != cell.Corrupt {
			t.Fatalf("a directory with byte %d changed: %v", n, err)
		}
	}
	from, err := workspace.DecodeTree(b, wt.NewObjects())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := from.Lookup("a"); cell.KindOf(err) != cell.NotFound {
		t.Errorf("a directory that is gone: %v", err)
	}
	if _, err := tr.Lookup("a/b"); cell.KindOf(err) != cell.NotFound {
		t.Errorf("below a file: %v", err)
	}
}

// dirObject encodes names as a directory of fifos, in the order given.
func dirObject(names ...string) []byte {
	b := []byte{byte(len(names))}
	for _, n := range names {
		b = append(b, byte(len(n)))
		b = append(b, n...)
		b = append(b, 'p', 0, 0, 0) // mode, mtime, no attributes
	}
	return b
}

func readObject(b []byte) (workspace.Dir, error) {
	objs := wt.NewObjects()
	objs.Put(cell.Sum(b), b)
	t, err := workspace.EmptyTree(objs)
	if err != nil {
		return nil, err
	}
	return t.ReadDir(cell.Sum(b))
}

// TestDirectoryRubbish: names that are no names, that come twice or out of
// order, are refused even where the digest is right.
func TestDirectoryRubbish(t *testing.T) {
	if d, err := readObject(dirObject("a", "b")); err != nil || len(d) != 2 {
		t.Fatalf("a good one: %v, %v", d, err)
	}
	for _, bad := range [][]byte{dirObject("b", "a"), dirObject("a", "a"), dirObject(""), dirObject("a/b"), dirObject("/"), dirObject("."), dirObject(".."), dirObject("a\x00b"),
		{}, {1}, {0xff, 0xff, 0xff, 0xff, 0x7f}, append(dirObject("a"), 0), []byte("\x01\x01a?\x00\x00\x00")} {
		if d, err := readObject(bad); cell.KindOf(err) != cell.Corrupt {
			t.Errorf("%q gives %v, %v", bad, d, err)
		}
	}
}

func FuzzDirectory(f *testing.F) {
	objs := wt.NewObjects()
	tr := tree(f, manyThings(), objs)
	for _, p := range []string{"", "d", "hollow"} {
		e, err := tr.Lookup(p)
		if err != nil {
			f.Fatal(err)
		}
		b, err := objs.Get(e.Digest)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := readObject(b)
		if err != nil {
			if cell.KindOf(err) != cell.Corrupt {
				t.Fatal(err)
			}
			return
		}
		for i, e := range d {
			if e.Name == "" || e.Name == "." || e.Name == ".." || strings.ContainsAny(e.Name, "/\x00") || (i > 0 && d[i-1].Name >= e.Name) {
				t.Fatalf("a directory with the name %q", e.Name)
			}
		}
	})
}

func FuzzTree(f *testing.F) {
	f.Add(tree(f, manyThings(), wt.NewObjects()).Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		var tr *workspace.Tree
		var err error
		boundtest.Allocates(t, len(b), func() { tr, err = workspace.DecodeTree(b, wt.NewObjects()) })
		if err != nil && cell.KindOf(err) != cell.Corrupt {
			t.Fatal(err)
		}
		if err == nil {
			again, err := workspace.DecodeTree(tr.Encode(), wt.NewObjects())
			if err != nil || again.Digest() != tr.Digest() {
				t.Fatal("not the same when written and read", err)
			}
		}
	})
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte("pando index 1\n" + fmt.Sprint(strings.Repeat("\x00", 60))))
	f.Fuzz(func(t *testing.T, b []byte) {
		sum := cell.Sum(b)
		for _, x := range [][]byte{b, append(slices.Clone(b), sum[:]...)} { // the sum guards it, and is no excuse
			if ix, err := workspace.DecodeIndex(x); err == nil {
				ix.Fingerprint()
			} else if cell.KindOf(err) != cell.Corrupt {
				t.Fatal(err)
			}
		}
	})
}

// TestFinder: it says what Lookup says, of what is there and what is not.
func TestFinder(t *testing.T) {
	r := rand.New(rand.NewSource(11))
	for range 50 {
		m := wt.Random(r)
		tr := tree(t, m, wt.NewObjects())
		f := tr.Finder()
		paths := append(m.Paths(), "", "no", "no/such", "d/e")
		for _, p := range m.Paths() {
			paths = append(paths, p+"/x", workspace.Parent(p))
		}
		for _, p := range paths {
			want, werr := tr.Lookup(p)
			got, err := f.Lookup(p)
			if !cmp.Equal(want, got) || cell.KindOf(werr) != cell.KindOf(err) {
				t.Fatalf("%q: %+v, %v; Lookup says %+v, %v", p, got, err, want, werr)
			}
		}
	}
	broken := tree(t, manyThings(), wt.NewObjects())
	back, err := workspace.DecodeTree(broken.Encode(), wt.NewObjects())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := back.Finder().Lookup("a"); err == nil {
		t.Error("a directory that is gone was read")
	}
}
