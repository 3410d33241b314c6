package microvm

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/isolation/guestkernel"
)

// A machine that hangs blocks no caller for ever: a list of its processes fails,
// ending them gives it up, and the next command boots another.
func TestMachineThatHangs(t *testing.T) {
	if os.Getenv("E2E_SOAK") == "" {
		t.Skip("waits for twenty seconds; make soak runs it")
	}
	_, i, qemu, fuseproxy := running(t)
	if err := unix.Kill(qemu, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := i.List(t.Context()); err == nil {
		t.Error("a machine that hangs says what runs in it")
	}
	if _, err := i.KillAll(t.Context(), "it hangs"); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("they took %v", took)
	}
	if _, err := i.Do(t.Context(), "again", cell.Start{Process: cell.Process{Args: []string{"none"}, Path: []string{"/work/none"}, Workdir: "/work"}, Timeout: time.Minute}); err == nil {
		t.Error("a program ran that is not there")
	}
	if _, err := i.List(t.Context()); err != nil {
		t.Errorf("a list of the machine after it: %v", err)
	}
	for _, pid := range []int{qemu, fuseproxy} {
		if _, err := os.Stat(process(pid, "exe")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("process %d of the machine that hung is still there: %v", pid, err)
		}
	}
}

// Nor does one that hangs when a command is started: a wait for it fails, and the
// next command boots another.
func TestCommandInAMachineThatHangs(t *testing.T) {
	if os.Getenv("E2E_SOAK") == "" {
		t.Skip("waits for three minutes; make soak runs it")
	}
	_, i, qemu, _ := running(t)
	nothing := cell.Start{Process: cell.Process{Args: []string{"pando-guest", "nothing"}, Path: []string{guestkernel.GuestPath}, Workdir: "/"}}
	if err := unix.Kill(qemu, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, err := i.Do(t.Context(), "first", nothing)
	if cell.KindOf(err) != cell.Unavailable || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("a command in a machine that hangs: %v", err)
	}
	if took := time.Since(began); took < bootPatience || took > 5*time.Minute {
		t.Errorf("it was told after %v", took)
	}
	if done, err := i.Do(t.Context(), "second", nothing); err != nil || done.Status.Exit == nil || done.Status.Exit.Code != 0 {
		t.Errorf("the next command: %+v, %v", done.Status, err)
	}
}
