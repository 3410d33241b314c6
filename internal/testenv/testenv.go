// Package testenv says what a test needs from the host. A test that can't have it
// is skipped with the reason, and CI compares the skips with a list, so that
// nothing is skipped unseen.
package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// FileSize limits the size of the files that this process writes, in bytes, until the test ends:
// larger ones are cut there, with EFBIG. Such a test is not parallel.
func FileSize(t testing.TB, most uint64) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: most, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Setrlimit(unix.RLIMIT_FSIZE, &old) })
}

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

// Python skips unless the host has Python 3, and returns where: the one that
// cells see, if it is there.
func Python(t testing.TB) string {
	t.Helper()
	if _, err := os.Stat("/usr/bin/python3"); err == nil {
		return "/usr/bin/python3"
	}
	return Program(t, "python3")
}

// Runsc skips unless the gVisor runtime is there, and returns where: in
// PANDO_RUNSC, or where make puts it.
func Runsc(t testing.TB) string {
	t.Helper()
	Root(t)
	path := os.Getenv("PANDO_RUNSC")
	if path == "" {
		dir, _ := os.Getwd()
		for dir != "/" {
			if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
				break
			}
			dir = filepath.Dir(dir)
		}
		path = filepath.Join(dir, "bin/pando-runsc")
	}
	if _, err := os.Stat(path); err != nil {
		t.Skip("needs pando-runsc: PANDO_RUNSC")
	}
	return path
}

// JShell skips unless the host has a Java that evaluates code: a JDK's, not that
// of a run-time alone.
func JShell(t testing.TB) {
	t.Helper()
	Program(t, "java")
	if err := exec.Command("java", "--describe-module", "jdk.jshell").Run(); err != nil {
		t.Skip("needs a Java with the module jdk.jshell")
	}
}
