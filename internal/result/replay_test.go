package result

import (
	"bytes"
	"context"
	"math/rand"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/diff"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// patchOf is what brings one state to another.
func patchOf(t *testing.T, a, b workspace.Side) []byte {
	t.Helper()
	d, err := diff.Compare(context.Background(), a, b, diff.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var p bytes.Buffer
	if err := d.Patch(context.Background(), &p); err != nil {
		t.Fatal(err)
	}
	return p.Bytes()
}

// Any two states: the patch makes the second of the first, also in what its files hold.
func TestPatchedMakesTheSecondState(t *testing.T) {
	ctx := context.Background()
	for seed := range int64(200) {
		r := rand.New(rand.NewSource(seed))
		a := wt.Random(r)
		x, y := a.Side(t, nil), wt.Mutate(r, a).Side(t, nil)
		p := patchOf(t, x, y)
		got, _, err := patched(ctx, x, bytes.NewReader(p))
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, p)
		}
		if got.Tree.ContentDigest() != y.Tree.ContentDigest() {
			n, first, _ := FirstDifference(got.Tree, y.Tree)
			t.Fatalf("seed %d: %d files differ, the first is %q\n%s", seed, n, first, p)
		}
		changes, err := workspace.Changes(x.Tree, got.Tree)
		if err != nil {
			t.Fatal(err)
		}
		for _, ch := range changes {
			if ch.New == nil || ch.New.Type != workspace.File {
				continue
			}
			b, err := gitContent(ctx, got.Contents, ch.Path, *ch.New, 1<<30)
			if err != nil || cell.Sum(b) != ch.New.Digest {
				t.Fatalf("seed %d: the content of %q: %v", seed, ch.Path, err)
			}
		}
	}
}

// What a patch must not do.
func TestPatchedRefuses(t *testing.T) {
	base := wt.Model{"a": wt.Plain("1\n"), "d/x": wt.Plain("1\n"), "l": wt.Link("/etc")}
	add := func(name, mode string) string {
		return "diff --git " + name + " " + name + "\nnew file mode " + mode + "\nindex 0000000..d00491f\n--- /dev/null\n+++ " + name + "\n@@ -0,0 +1 @@\n+1\n"
	}
	for name, x := range map[string]struct{ patch, want string }{
		"a path out of the workspace":  {add("b/../../x", "100644"), "no path"},
		"a path through the top":       {add("b/d/../y", "100644"), "no path"},
		"an absolute path":             {add("b//etc/passwd", "100644"), "cannot apply"},
		"a hook of git":                {add("b/.git/hooks/post-checkout", "100755"), "no path"},
		"git's files in other letters": {add("b/.GIT/config", "100644"), "no path"},
		"a path through a link":        {add("b/l/x", "100644"), "no folder"},
		"a path through a file":        {add("b/a/x", "100644"), "no folder"},
		"a submodule":                  {add("b/s", "160000"), "has mode 160000"},
		"a file that is not there":     {"diff --git a/n b/n\nindex d00491f..0cfbf08 100644\n--- a/n\n+++ b/n\n@@ -1 +1 @@\n-1\n+2\n", "there is no file n"},
		"lines that are not there":     {"diff --git a/a b/a\nindex d00491f..0cfbf08 100644\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-9\n+2\n", "a"},
		"a file that has other lines":  {"diff --git a/a b/a\ndeleted file mode 100644\nindex d00491f..0000000\n--- a/a\n+++ /dev/null\n@@ -1 +0,0 @@\n-9\n", "a"},
		"a copy":                       {"diff --git a/a b/c\nsimilarity index 100%\ncopy from a\ncopy to c\n", "no such patch"},
		"half a patch":                 {"diff --git a/a b/a\nindex d00491f..0cfbf08 100644\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n", "cannot apply"},
	} {
		x.patch = strings.ReplaceAll(x.patch, "diff --git b/", "diff --git a/")
		_, _, err := patched(context.Background(), base.Side(t, nil), strings.NewReader(x.patch))
		if cell.KindOf(err) != cell.Corrupt || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, n, err := patched(context.Background(), base.Side(t, nil), strings.NewReader(strings.ReplaceAll(add("b/d/y", "100644"), "diff --git b/", "diff --git a/"))); n != 1 || err != nil {
		t.Errorf("a file beside another: %d, %v", n, err)
	}
}
