package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/state"
)

// Commits in submodules are counted apart from the repository's, which does not have them.
func TestCommitsMadeInSubmodules(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	for _, name := range []string{"inner", "outer", "super"} {
		dir := filepath.Join(top, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		git(t, dir, "init", "-q", "-b", "main")
		git(t, dir, "commit", "--allow-empty", "-m", name)
	}
	add := func(in, of, path string) {
		git(t, filepath.Join(top, in), "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "--name", "of/"+of, filepath.Join(top, of), path)
		git(t, filepath.Join(top, in), "commit", "-m", "add "+of)
	}
	add("outer", "inner", "deep")
	add("super", "outer", "lib/out er")
	super := filepath.Join(top, "super")
	outer := filepath.Join(super, "lib/out er")
	git(t, outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init")
	deep := filepath.Join(outer, "deep")
	old := sideOf(t, super)
	was := git(t, outer, "rev-parse", "HEAD")
	wasDeep := git(t, deep, "rev-parse", "HEAD")

	check := func(what string, want *state.CellCommits) {
		t.Helper()
		got, err := commitsMade(old, sideOf(t, super))
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s: %s %v", what, d, err)
		}
	}
	git(t, outer, "status")
	check("nothing", nil)
	git(t, outer, "commit", "--allow-empty", "-m", "1")
	sub := state.SubmoduleCommits{Path: "lib/out er", Commits: 1, Branches: []string{"main"}, Since: was}
	check("the submodule's", &state.CellCommits{Branches: []string{}, Submodules: []state.SubmoduleCommits{sub}})
	base := git(t, super, "rev-parse", "HEAD")
	git(t, super, "commit", "-a", "-m", "bump")
	git(t, deep, "commit", "--allow-empty", "-m", "2")
	check("all three", &state.CellCommits{Commits: 1, Branches: []string{"main"}, Since: base,
		Submodules: []state.SubmoduleCommits{sub, {Path: "lib/out er/deep", Commits: 1, Branches: []string{"HEAD"}, Since: wasDeep}}})
}
