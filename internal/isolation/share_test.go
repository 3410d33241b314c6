package isolation

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/cell"
)

// A command begins in its keeper's memory and copies none of it
// (linux.SpawnOptions.Share). A keeper that forks instead has each page that it
// writes to afterwards copied, once for each command, and page tables copied
// before: the larger the family, the slower.
func TestCommandsCopyNoMemoryOfTheKeeper(t *testing.T) {
	b := NewHost(config(t))
	defer b.Close()
	i, err := b.Create(t.Context(), backendtest.Little(t))
	if err != nil {
		t.Fatal(err)
	}
	defer i.Remove(context.Background(), "done")
	pid := i.KeeperPID()
	run := func(n int) {
		t.Helper()
		d, err := i.Do(t.Context(), fmt.Sprintf("p%d", n), cell.Start{Process: cell.Process{Args: []string{"true"}, Path: []string{"/usr/bin/true"}, Workdir: "/work"}})
		if err != nil || d.Status.Exit == nil || d.Status.Exit.Code != 0 {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	const warm, many = 20, 100
	for n := range warm {
		run(n)
	}
	before := minorFaults(t, pid)
	for n := range many {
		run(warm + n)
	}
	if per := (minorFaults(t, pid) - before) / many; per > 30 {
		t.Errorf("the keeper has %d page faults for each command: its memory is copied", per)
	} else {
		t.Logf("%d page faults for each command", per)
	}
}

// minorFaults counts the pages that a process was given or that were copied for
// it.
func minorFaults(t *testing.T, pid int) (n int) {
	t.Helper()
	b, err := os.ReadFile(procPath(pid, "stat"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	if _, err := fmt.Sscan(strings.Fields(rest)[7], &n); err != nil {
		t.Fatal(err)
	}
	return n
}
