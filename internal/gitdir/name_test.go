package gitdir

import (
	"testing"
)

// Names that only look like ".git" stay ordinary.
func TestNamesLikeGit(t *testing.T) {
	for _, n := range []string{".gitignore", ".github", "git", "gitx~1", ".git2", "x.git", "git~2", ".gitmodules", "...", "a", "\xff"} {
		if IsDotGit(n) {
			t.Errorf("isDotGit(%q)", n)
		}
	}
	for _, n := range []string{".gitmodules", ".GitModules.", "GITMOD~1", "gi7eba~1"} {
		if !IsDotGitmodules(n) || IsDotGit(n) {
			t.Errorf("isDotGitmodules(%q) = %v", n, IsDotGitmodules(n))
		}
	}
}
