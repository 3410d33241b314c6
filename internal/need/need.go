// Package need says what a test needs from the host. A test that can't have it
// is skipped with the reason, and CI compares the skips with a list, so that
// nothing is skipped unseen.
package need

import (
	"os"
	"os/exec"
	"testing"
)

// Root skips unless the test runs as root.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// User skips unless the test runs as an ordinary user.
func User(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		t.Skip("needs an ordinary user")
	}
}

// Program skips unless a program is on PATH, and returns where.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("needs the program %s", name)
	}
	return path
}
