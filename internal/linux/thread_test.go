package linux

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A child that follows its parent's death outlives every thread but the one
// that forked it.
func TestThreadOutlivesTheOthers(t *testing.T) {
	thread := NewThread()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGUSR1}
	var on int
	thread.Do(func() { on, err = unix.Gettid(), cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				runtime.LockOSThread() // not unlocked: its thread ends here
				if unix.Gettid() == on {
					t.Error("another goroutine runs on the thread")
				}
			})
		}
		all.Wait()
	}
	thread.Do(func() {
		if unix.Gettid() != on {
			t.Error("it is another thread now")
		}
	})
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the child: %v", err)
	}
}
