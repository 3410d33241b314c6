package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/testenv"
)

// nodePackages installs packages of npm, as NAME@VERSION, into a cache, once, and
// returns the directory they are in, for NODE_PATH.
func nodePackages(t *testing.T, specs ...string) string {
	t.Helper()
	testenv.Program(t, "node")
	testenv.Program(t, "npm")
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(strings.Join(specs, " ")))
	dir := filepath.Join(cache, "pando-e2e", "npm-"+hex.EncodeToString(sum[:6]))
	modules := filepath.Join(dir, "node_modules")
	if _, err := os.Stat(modules); err == nil {
		return modules
	}
	reachable(t, "https://registry.npmjs.org/is-odd/3.0.1")
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	args := append([]string{"install", "--prefix", tmp, "--ignore-scripts", "--no-audit", "--no-fund", "--no-save"}, specs...)
	if out, err := exec.Command("npm", args...).CombinedOutput(); err != nil {
		t.Fatalf("npm %v: %v\n%s", args, err, out)
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) { // another test was faster
		t.Fatal(err)
	}
	return modules
}

// rootHasRunIt skips long tests as an ordinary user if they do not depend on the user.
func rootHasRunIt(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 && os.Getenv("E2E_SOAK") == "" {
		t.Skip("the same for everybody: run as root, or with E2E_SOAK")
	}
}
