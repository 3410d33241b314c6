package gofer

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func acts(t *testing.T, dir string) []string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), actsEnv+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.Split(string(out), "\n")
}

// What programs do has the same outcome as in a plain directory.
func TestActsAreAsInAPlainDirectory(t *testing.T) {
	b := newBed(t)
	plain := filepath.Join(filepath.Dir(b.tree), "plain")
	if err := os.Mkdir(plain, 0o755); err != nil {
		t.Fatal(err)
	}
	want, got := acts(t, plain), acts(t, b.mnt)
	if len(want) < 100 {
		t.Fatalf("not much was done: %q", want)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
