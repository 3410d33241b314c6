package workspacetest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/pando-dev/pando/internal/workspace"
)

// Equal does the same random things in workspaces of two providers, and holds
// them against each other and against what was seen inside. The tree of each
// state is found in the provider's cheap way, by a whole walk, and by reading
// the mounted workspace; restored and forked states are looked at again. The
// second provider must be able to do whatever the first was seen to do.
func Equal(t *testing.T, first, second New) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue { // each starts processes
		if err := f.Value.Set("30"); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		one, two := lay(t, first), lay(t, second)
		type pair struct{ a, b point }
		history := []pair{{one.empty(), two.empty()}}
		for range rapid.IntRange(1, 4).Draw(r, "generations") {
			from := rapid.IntRange(0, len(history)-1).Draw(r, "from") // the newest goes on, an older one forks
			at := history[from]
			ops := rapid.SliceOfN(anyOp(at.a.tree), 1, 12).Draw(r, "ops")
			a, did := one.try(at.a, ops)
			b, could := two.try(at.b, did)
			if len(could) != len(did) {
				r.Fatalf("of %+v the second provider could only do %+v", did, could)
			}
			if d := cmp.Diff(timeless(one, a.tree), timeless(two, b.tree)); d != "" {
				r.Fatalf("after %+v (- first, + second):\n%s", did, d)
			}
			if x, y := a.tree.ContentDigest(), b.tree.ContentDigest(); x != y {
				r.Fatalf("the same files have content digests %s and %s", x, y)
			}
			history = append(history, pair{a, b})
		}
		for _, p := range history { // nothing that came later changed a state
			one.whole(p.a)
			two.whole(p.b)
		}
		last := history[len(history)-1]
		one.shows(last.a)
		two.shows(last.b)
		workspace.RemoveTree(one.root)
		workspace.RemoveTree(two.root)
	})
}

func timeless(b *bed, t *workspace.Tree) View { return b.view(t).Timeless() }

// try does operations that may fail, and returns those that succeeded.
func (b *bed) try(at point, ops []Op) (point, []Op) {
	b.t.Helper()
	g := b.begin(at)
	in := b.enter(g)
	var did []Op
	for i, err := range in.Try(ops...) {
		if err == "" {
			did = append(did, ops[i])
		}
	}
	saw := in.Look()
	in.Leave()
	p := b.freeze(at, g)
	if d := cmp.Diff(saw.nameless(), b.view(p.tree).nameless()); d != "" {
		b.t.Fatalf("after %+v the tree is not what was seen inside (- seen, + tree):\n%s", did, d)
	}
	// Which names are one file a mount of the state's own tells: where it is
	// being written, overlayfs without an index may show one file as two, until
	// it is mounted again.
	b.shows(p)
	return p, did
}

// nameless is v without what says which names are one file.
func (v View) nameless() View {
	out := View{}
	for path, s := range v {
		s.Names = ""
		out[path] = s
	}
	return out
}

// anyOp draws an operation on some path, in a workspace that began as t: a file
// with several names there is not written in place, because overlayfs parts
// those names then.
func anyOp(t *workspace.Tree) *rapid.Generator[Op] {
	linked := map[string]bool{}
	for _, g := range t.Links {
		for _, p := range g {
			linked[p] = true
		}
	}
	name := rapid.SampledFrom([]string{"a", "b", "c", "ü", "\xff", " ", "-rf"})
	return rapid.Custom(func(r *rapid.T) Op {
		path := func(label string) string {
			return filepath.Join(rapid.SliceOfN(name, 1, 3).Draw(r, label)...)
		}
		o := Op{Path: path("path")}
		o.Do = rapid.SampledFrom([]string{"write", "write", "replace", "append", "map", "sparse", "mkdir", "mkdir", "folder", "remove", "remove",
			"rename", "rename", "symlink", "link", "chmod", "times", "xattr", "unxattr", "fifo", "socket"}).Draw(r, "do")
		switch o.Do {
		case "write", "append", "map", "sparse", "chmod", "times", "xattr", "unxattr", "link":
			if linked[o.Path] {
				o.Do = "replace"
			}
		case "rename":
			if len(linked) > 0 { // it may bring such a file to another name
				o.Do = "mkdir"
			}
		}
		switch o.Do {
		case "rename", "link":
			o.To = path("to")
		case "symlink":
			o.To = rapid.SampledFrom([]string{"..", "/", "nowhere", "a", "b/c", "/a/b"}).Draw(r, "target")
		case "chmod":
			o.Mode = rapid.SampledFrom([]uint32{0o755, 0o644, 0o600, 0o400, 0o700, 0o111, 0, 0o2755, 0o1777}).Draw(r, "mode")
		case "times":
			o.Time = rapid.Int64Range(0, 4e18).Draw(r, "time")
		}
		o.Data = rapid.SampledFrom([]string{"", "x", "y\xff\x00", "a line\nand another\n"}).Draw(r, "data")
		return o
	})
}

// String names an operation in a failure.
func (o Op) String() string {
	s := fmt.Sprintf("%s %q", o.Do, o.Path)
	if o.To != "" {
		s += fmt.Sprintf(" → %q", o.To)
	}
	if o.Do == "chmod" {
		s += os.FileMode(o.Mode).String()
	}
	return s
}
