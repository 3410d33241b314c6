package diff

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pando-dev/pando/internal/workspace"
	wt "github.com/pando-dev/pando/internal/workspace/workspacetest"
)

// cloneOf makes a directory that git takes for a work tree without commits.
func cloneOf(t testing.TB, m wt.Model) string {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"objects", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, ".git", d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, ".git/HEAD"), []byte("ref: refs/heads/main\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.Write(t, dir)
	return dir
}

// runGit runs git without any user's configuration.
func runGit(t testing.TB, dir string, stdin []byte, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "HOME=" + dir, "LC_ALL=C",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a"}
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mustCompare(t testing.TB, a, b workspace.Side, opt Options) *Diff {
	t.Helper()
	d, err := Compare(context.Background(), a, b, opt)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func patchOf(t testing.TB, d *Diff) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := d.Patch(context.Background(), &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
