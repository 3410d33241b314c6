package diff

import (
	"bytes"
	"math/rand"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/gitdir"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// Any two workspaces: the patch brings a clean clone from the first to the
// second one's content digest, and back.
func TestPatchAppliesBothWays(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 60
	}
	for part := range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for seed := part; seed < seeds; seed += 4 {
				r := rand.New(rand.NewSource(int64(seed)))
				a := wt.Random(r)
				checkPatch(t, a, wt.Mutate(r, a))
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

func checkPatch(t *testing.T, a, b wt.Model) []byte {
	t.Helper()
	x, y := a.Side(t, nil), b.Side(t, nil)
	p := patchOf(t, mustCompare(t, x, y, Options{}))
	if again := patchOf(t, mustCompare(t, x, y, Options{})); !bytes.Equal(p, again) {
		t.Error("two patches of the same differ")
	}
	dir := cloneOf(t, a)
	if len(p) == 0 {
		if x.Tree.ContentDigest() != y.Tree.ContentDigest() {
			t.Error("empty patch between different contents")
		}
		return nil
	}
	if out, err := runGit(t, dir, p, "apply", "--whitespace=nowarn"); err != nil {
		t.Fatalf("git apply: %v\n%s\n%s", err, out, p)
	}
	if got, want := wt.ContentDigest(t, dir), y.Tree.ContentDigest(); got != want {
		t.Errorf("applied: digest %s, want %s\n%s", got.Short(), want.Short(), p)
	}
	if out, err := runGit(t, dir, p, "apply", "-R", "--whitespace=nowarn"); err != nil {
		t.Fatalf("git apply -R: %v\n%s\n%s", err, out, p)
	}
	if got, want := wt.ContentDigest(t, dir), x.Tree.ContentDigest(); got != want {
		t.Errorf("reversed: digest %s, want %s\n%s", got.Short(), want.Short(), p)
	}
	return p
}

// Each thing a patch can hold, by name.
func TestPatchCases(t *testing.T) {
	long := strings.Repeat("some line of text\n", 30)
	cases := map[string]struct {
		a, b wt.Model
		want string // in the patch
	}{
		"new file":         {wt.Model{}, wt.Model{"x": wt.Plain("1\n")}, "new file mode 100644\nindex 0000000000000000000000000000000000000000..d00491fd7e5bb6fa28c517a0bb32b8b506539d4d\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+1\n"},
		"new empty file":   {wt.Model{}, wt.Model{"x": wt.Plain("")}, "..e69de29bb2d1d6434b8b29ae775ad8c2e48c5391\n"},
		"new script":       {wt.Model{}, wt.Model{"x": wt.Script("1\n")}, "new file mode 100755"},
		"deleted file":     {wt.Model{"d/x": wt.Plain("1\n")}, wt.Model{}, "deleted file mode 100644"},
		"emptied file":     {wt.Model{"x": wt.Plain("1\n")}, wt.Model{"x": wt.Plain("")}, "@@ -1 +0,0 @@"},
		"mode":             {wt.Model{"x": wt.Plain("1\n")}, wt.Model{"x": wt.Script("1\n")}, "old mode 100644\nnew mode 100755\n"},
		"mode and content": {wt.Model{"x": wt.Plain("1\n")}, wt.Model{"x": wt.Script("2\n")}, "new mode 100755\nindex "},
		"exact rename":     {wt.Model{"x": wt.Plain(long)}, wt.Model{"d/y": wt.Plain(long)}, "similarity index 100%\nrename from x\nrename to d/y\n"},
		"similar rename":   {wt.Model{"x": wt.Plain(long + "a\n")}, wt.Model{"y": wt.Script(long + "b\n")}, "rename from x\n"},
		"rename into self": {wt.Model{"x": wt.Plain(long)}, wt.Model{"x/y": wt.Plain(long)}, "rename from x\nrename to x/y\n"},
		"rename out":       {wt.Model{"x/y": wt.Plain(long)}, wt.Model{"x": wt.Plain(long)}, "rename from x/y\nrename to x\n"},
		"swapped names":    {wt.Model{"x": wt.Plain(long), "y": wt.Plain("other\n")}, wt.Model{"y": wt.Plain(long), "x": wt.Plain("other\n")}, "@@"},
		"symlink":          {wt.Model{}, wt.Model{"l": wt.Link("../a b")}, "new file mode 120000"},
		"symlink moved":    {wt.Model{"l": wt.Link("a")}, wt.Model{"l": wt.Link("b")}, "-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n"},
		"symlink renamed":  {wt.Model{"l": wt.Link("a")}, wt.Model{"k": wt.Link("a")}, "deleted file mode 120000"},
		"file to symlink":  {wt.Model{"l": wt.Plain("a\n")}, wt.Model{"l": wt.Link("b")}, "deleted file mode 100644"},
		"symlink to file":  {wt.Model{"l": wt.Link("b")}, wt.Model{"l": wt.Plain("a\n")}, "deleted file mode 120000"},
		"folder to link":   {wt.Model{"d/x": wt.Plain("a\n"), "e/x": wt.Plain("b\n")}, wt.Model{"d": wt.Link("e"), "e/x": wt.Plain("b\n")}, "new file mode 120000"},
		"link to folder":   {wt.Model{"d": wt.Link("e"), "e/x": wt.Plain("b\n")}, wt.Model{"d/x": wt.Plain("a\n"), "e/x": wt.Plain("b\n")}, "deleted file mode 120000"},
		"binary":           {wt.Model{"x": wt.Plain("\x00a")}, wt.Model{"x": wt.Plain("\x00b")}, "GIT binary patch\nliteral 2\n"},
		"text to binary":   {wt.Model{"x": wt.Plain("a")}, wt.Model{"x": wt.Plain("\x00b")}, "GIT binary patch\n"},
		"new binary":       {wt.Model{}, wt.Model{"x": wt.Script("\x00")}, "literal 1\n"},
		"deleted binary":   {wt.Model{"x": wt.Plain("\x00")}, wt.Model{}, "literal 0\n"},
		"binary renamed":   {wt.Model{"x": wt.Plain("\x00" + long)}, wt.Model{"y": wt.Plain("\x00" + long + "more")}, "rename from x\n"},
		"no newline":       {wt.Model{"x": wt.Plain("a\nb")}, wt.Model{"x": wt.Plain("a\nb\n")}, "\\ No newline at end of file\n"},
		"only CR differs":  {wt.Model{"x": wt.Plain("a\nb\n")}, wt.Model{"x": wt.Plain("a\r\nb\r\n")}, "+a\r\n"},
		"space":            {wt.Model{"a b": wt.Plain("1\n")}, wt.Model{"a b": wt.Plain("2\n")}, "--- a/a b\t\n+++ b/a b\t\n"},
		"not ASCII":        {wt.Model{}, wt.Model{"ü": wt.Plain("")}, `diff --git "a/\303\274" "b/\303\274"`},
		"quoted":           {wt.Model{"a\tb": wt.Plain("1\n")}, wt.Model{"a\tb": wt.Plain("2\n"), "\xff": wt.Plain("")}, `diff --git "a/\377" "b/\377"`},
		"like a header":    {wt.Model{"x": wt.Plain("-- a/y\n")}, wt.Model{"x": wt.Plain("++ b/y\n")}, "--- a/y\n+++ b/y\n"},
		"shell":            {wt.Model{}, wt.Model{"$(touch x)": wt.Plain("1\n"), "-rf": wt.Plain("2\n")}, "diff --git a/-rf b/-rf\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if p := checkPatch(t, c.a, c.b); !strings.Contains(string(p), c.want) {
				t.Errorf("no %q in\n%s", c.want, p)
			}
		})
	}
}

// Files come in git's order, bytewise: a folder's files after "a-b" and "a.b".
func TestPatchOrder(t *testing.T) {
	b := wt.Model{"a/x": wt.Plain("1\n"), "a.b": wt.Plain("2\n"), "a-b": wt.Plain("3\n"), "b": wt.Plain("4\n")}
	var got []string
	for _, c := range mustCompare(t, wt.Model{}.Side(t, nil), b.Side(t, nil), Options{}).Files {
		got = append(got, c.Path)
	}
	if strings.Join(got, " ") != "a-b a.b a/x b" {
		t.Errorf("%q", got)
	}
}

// Blob names in a patch are git's, so that --index and --3way work.
func TestPatchAppliesToIndex(t *testing.T) {
	a := wt.Model{"x": wt.Plain("1\n2\n"), "b": wt.Plain("\x001"), "s": wt.Link("x")}
	b := wt.Model{"x": wt.Plain("1\n3\n"), "b": wt.Plain("\x002"), "s": wt.Link("b")}
	dir := cloneOf(t, a)
	for _, args := range [][]string{{"add", "-A"}, {"commit", "-qm", "a"}} {
		if out, err := runGit(t, dir, nil, args...); err != nil {
			t.Fatalf("git %v: %s", args, out)
		}
	}
	p := patchOf(t, mustCompare(t, a.Side(t, nil), b.Side(t, nil), Options{}))
	if out, err := runGit(t, dir, p, "apply", "--index"); err != nil {
		t.Fatalf("git apply --index: %s", out)
	}
	if got := wt.ContentDigest(t, dir); got != b.Side(t, nil).Tree.ContentDigest() {
		t.Error("digest differs")
	}
}

// What lies in a ".git", or what git takes for one, is in no patch; one such
// path would make git refuse all of it.
func TestF61PatchHoldsNoGitFolders(t *testing.T) {
	b := wt.Model{"ok": wt.Plain("1\n"), "link/.gitmodules": wt.Link("x")}
	for _, g := range []string{".git", ".GIT", ".git.", ".git ", ".Git. .", "git~1", "GIT~1", ".g\u200cit", ".git::$INDEX_ALLOCATION", `x\.git`} {
		b["sub/"+g+"/hooks/pre-commit"] = wt.Script("#!/bin/sh\n")
	}
	b["worktree/.git"] = wt.Plain("gitdir: /elsewhere\n")
	x, y := wt.Model{}.Side(t, nil), b.Side(t, nil)
	d := mustCompare(t, x, y, Options{})
	if len(d.Files) != 1 || d.Files[0].Path != "ok" {
		t.Fatalf("files %+v", d.Files)
	}
	p := checkPatch(t, wt.Model{}, b)
	if strings.Contains(string(p), "hooks") {
		t.Errorf("%s", p)
	}
	noted := map[string]bool{}
	for _, n := range d.Unrepresented {
		noted[n.Path] = true
	}
	for p := range b {
		if top := gitdir.Enclosing(p); top != "" && !noted[top] {
			t.Errorf("%q is dropped without a note", top)
		}
	}
	if !noted["link/.gitmodules"] {
		t.Error("the symlink .gitmodules is dropped without a note")
	}
}

// Above the limit a file is streamed as a binary patch, in bounded memory.
func TestPatchOfLargeFile(t *testing.T) {
	for limit, big := range map[string]string{
		"bytes": strings.Repeat(strings.Repeat("0123456789abcde", 16)+"\n", textLimit/2/241),
		"lines": strings.Repeat("a\n", lineLimit/2),
	} {
		a, b := wt.Model{"x": wt.Plain(big)}, wt.Model{"x": wt.Plain(big + strings.Repeat("more\n", 100))}
		p := checkPatch(t, a, b)
		if !strings.Contains(string(p), "GIT binary patch") {
			t.Errorf("a file above the limit of %s is compared by line", limit)
		}
	}
}
