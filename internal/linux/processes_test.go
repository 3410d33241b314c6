package linux

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// Running, dying and ended processes can be told apart.
func TestDying(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if dying(cmd.Process.Pid) || dying(os.Getpid()) {
		t.Error("a living process is said to be dying")
	}
	cmd.Process.Kill()
	if !dying(cmd.Process.Pid) {
		t.Error("a process that was sent SIGKILL is said to live")
	}
	for began := time.Now(); time.Since(began) < 100*time.Millisecond; time.Sleep(time.Millisecond) {
		if !dying(cmd.Process.Pid) {
			t.Fatal("a process that was not reaped is said to live")
		}
	}
	cmd.Wait()
	if !dying(cmd.Process.Pid) {
		t.Error("a process that is gone is said to live")
	}
}
