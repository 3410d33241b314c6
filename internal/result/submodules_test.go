package result

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace/workspacetest"
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
		workspacetest.Git(t, dir, "init", "-q", "-b", "main")
		workspacetest.Git(t, dir, "commit", "--allow-empty", "-m", name)
	}
	add := func(in, of, path string) {
		workspacetest.Git(t, filepath.Join(top, in), "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "--name", "of/"+of, filepath.Join(top, of), path)
		workspacetest.Git(t, filepath.Join(top, in), "commit", "-m", "add "+of)
	}
	add("outer", "inner", "deep")
	add("super", "outer", "lib/out er")
	super := filepath.Join(top, "super")
	outer := filepath.Join(super, "lib/out er")
	workspacetest.Git(t, outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init")
	deep := filepath.Join(outer, "deep")
	old := sideOf(t, super)
	was := workspacetest.Git(t, outer, "rev-parse", "HEAD")
	wasDeep := workspacetest.Git(t, deep, "rev-parse", "HEAD")

	check := func(what string, want *state.CellCommits) {
		t.Helper()
		got, err := commitsMade(old, sideOf(t, super))
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s: %s %v", what, d, err)
		}
	}
	workspacetest.Git(t, outer, "status")
	check("nothing", nil)
	workspacetest.Git(t, outer, "commit", "--allow-empty", "-m", "1")
	sub := state.SubmoduleCommits{Path: "lib/out er", Commits: 1, Branches: []string{"main"}, Since: was}
	check("the submodule's", &state.CellCommits{Branches: []string{}, Submodules: []state.SubmoduleCommits{sub}})
	base := workspacetest.Git(t, super, "rev-parse", "HEAD")
	workspacetest.Git(t, super, "commit", "-a", "-m", "bump")
	workspacetest.Git(t, deep, "commit", "--allow-empty", "-m", "2")
	check("all three", &state.CellCommits{Commits: 1, Branches: []string{"main"}, Since: base, CheckedOut: true,
		Submodules: []state.SubmoduleCommits{sub, {Path: "lib/out er/deep", Commits: 1, Branches: []string{"HEAD"}, Since: wasDeep}}})
}
