package workspace_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/clone"
	"github.com/pando-dev/pando/internal/workspace/overlay"
)

// gitIn runs git, which reads no config but the repository's.
func gitIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command(testenv.Program(t, "git"), append([]string{"-C", dir, "-c", "protocol.file.allow=always"}, args...)...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "GIT_OPTIONAL_LOCKS=0",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return string(out)
}

// copied returns a directory with the files of a base that has one layer.
func (i *importing) copied(im *workspace.Imported) string {
	i.t.Helper()
	dir := filepath.Join(i.t.TempDir(), "copy")
	last := im.State.Layers[len(im.State.Layers)-1]
	i.must(os.CopyFS(dir, os.DirFS(filepath.Join(i.layers, last, "fs"))))
	return dir
}

// linkedSources makes the sources with a ".git" file.
var linkedSources = map[string]func(i *importing) (repo string){
	"worktree": func(i *importing) string {
		main := filepath.Join(i.t.TempDir(), "main")
		mainRepo(i, main)
		i.must(os.Remove(i.source))
		gitIn(i.t, main, "worktree", "add", "-q", i.source, "-b", "side")
		return filepath.Join(main, ".git")
	},
	"relative worktree": func(i *importing) string {
		main := filepath.Join(i.t.TempDir(), "main")
		mainRepo(i, main)
		i.must(os.Remove(i.source))
		gitIn(i.t, main, "worktree", "add", "-q", i.source, "-b", "side")
		repo := filepath.Join(main, ".git")
		own := filepath.Join(repo, "worktrees", filepath.Base(i.source))
		for from, to := range map[string]string{i.at(".git"): own, filepath.Join(own, "gitdir"): i.at(".git")} {
			rel, err := filepath.Rel(filepath.Dir(from), to)
			i.must(err)
			if from == i.at(".git") {
				rel = "gitdir: " + rel
			}
			i.must(os.WriteFile(from, []byte(rel+"\n"), 0o644))
		}
		return repo
	},
	"worktree of a bare repository": func(i *importing) string {
		at := i.t.TempDir()
		mainRepo(i, filepath.Join(at, "main"))
		gitIn(i.t, at, "clone", "-q", "--bare", "main", "bare.git")
		i.must(os.Remove(i.source))
		gitIn(i.t, filepath.Join(at, "bare.git"), "worktree", "add", "-q", i.source, "-b", "side")
		return filepath.Join(at, "bare.git")
	},
	"submodule": func(i *importing) string {
		at := i.t.TempDir()
		mainRepo(i, filepath.Join(at, "main"))
		super := filepath.Join(at, "super")
		mainRepo(i, super)
		gitIn(i.t, super, "submodule", "--quiet", "add", filepath.Join(at, "main"), "lib/sub")
		i.source = filepath.Join(super, "lib/sub")
		gitIn(i.t, i.source, "checkout", "-q", "-b", "side")
		return filepath.Join(super, ".git/modules/lib/sub")
	},
}

func mainRepo(i *importing, main string) {
	i.must(os.MkdirAll(main, 0o755))
	i.must(os.WriteFile(filepath.Join(main, "f"), []byte("f\n"), 0o644))
	gitIn(i.t, main, "init", "-q", "-b", "trunk")
	gitIn(i.t, main, "add", "f")
	gitIn(i.t, main, "commit", "-q", "-m", "first")
	gitIn(i.t, main, "tag", "v1")
}

// TestX12LinkedRepositories: where ".git" is a file, the repository that it
// points to comes in as an ordinary one, without its secrets, and follows what
// changes there.
func TestX12LinkedRepositories(t *testing.T) {
	const token = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
	for name, make := range linkedSources {
		t.Run(name, func(t *testing.T) {
			providers := bothProviders
			if name != "worktree" { // the same for both
				providers = func(t *testing.T, f func(*testing.T, *importing)) { f(t, newImporting(t, clone.Name)) }
			}
			providers(t, func(t *testing.T, i *importing) {
				repo := make(i)
				for _, p := range []string{"credentials", "id_rsa", "hooks/id_ed25519", "info/.env", "worktrees/other/id_rsa"} {
					i.must(os.MkdirAll(filepath.Dir(filepath.Join(repo, p)), 0o755))
					i.must(os.WriteFile(filepath.Join(repo, p), []byte("HUNTER2\n"), 0o644))
				}
				gitIn(t, i.source, "config", "remote.origin.url", "https://me:"+token+"@example.com/x")
				i.put("f", "changed\n")
				i.put("staged", "staged\n")
				gitIn(t, i.source, "add", "staged")
				age()
				im := i.do(nil)
				same := func() {
					t.Helper()
					dir := i.copied(im)
					for _, args := range [][]string{{"status", "--porcelain", "--branch"}, {"log", "--all", "--format=%H %s %D"}, {"stash", "list"}, {"tag"}} {
						want := gitIn(t, i.source, args...)
						if got := gitIn(t, dir, args...); got != want {
							t.Errorf("git %s in the copy: %q, in the source %q", args, got, want)
						}
					}
					if got := strings.TrimSpace(gitIn(t, dir, "rev-parse", "--show-toplevel", "--is-bare-repository")); got != dir+"\nfalse" {
						t.Errorf("the work tree is %q", got)
					}
					gitIn(t, dir, "fsck", "--full")
					err := filepath.WalkDir(dir, func(at string, d os.DirEntry, err error) error {
						if b, _ := os.ReadFile(at); strings.Contains(string(b), "HUNTER2") || strings.Contains(string(b), token) {
							t.Errorf("a secret is in %s", at)
						}
						return err
					})
					i.must(err)
				}
				same()
				if !slices.ContainsFunc(im.LeftOut, func(l workspace.LeftOut) bool { return l.Path == ".git/config" && l.Kind == workspace.Fields }) {
					t.Errorf("left out: %v", im.LeftOut)
				}
				if again := i.do(im); again.Copied != 0 || again.Fingerprint != im.Fingerprint {
					t.Errorf("nothing changed, and %d files were copied", again.Copied)
				}

				// What only the repository outside the source has is seen, too.
				gitIn(t, i.source, "commit", "-q", "-m", "second")
				gitIn(t, i.source, "tag", "v2")
				ix, err := workspace.Fingerprint(ctx, im, nil)
				i.must(err)
				if ix == im.Fingerprint {
					t.Error("a commit does not change the fingerprint")
				}
				before := im
				im = i.do(im)
				if im.State.Layers == nil || im.Fingerprint == before.Fingerprint {
					t.Error("the import did not see the commit")
				}
				if i.p.Name() == overlay.Name { // its layers mark what was removed
					im = i.do(nil)
				}
				same()
				s, err := workspace.Survey(ctx, i.source, nil, false, nil)
				i.must(err)
				if d := cmp.Diff(s.LeftOut, im.LeftOut); d != "" {
					t.Errorf("a survey and an import differ:\n%s", d)
				}

				// When it does not point back any more, it stays outside.
				i.must(os.WriteFile(i.at(".git"), []byte("gitdir: "+filepath.Dir(repo)+"/none\n"), 0o644))
				im = i.do(im)
				e, err := im.Tree.Lookup(".git")
				i.must(err)
				if e.Type != workspace.File || len(im.Notes) != 1 || !strings.Contains(im.Notes[0], "stays outside") {
					t.Errorf(".git is %v, notes %q", e.Type, im.Notes)
				}
			})
		})
	}
}

// TestX12PointersProveNothing: a source can't name the repository of another.
func TestX12PointersProveNothing(t *testing.T) {
	i := newImporting(t, "clone")
	at := t.TempDir()
	main := filepath.Join(at, "main")
	mainRepo(i, main)
	gitIn(t, main, "worktree", "add", "-q", "../wt")
	for _, to := range []string{main + "/.git", main + "/.git/worktrees/wt", main + "/.git/worktrees/../worktrees/wt"} {
		i.put(".git", "gitdir: "+to+"\n")
		im := i.do(nil)
		e, err := im.Tree.Lookup(".git")
		i.must(err)
		if e.Type != workspace.File || len(im.Notes) != 1 {
			t.Errorf("%s: .git is %v, notes %q", to, e.Type, im.Notes)
		}
	}
}
