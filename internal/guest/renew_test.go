package guest

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/hazard"
	"github.com/pando-dev/pando/internal/need"
)

// A process is left alone until all its threads are stopped.
func TestX09RunningProcessesAreNotRenewed(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	pid := cmd.Process.Pid
	g := &inside{place: &place{}, still: true}
	of := &hazard.Generator{Family: hazard.OpenSSL, File: "/none"}
	if g.rests(pid) || g.renewOne(pid, of) {
		t.Error("a process that runs is taken for one that is stopped")
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	need.Eventually(t, func() bool { return g.renewOne(pid, of) }, "it is stopped")
	if of.Renewed {
		t.Error("a library that it has not mapped was renewed")
	}
	g.still = false
	if g.renewOne(pid, of) {
		t.Error("a cell that goes on was changed")
	}
}
