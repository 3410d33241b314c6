package linux

import (
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/testenv"
)

// Waiting for the end of a process takes no thread and does not reap it. A kernel with that
// ability reports the exit status to any process.
func TestTheEndOfAProcess(t *testing.T) {
	own := exec.Command("sleep", "60")
	if err := own.Start(); err != nil {
		t.Fatal(err)
	}
	f, err := OpenProcess(own.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ended := make(chan error, 1)
	go func() { ended <- WaitGone(f) }()
	select {
	case err := <-ended:
		t.Fatalf("it has ended before it did: %v", err)
	case <-time.After(30 * time.Millisecond):
	}
	if _, known := ExitStatus(f); known {
		t.Error("the exit of a process that runs is known")
	}
	own.Process.Signal(unix.SIGTERM)
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testenv.Patience()):
		t.Fatal("its end is not noticed")
	}
	own.Wait()
	if ws, known := ExitStatus(f); known && ws.Signal() != unix.SIGTERM {
		t.Errorf("it ended with %v", ws)
	} else if !known {
		t.Log("this kernel doesn't tell")
	}
}
