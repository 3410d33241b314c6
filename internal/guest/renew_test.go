package guest

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/pando-dev/pando/internal/hazard"
	"github.com/pando-dev/pando/internal/testenv"
)

// A process is left alone until the freezer has all of it.
func TestX09RunningProcessesAreNotRenewed(t *testing.T) {
	testenv.Root(t)
	root, err := cgroups()
	if err != nil {
		t.Skip(err)
	}
	all, err := (&group{dir: root}).sub(fmt.Sprintf("pando-renew-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer all.remove()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		all.freeze(false)
		cmd.Process.Kill()
		cmd.Wait()
	}()
	pid := cmd.Process.Pid
	if err := all.write("cgroup.procs", strconv.Itoa(pid)); err != nil {
		t.Fatal(err)
	}
	g := &inside{place: &place{all: all}, still: true}
	of := &hazard.Generator{Family: hazard.OpenSSL, File: "/none"}
	if g.rests(pid) || g.renewOne(pid, of) {
		t.Error("a process that runs is taken for one that is frozen")
	}
	if err := all.freeze(true); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool { return g.renewOne(pid, of) }, "it is frozen")
	if of.Renewed {
		t.Error("a library that it has not mapped was renewed")
	}
	g.still = false
	if g.renewOne(pid, of) {
		t.Error("a cell that goes on was changed")
	}
}
