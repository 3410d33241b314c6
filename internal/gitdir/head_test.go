package gitdir

import (
	"bytes"
	"compress/zlib"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// What is checked out is what git says: on branches, in linked worktrees, below the top,
// with refs in files and in packed-refs.
func TestHead(t *testing.T) {
	t.Parallel()
	top := filepath.Join(t.TempDir(), "r")
	writeAt(t, top, "d/f", "f\n")
	gitOracle(t, top, "", "init", "-q", "-b", "main")
	want := func(what, dir string) {
		t.Helper()
		asked := strings.TrimSuffix(dir, "/d") // git looks no higher
		r, err := Find(dir)
		if err != nil || r == nil {
			t.Fatalf("%s: %v, %v", what, r, err)
		}
		got, err := r.Head()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		var h Head
		if branch := strings.TrimSpace(gitOracle(t, asked, "", "rev-parse", "--abbrev-ref", "HEAD")); branch != "HEAD" {
			h.Branch = branch
		}
		h.Commit = strings.TrimSpace(gitOracle(t, asked, "", "rev-parse", "HEAD"))
		if got != h {
			t.Errorf("%s: %+v, git says %+v", what, got, h)
		}
	}
	r, err := Find(top)
	if err != nil {
		t.Fatal(err)
	}
	if h, err := r.Head(); h != (Head{Branch: "main"}) || err != nil {
		t.Errorf("without commits: %+v, %v", h, err)
	}
	gitOracle(t, top, "", "add", ".")
	gitOracle(t, top, "", "commit", "-q", "-m", "one")
	want("a branch", top)
	want("a folder", filepath.Join(top, "d"))
	gitOracle(t, top, "", "switch", "-q", "-c", "fix/größe")
	gitOracle(t, top, "", "commit", "-q", "--allow-empty", "-m", "two")
	want("a branch in a folder of refs", top)
	gitOracle(t, top, "", "pack-refs", "--all")
	want("packed", top)
	gitOracle(t, top, "", "tag", "-a", "-m", "v1", "v1")
	gitOracle(t, top, "", "worktree", "add", "-q", "../linked", "main")
	want("a linked worktree", filepath.Join(top, "../linked"))
	gitOracle(t, top, "", "pack-refs", "--all")
	want("packed, with a tag", top)
	gitOracle(t, top, "", "switch", "-q", "--detach", "v1~1")
	want("detached", top)
}

// What is no HEAD of git's is an error, whatever it points to.
func TestHeadUnreadable(t *testing.T) {
	t.Parallel()
	for head, kind := range map[string]cell.Kind{
		"":                             cell.Invalid,
		"ref: ../../secret":            cell.Invalid,
		"ref: refs/heads/../../config": cell.Invalid,
		"ref: refs/heads/a\x1b[m":      cell.Invalid,
		"ref: refs/heads/a.lock":       cell.Invalid,
		"ref: refs/heads/a..b":         cell.Invalid,
		"ref: refs/heads/":             cell.Invalid,
		"ref: refs/heads/main":         cell.Invalid, // which holds something else
		"ref: refs/heads/.invalid":     cell.Unsupported,
		strings.Repeat("a", 39):        cell.Invalid,
		strings.Repeat("g", 40):        cell.Invalid,
	} {
		h, err := ReadHead(func(name string) ([]byte, error) {
			switch name {
			case "HEAD":
				return []byte(head + "\n"), nil
			case "refs/heads/main":
				return []byte("secret\n"), nil
			}
			return nil, os.ErrNotExist
		})
		if cell.KindOf(err) != kind || h != (Head{}) || err != nil && strings.Contains(err.Error(), "secret\n") {
			t.Errorf("%q: %+v, %v", head, h, err)
		}
	}
}

// The parents of a commit are those that git names; what is no commit is an error.
func TestParents(t *testing.T) {
	t.Parallel()
	top := filepath.Join(t.TempDir(), "r")
	writeAt(t, top, "f", "f\n")
	gitOracle(t, top, "", "init", "-q", "-b", "main")
	gitOracle(t, top, "", "add", ".")
	gitOracle(t, top, "", "commit", "-q", "-m", "one\n\nparent 0123456789012345678901234567890123456789")
	gitOracle(t, top, "", "switch", "-q", "-c", "side")
	gitOracle(t, top, "", "commit", "-q", "--allow-empty", "-m", "two")
	gitOracle(t, top, "", "switch", "-q", "main")
	gitOracle(t, top, "", "merge", "-q", "--no-ff", "-m", "both", "side")
	for _, rev := range []string{"main", "side", "main^"} {
		line := strings.Fields(gitOracle(t, top, "", "rev-list", "--parents", "-n", "1", rev))
		f, err := os.Open(filepath.Join(top, ".git", LooseObject(line[0])))
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parents(f)
		f.Close()
		if err != nil || !slices.Equal(got, line[1:]) {
			t.Errorf("%s: %q, %v; git says %q", rev, got, err, line[1:])
		}
	}
	tree := strings.TrimSpace(gitOracle(t, top, "", "rev-parse", "main^{tree}"))
	b, err := os.ReadFile(filepath.Join(top, ".git", LooseObject(tree)))
	if err != nil {
		t.Fatal(err)
	}
	for what, b := range map[string][]byte{
		"a tree":          b,
		"no object":       []byte("x"),
		"a cut one":       deflated("commit 10\x00tree "),
		"endless parents": deflated("commit 1\x00" + strings.Repeat("parent "+strings.Repeat("a", 40)+"\n", 10000)),
	} {
		if got, err := Parents(bytes.NewReader(b)); err == nil {
			t.Errorf("%s: %d parents", what, len(got))
		}
	}
}

func deflated(s string) []byte {
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	z.Write([]byte(s))
	z.Close()
	return b.Bytes()
}

// Bytes that a cell wrote are read within bounds, and what is returned is what git takes for
// names and ids.
func FuzzHead(f *testing.F) {
	f.Add([]byte("ref: refs/heads/main\n"), []byte("# pack-refs with: peeled\n0123456789012345678901234567890123456789 refs/heads/main\n"), deflated("commit 9\x00tree x\nparent y\n\n"))
	f.Fuzz(func(t *testing.T, head, packed, object []byte) {
		read := func(name string) ([]byte, error) {
			switch name {
			case "HEAD":
				return head, nil
			case "packed-refs":
				return packed, nil
			}
			return nil, os.ErrNotExist
		}
		h, err := ReadHead(read)
		if err == nil && h.Commit != "" && !isID(h.Commit) || strings.ContainsAny(h.Branch, "\n\x00\x1b ") {
			t.Errorf("%+v", h)
		}
		refs, _ := ReadPacked(read)
		for name, id := range refs {
			if !refName(name) || !isID(id) {
				t.Errorf("%q %q", name, id)
			}
		}
		parents, _ := Parents(bytes.NewReader(object))
		for _, p := range parents {
			if !isID(p) {
				t.Errorf("%q", p)
			}
		}
	})
}
