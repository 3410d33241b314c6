package server

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A keeper outlives the terminals of its cells: what they send would end this process.
func TestKeepersOutliveTerminals(t *testing.T) {
	outliveTerminals()
	runtime.LockOSThread() // a signal to the own thread arrives before the call returns
	defer runtime.UnlockOSThread()
	for _, s := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT} {
		if err := unix.Tgkill(unix.Getpid(), unix.Gettid(), s); err != nil {
			t.Fatal(err)
		}
	}
}
