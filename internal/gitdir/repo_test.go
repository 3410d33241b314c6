package gitdir

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/testenv"
)

// Every place a source can be in relation to a repository.
func TestTrackedPlaces(t *testing.T) {
	base := t.TempDir()
	in := func(p string) string { return filepath.Join(base, p) }
	for _, d := range []string{"plain/sub", "lib", "main"} {
		if err := os.MkdirAll(in(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	gitOracle(t, in("lib"), "", "init", "-q")
	writeAt(t, in("lib"), "src/lib.c", "")
	gitOracle(t, in("lib"), "", "add", "-A")
	gitOracle(t, in("lib"), "", "commit", "-q", "-m", "x")

	top := in("main")
	gitOracle(t, top, "", "init", "-q")
	wantTracked(t, top, []string{})
	writeAt(t, top, "a/b/c", "")
	writeAt(t, top, "a-b", "")
	gitOracle(t, top, "", "add", "-A")
	gitOracle(t, top, "", "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", in("lib"), "vendor/lib")
	gitOracle(t, top, "", "commit", "-q", "-m", "x")
	gitOracle(t, top, "", "worktree", "add", "-q", in("linked"))
	writeAt(t, in("linked"), "only-here", "")
	gitOracle(t, in("linked"), "", "add", "only-here")
	gitOracle(t, base, "", "clone", "-q", "--bare", "main", "bare.git")
	writeAt(t, top, "ignored/x", "")
	writeAt(t, top, "empty/.git/readme", "not a repository")
	writeAt(t, top, "empty/f", "")
	gitOracle(t, top, "", "add", "empty/f")
	if err := os.Symlink("main/a", in("alias-a")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(top, in("alias")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(in("far"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../main/.git", in("far/.git")); err != nil {
		t.Fatal(err)
	}

	all := []string{".gitmodules", "a-b", "a/b/c", "empty/f", "vendor/lib"}
	for root, want := range map[string][]string{
		"plain":                nil,
		"plain/sub":            nil,
		"main":                 all,
		"alias":                all,
		"far":                  all, // git follows a .git that is a symlink
		"main/a":               {"b/c"},
		"main/a/b":             {"c"},
		"main/ignored":         {},
		"main/empty":           {"f"},
		"alias-a":              {"b/c"},
		"main/vendor":          {"lib"},
		"main/vendor/lib":      {"src/lib.c"},
		"main/vendor/lib/src":  {"lib.c"},
		"main/.git":            nil,
		"main/.git/hooks":      nil,
		"bare.git":             nil,
		"linked":               {".gitmodules", "a-b", "a/b/c", "only-here", "vendor/lib"},
		"linked/a":             {"b/c"},
		"linked/vendor":        {"lib"},
		"main/.git/modules/..": nil,
	} {
		t.Run(root, func(t *testing.T) { wantTracked(t, in(root), want) })
	}
	if _, err := Tracked(t.Context(), in("nowhere"), nil); err == nil {
		t.Error("a folder that does not exist was accepted")
	}
}

func TestTrackedOtherWorktree(t *testing.T) {
	base := t.TempDir()
	top, other := filepath.Join(base, "repo"), filepath.Join(base, "other")
	os.Mkdir(top, 0o755)
	os.Mkdir(other, 0o755)
	gitOracle(t, top, "", "init", "-q")
	writeAt(t, top, "f", "")
	gitOracle(t, top, "", "add", "f")
	gitOracle(t, top, "", "config", "core.worktree", "../../other")
	wantTracked(t, top, nil)
	gitOracle(t, top, "", "config", "core.worktree", "/does/not/exist")
	wantTracked(t, top, []string{"f"})
	// It is the main work tree's; a linked one has its own place.
	config, err := os.ReadFile(filepath.Join(top, ".git/config"))
	if err != nil {
		t.Fatal(err)
	}
	writeAt(t, top, ".git/config", strings.ReplaceAll(string(config), "worktree = /does/not/exist", ""))
	gitOracle(t, top, "", "commit", "-q", "-m", "x")
	gitOracle(t, top, "", "worktree", "add", "-q", "../linked")
	gitOracle(t, top, "", "config", "core.worktree", other)
	wantTracked(t, filepath.Join(base, "linked"), []string{"f"})
}

// Nothing a source contains may make us wait or open a device.
func TestF61TrackedOpensOnlyRegularFiles(t *testing.T) {
	for name, prepare := range map[string]func(top string) error{
		"dot git is a fifo":    func(top string) error { return unix.Mkfifo(top+"/.git", 0o644) },
		"dot git is a loop":    func(top string) error { return os.Symlink(".git", top+"/.git") },
		"dot git is huge":      func(top string) error { return truncated(top+"/.git", 1<<40) },
		"gitdir is a device":   func(top string) error { return os.WriteFile(top+"/.git", []byte("gitdir: /dev/zero\n"), 0o644) },
		"gitdir is not a repo": func(top string) error { return os.WriteFile(top+"/.git", []byte("gitdir: /\n"), 0o644) },
		"common is a fifo": func(top string) error {
			return unix.Mkfifo(makeGit(t, top)+"/commondir", 0o644)
		},
		"index is a fifo": func(top string) error { return unix.Mkfifo(makeGit(t, top)+"/index", 0o644) },
		"index is a device": func(top string) error {
			return os.Symlink("/dev/zero", makeGit(t, top)+"/index")
		},
		"index is a folder": func(top string) error { return os.Mkdir(makeGit(t, top)+"/index", 0o755) },
		"index is huge":     func(top string) error { return truncated(makeGit(t, top)+"/index", 1<<40) },
		"config is a fifo": func(top string) error {
			dir := makeGit(t, top)
			os.Remove(dir + "/config")
			return unix.Mkfifo(dir+"/config", 0o644)
		},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			if err := prepare(top); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				s, err := Tracked(t.Context(), top, nil)
				if err == nil && s.Len() > 0 {
					t.Errorf("Tracked = %q", slices.Collect(s.All()))
				}
				done <- err
			}()
			err, _ := testenv.Receive(t, done, "the answer of Tracked")
			t.Log(err)
		})
	}
}

func makeGit(t *testing.T, top string) string {
	gitOracle(t, top, "", "init", "-q")
	return filepath.Join(top, ".git")
}

func truncated(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Truncate(size)
}

func TestGitConfigValue(t *testing.T) {
	conf := []byte("[core]\n\tbare = false\n[extensions] objectFormat = sha256 ; why\n[remote \"extensions\"]\nobjectformat=x\n" +
		"[core]\nworktree = \"/a b\"\n# [extensions]\n#objectformat=y\n[Extensions]\nNoop\n")
	for name, want := range map[string]string{
		"core.bare": "false", "extensions.objectformat": "sha256", "core.worktree": "/a b", "core.none": "", "extensions.noop": "",
	} {
		if got := configValue(conf, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
}
