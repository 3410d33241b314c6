package result

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// sideOf is a directory as a state of a workspace.
func sideOf(t testing.TB, dir string) workspace.Side {
	t.Helper()
	m := workspacetest.Model{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		if d.IsDir() {
			m[rel] = workspacetest.Thing{Folder: true}
			return nil
		}
		b, err := os.ReadFile(p)
		m[rel] = workspacetest.Thing{Text: string(b)}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return m.Side(t, nil)
}

// The commits that are counted are those that git counts, on the branches that have them.
func TestCommitsMade(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, before, cell string // commands of git, one each line
		branches           []string
		more               bool
	}{
		{"none", "", "", nil, false},
		{"a file", "", "add .", nil, false},
		{"one", "", "commit --allow-empty -m 1", []string{"main"}, false},
		{"three", "", "commit --allow-empty -m 1\ncommit --allow-empty -m 2\ncommit --allow-empty -m 3", []string{"main"}, false},
		{"a new branch", "", "switch -c fix/one\ncommit --allow-empty -m 1", []string{"fix/one"}, false},
		{"a new branch without commits", "", "switch -c fix", nil, false},
		{"an old commit", "commit --allow-empty -m 0", "reset --hard HEAD~1", nil, false},
		{"an old commit below a packed one", "commit --allow-empty -m 0\ncommit --allow-empty -m 1\ngc -q", "branch old HEAD~1", nil, false},
		{"detached", "", "switch --detach\ncommit --allow-empty -m 1", []string{"HEAD"}, false},
		{"a branch that is not checked out", "", "switch -c other\ncommit --allow-empty -m 1\nswitch main", []string{"other"}, false},
		{"two branches", "", "commit --allow-empty -m 1\nswitch -c other\ncommit --allow-empty -m 2", []string{"main", "other"}, false},
		{"amended", "", "commit --allow-empty --amend -m other", []string{"main"}, false},
		{"merged", "branch side", "commit --allow-empty -m 1\nswitch side\ncommit --allow-empty -m 2\nmerge -m both main", []string{"main", "side"}, false},
		{"from packs", "commit --allow-empty -m 0\ngc -q", "commit --allow-empty -m 1", []string{"main"}, false},
		{"above what was packed again", "gc -q", "tag -a -m v1 v1\nrepack -adq\ncommit --allow-empty -m 1", []string{"main"}, false},
		{"packed refs", "", "commit --allow-empty -m 1\npack-refs --all", []string{"main"}, false},
		{"packed without a commit", "", "gc -q", nil, false},
		{"packed", "", "commit --allow-empty -m 1\ngc -q", []string{"main"}, true},
		{"packed, and one more", "", "commit --allow-empty -m 1\ngc -q\ncommit --allow-empty -m 2", []string{"main"}, true},
		{"a tag", "", "tag -a -m v1 v1", nil, false},
		{"stashed", "", "add .\nstash", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			do := func(commands string) {
				for line := range strings.Lines(commands) {
					workspacetest.Git(t, dir, strings.Fields(line)...)
				}
			}
			do("init -q -b main\ncommit --allow-empty -m first")
			do(c.before)
			base := workspacetest.Git(t, dir, "rev-parse", "HEAD")
			old := sideOf(t, dir)
			if err := os.WriteFile(filepath.Join(dir, "f"), []byte("f"), 0o644); err != nil {
				t.Fatal(err)
			}
			known := strings.Fields(workspacetest.Git(t, dir, "for-each-ref", "--format=%(objectname)"))
			do(c.cell)
			got, err := commitsMade(old, sideOf(t, dir))
			if err != nil {
				t.Fatal(err)
			}
			if len(c.branches) == 0 {
				if got != nil {
					t.Errorf("%+v", got)
				}
				return
			}
			head := workspacetest.Git(t, dir, "rev-parse", "--abbrev-ref", "HEAD")
			want := &state.CellCommits{Branches: c.branches, Since: base, More: c.more, CheckedOut: slices.Contains(c.branches, head)}
			if !c.more {
				list := workspacetest.Git(t, dir, slices.Concat([]string{"rev-list", "--count", "--branches", "HEAD", "--not"}, known)...)
				if want.Commits, err = strconv.Atoi(list); err != nil {
					t.Fatal(err)
				}
			} else if got != nil {
				want.Commits = strings.Count(c.cell, "commit") - 1
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// A repository that is made in the cell has all its commits from there, and one that the
// cell wrecked is an error or none.
func TestCommitsMadeOfOtherRepositories(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := sideOf(t, dir)
	workspacetest.Git(t, dir, "init", "-q", "-b", "new")
	workspacetest.Git(t, dir, "commit", "--allow-empty", "-m", "1")
	made := sideOf(t, dir)
	got, err := commitsMade(old, made)
	if d := cmp.Diff(&state.CellCommits{Commits: 1, Branches: []string{"new"}, CheckedOut: true}, got); d != "" || err != nil {
		t.Error(d, err)
	}
	if got, err := commitsMade(made, old); got != nil || err != nil {
		t.Errorf("of a repository that is gone: %+v, %v", got, err)
	}
	if err := os.RemoveAll(filepath.Join(dir, ".git")); err != nil {
		t.Fatal(err)
	}
	workspacetest.Git(t, dir, "init", "-q", "-b", "fresh")
	workspacetest.Git(t, dir, "commit", "--allow-empty", "-m", "2")
	got, err = commitsMade(made, sideOf(t, dir))
	if d := cmp.Diff(&state.CellCommits{Commits: 1, Branches: []string{"fresh"}, CheckedOut: true}, got); d != "" || err != nil {
		t.Error("in the place of another: ", d, err)
	}
	for what, m := range map[string]workspacetest.Model{
		"a file":         {".git": {Text: "gitdir: /elsewhere\n"}},
		"a symlink":      {".git/HEAD": {Link: "/etc/passwd"}},
		"no object":      {".git/HEAD": {Text: "ref: refs/heads/x\n"}, ".git/refs/heads/x": {Text: strings.Repeat("a", 40)}},
		"a wrong object": {".git/HEAD": {Text: "ref: refs/heads/x\n"}, ".git/refs/heads/x": {Text: strings.Repeat("a", 40)}, ".git/objects/aa/" + strings.Repeat("a", 38): {Text: "x"}},
		"a wrong name":   {".git/HEAD": {Text: "ref: refs/heads/x\n"}, ".git/refs/heads/x\x1b[m": {Text: strings.Repeat("a", 40)}, ".git/objects/aa/" + strings.Repeat("a", 38): {Text: "x"}},
	} {
		got, err := commitsMade(made, m.Side(t, nil))
		if got != nil && (got.Commits > 0 || what != "a wrong object") || got == nil && what == "a wrong object" {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
}
