package linux

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/testenv"
)

// What a store keeps is reached by path, takes no descriptor, and is gone when it is
// dropped.
func TestX16MountsWithoutDescriptors(t *testing.T) {
	testenv.Root(t)
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	s, err := NewMountStore()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	before := open()
	mount := func(text string) *os.File {
		f, err := TmpFS()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("/proc/self/fd/"+strconv.Itoa(int(f.Fd()))+"/text", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return f
	}
	var kept []*StoredMounts
	for range 10 {
		files := []*os.File{mount("a"), mount("b"), mount("c")}
		m, err := s.Keep(files...)
		for _, f := range files {
			f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, m)
	}
	if n := open() - before; n != 0 {
		t.Errorf("thirty mounts take %d descriptors", n)
	}
	for _, m := range kept {
		for i, want := range []string{"a", "b", "c"} {
			if b, err := os.ReadFile(m.Path(i) + "/text"); string(b) != want {
				t.Errorf("mount %s/%d: %q, %v", m.name, i, b, err)
			}
		}
	}
	f, err := os.Open(kept[3].Path(1))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, i := range []int{3, 5, 6} {
			kept[i].Drop()
		}
	}
	testenv.Eventually(t, func() bool {
		for _, i := range []int{3, 5, 6} {
			if _, err := os.Stat(kept[i].Path(0)); !errors.Is(err, os.ErrNotExist) {
				return false
			}
		}
		return true
	}, "what was dropped is gone")
	if b, err := os.ReadFile("/proc/self/fd/" + strconv.Itoa(int(f.Fd())) + "/text"); string(b) != "b" {
		t.Errorf("what was opened before: %q, %v", b, err)
	}
	f.Close()
	if b, err := os.ReadFile(kept[4].Path(0) + "/text"); string(b) != "a" {
		t.Errorf("what was kept beside it: %q, %v", b, err)
	}
	if _, err := s.Keep(f); err == nil {
		t.Error("a file that is no mount was kept")
	}
	s.keeps.Do(func() { _, err = os.Stat("/proc") })
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the host is in the namespace: %v", err)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, k := range tasks {
		if list, err := os.ReadFile(filepath.Join("/proc/self/task", k.Name(), "mountinfo")); err == nil && strings.Contains(string(list), " / /4/2 ") {
			if seen++; strings.Count(string(list), "\n") != 1+7*4 {
				t.Errorf("mounts in the namespace:\n%s", list)
			}
		}
	}
	if seen != 2 {
		t.Errorf("%d threads are in the namespace", seen)
	}
	for _, k := range []string{"root", "cwd"} {
		if at, err := os.Readlink("/proc/self/" + k); err != nil || at == "" {
			t.Errorf("this process's %s: %q, %v", k, at, err)
		}
	}
	if mine, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mine), " /4/2 ") {
		t.Errorf("this process sees the mounts (%v)", err)
	}
}
