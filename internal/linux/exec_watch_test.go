package linux

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Executions are counted; reads and files that are not watched are not.
func TestExecWatch(t *testing.T) {
	dir := t.TempDir()
	w, err := NewExecWatch()
	if err != nil {
		t.Skipf("needs fanotify without privileges: %v", err)
	}
	defer w.Close()
	for _, n := range []string{"a", "b", "c"} {
		p := filepath.Join(dir, n)
		if err := os.WriteFile(p, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if n == "c" {
			continue
		}
		f, err := os.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Add(f, n); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	for _, n := range []string{"a", "a", "c", "a"} {
		if err := exec.Command(filepath.Join(dir, n)).Run(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.ReadFile(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int64{"a": 3}, w.Counts()); diff != "" {
		t.Error(diff)
	}
	if err := exec.Command(filepath.Join(dir, "b")).Run(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int64{"a": 3, "b": 1}, w.Counts()); diff != "" {
		t.Error(diff)
	}
}
