package gitdir

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/bound/boundtest"
)

// The repository that a ".git" file points to is taken only if it points back
// to that work tree.
func TestX12FindLinked(t *testing.T) {
	at := t.TempDir()
	gitOracle(t, at, "", "init", "-q", "main")
	main := filepath.Join(at, "main")
	writeAt(t, main, "f", "f")
	gitOracle(t, main, "", "add", ".")
	gitOracle(t, main, "", "commit", "-q", "-m", "first")
	gitOracle(t, main, "", "worktree", "add", "-q", "../wt")
	gitOracle(t, main, "", "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", main, "lib/sub")
	gitOracle(t, main, "", "worktree", "add", "-q", "inside")
	gitOracle(t, at, "", "init", "-q", "--separate-git-dir", "apart.git", "apart")
	gitOracle(t, at, "", "clone", "-q", "--bare", "main", "bare.git")
	gitOracle(t, filepath.Join(at, "bare.git"), "", "worktree", "add", "-q", "../ofbare")

	for source, want := range map[string]Linked{
		"wt":           {"main/.git/worktrees/wt", "main/.git"},
		"main/inside":  {"main/.git/worktrees/inside", "main/.git"},
		"main/lib/sub": {"main/.git/modules/lib/sub", "main/.git/modules/lib/sub"},
		"ofbare":       {"bare.git/worktrees/ofbare", "bare.git"},
	} {
		got, err := FindLinked(filepath.Join(at, source))
		if err != nil || got == nil || got.Dir != filepath.Join(at, want.Dir) || got.Common != filepath.Join(at, want.Common) {
			t.Errorf("%s: %v, %v", source, got, err)
		}
	}
	for _, source := range []string{"main", "bare.git"} {
		if got, err := FindLinked(filepath.Join(at, source)); got != nil || err != nil {
			t.Errorf("%s: %v, %v", source, got, err)
		}
	}

	// What the source alone says is not enough.
	for name, content := range map[string]string{
		"another worktree":     "gitdir: ../main/.git/worktrees/wt\n",
		"a main repository":    "gitdir: ../main/.git\n",
		"another submodule":    "gitdir: ../main/.git/modules/lib/sub\n",
		"a bare repository":    "gitdir: " + filepath.Join(at, "bare.git") + "\n",
		"a repository apart":   "gitdir: ../apart.git\n",
		"no repository":        "gitdir: ..\n",
		"nothing":              "gitdir: ../nothing\n",
		"a symlink to it":      "gitdir: link\n",
		"worktrees elsewhere":  "gitdir: ../elsewhere/worktrees/evil\n",
		"a symlink as modules": "gitdir: modules/sub\n",
	} {
		evil := filepath.Join(at, "evil")
		os.RemoveAll(evil)
		writeAt(t, evil, ".git", content)
		os.Symlink("../main/.git/worktrees/wt", filepath.Join(evil, "link"))
		os.Symlink("../main/.git/modules/lib", filepath.Join(evil, "modules"))
		writeAt(t, at, "elsewhere/worktrees/evil/HEAD", "ref: refs/heads/x\n")
		writeAt(t, at, "elsewhere/worktrees/evil/commondir", main+"/.git\n")
		writeAt(t, at, "elsewhere/worktrees/evil/gitdir", evil+"/.git\n")
		if got, err := FindLinked(evil); got != nil || err == nil {
			t.Errorf("%s: taken: %v", name, got)
		}
	}

	// In the source it is the source's.
	evil := filepath.Join(at, "evil")
	writeAt(t, evil, ".git", "gitdir: own/worktrees/x\n")
	writeAt(t, evil, "own/worktrees/x/HEAD", "ref: refs/heads/x\n")
	writeAt(t, evil, "own/worktrees/x/commondir", main+"/.git\n")
	writeAt(t, evil, "own/worktrees/x/gitdir", evil+"/.git\n")
	if got, _ := FindLinked(evil); got != nil {
		t.Errorf("a folder of the source leads to %v", got)
	}
	os.Remove(filepath.Join(evil, ".git"))
	os.Symlink("../main/.git/worktrees/wt", filepath.Join(evil, ".git"))
	if got, _ := FindLinked(evil); got != nil {
		t.Errorf("a symlink leads to %v", got)
	}
}

// Which of the two folders has a file is git's to say.
func TestX12InAgreesWithGit(t *testing.T) {
	at := t.TempDir()
	gitOracle(t, at, "", "init", "-q", "main")
	main := filepath.Join(at, "main")
	gitOracle(t, main, "", "commit", "-q", "--allow-empty", "-m", "first")
	gitOracle(t, main, "", "worktree", "add", "-q", "../wt")
	wt := filepath.Join(at, "wt")
	l, err := FindLinked(wt)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"HEAD", "index", "config", "config.worktree", "packed-refs", "packed-refs.x", "objects/ab/cd", "objectsx", "refs/heads/a",
		"refs/bisect/bad", "refs/bisectx", "refs/worktree/x", "refs/rewritten/x", "logs/HEAD", "logs/HEAD.lock", "logs/refs/heads/a", "logs/refs/bisect/a",
		"info/exclude", "info/sparse-checkout", "hooks/pre-commit", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "rebase-merge/done", "shallow", "gc.pid",
		"rr-cache/x", "credentials", "modules/x/HEAD", "sequencer/todo", "COMMIT_EDITMSG", "BISECT_LOG", "branches/x", "remotes/x", "svn/x"} {
		got := strings.TrimSpace(gitOracle(t, wt, "", "rev-parse", "--path-format=absolute", "--git-path", p))
		want := filepath.Join(l.Dir, p)
		if l.In(p) {
			want = filepath.Join(l.Common, p)
		}
		if got != want {
			t.Errorf("%s is in %s, git says %s", p, want, got)
		}
	}
}

func TestX12Standalone(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git, as the oracle")
	}
	file := filepath.Join(t.TempDir(), "config")
	for _, conf := range []string{
		"[core]\n\tbare = true\n\tworktree = ../../x\n\tfilemode = true\n[user]\n\tname = a\n",
		"[core] bare\n[user] name = a\n",
		"[core] worktree = \"a b\" ; c\n bare = true # x\n[user]\nname=a",
		"[core \"x\"]\nworktree = y\n[CORE]\nWorkTree = a\\\n  b\n[user]\nname = a\n",
		"\xef\xbb\xbf[core]\r\n\tbare = yes\r\n\tworktree = x\r\n[user]\r\n\tname = a\r\n",
		"[user]name = a\n[core]worktree=x",
		"",
	} {
		out := Standalone([]byte(conf), true)
		if err := os.WriteFile(file, out, 0o644); err != nil {
			t.Fatal(err)
		}
		get := func(key string) string {
			out, _ := exec.Command("git", "config", "--file", file, "--default", "none", "--get", key).CombinedOutput()
			return strings.TrimSpace(string(out))
		}
		name := "a"
		if conf == "" {
			name = "none"
		}
		if get("core.worktree") != "none" || get("core.bare") != "false" || get("user.name") != name {
			t.Errorf("%q becomes %q", conf, out)
		}
		if v := configValue(Standalone([]byte(conf), false), "core.bare"); v != "" {
			t.Errorf("%q keeps core.bare = %s", conf, v)
		}
	}
}

func FuzzStandalone(f *testing.F) {
	f.Add([]byte("[core]\n\tbare = true\n\tworktree = ../../x\n[user]\n\tname = a\n"))
	f.Add([]byte("[core] worktree = \"a b\" ; c\n bare\\\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		boundtest.Allocates(t, len(b), func() {
			out := Standalone(b, false)
			if v := configValue(out, "core.worktree"); v != "" {
				t.Errorf("%q keeps core.worktree = %q", out, v)
			}
			if configValue(b, "user.name") != configValue(out, "user.name") {
				t.Errorf("%q lost user.name: %q", b, out)
			}
		})
	})
}

// Into the repository of a source is written only where it is the source's own.
func TestOwn(t *testing.T) {
	at := t.TempDir()
	gitOracle(t, at, "", "init", "-q", "main")
	main := filepath.Join(at, "main")
	writeAt(t, main, "sub/f", "f")
	gitOracle(t, main, "", "add", ".")
	gitOracle(t, main, "", "commit", "-q", "-m", "first")
	gitOracle(t, main, "", "worktree", "add", "-q", "../wt")
	for _, name := range []string{"pointing", "link", "elsewhere", "no"} {
		writeAt(t, filepath.Join(at, name), "f", "f")
	}
	writeAt(t, filepath.Join(at, "pointing"), ".git", "gitdir: ../main/.git\n")
	if err := os.Symlink("../main/.git", filepath.Join(at, "link/.git")); err != nil {
		t.Fatal(err)
	}
	gitOracle(t, at, "", "init", "-q", "elsewhere")
	writeAt(t, filepath.Join(at, "elsewhere"), ".git/commondir", "../../main/.git\n")
	for source, want := range map[string]*Linked{"main": {Dir: "main/.git", Common: "main/.git"}, "wt": {Dir: "main/.git/worktrees/wt", Common: "main/.git"}, "main/sub": nil, "no": nil} {
		if want != nil {
			want = &Linked{Dir: filepath.Join(at, want.Dir), Common: filepath.Join(at, want.Common)}
		}
		got, err := Own(filepath.Join(at, source))
		if err != nil || (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%s: %v, %v, want %v", source, got, err, want)
		}
	}
	for _, source := range []string{"pointing", "link", "elsewhere"} {
		if got, err := Own(filepath.Join(at, source)); err == nil {
			t.Errorf("%s: %v", source, got)
		}
	}
}

// The committer is git's own.
func TestCommitter(t *testing.T) {
	at, home := t.TempDir(), t.TempDir()
	gitOracle(t, at, "", "init", "-q", "main")
	main := filepath.Join(at, "main")
	repo, err := Own(main)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ file, text, want string }{
		{home + "/.gitconfig", "[user]\n\tname = U\n\temail = u@example.org\n", "U u@example.org"},
		{main + "/.git/config", "[user]\n\temail = r@example.org\n", "U r@example.org"},
		{main + "/.git/config", "[user]\n\temail = r@example.org\n[committer]\n\tname = C\n", "C r@example.org"},
	} {
		writeAt(t, filepath.Dir(step.file), filepath.Base(step.file), step.text)
		if name, email := repo.Committer(home); name+" "+email != step.want {
			t.Errorf("it is %s %s, want %s", name, email, step.want)
		}
	}
}
