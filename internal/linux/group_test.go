package linux

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// sleeper starts a process and returns it as it is listed.
func sleeper(t *testing.T) (*exec.Cmd, cell.ProcessInfo) {
	t.Helper()
	c := exec.Command("sleep", "60")
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	all, err := Processes("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.PID == c.Process.Pid {
			return c, p
		}
	}
	t.Fatal("it is not listed")
	return nil, cell.ProcessInfo{}
}

// A process is its number and when it began.
func TestF27SignalExactly(t *testing.T) {
	c, p := sleeper(t)
	earlier := p
	earlier.Started = p.Started.Add(-time.Second)
	if err := SignalExactly(earlier, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	time.Sleep(20 * time.Millisecond)
	if err := c.Process.Signal(syscall.Signal(0)); err != nil {
		t.Fatalf("a process was ended for one that had its number before: %v", err)
	}
	if err := SignalExactly(p, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	c.Wait()
	if ws := c.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != unix.SIGKILL {
		t.Errorf("it ended as %v", c.ProcessState)
	}
	if err := SignalExactly(p, unix.SIGKILL); err != nil {
		t.Errorf("of one that is gone: %v", err)
	}
}

// Until its leader is reaped, a group keeps its number: signals reach what is left of it.
// Afterwards they reach no process.
func TestF27GroupIsSignalledWhileItIsOurs(t *testing.T) {
	c := exec.Command("sh", "-c", "sleep 60 & exit 3")
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	g := &Group{PID: c.Process.Pid}
	rest := func() bool {
		all, err := Processes("/proc")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			if id, err := unix.Getpgid(p.PID); err == nil && id == g.PID && p.State != "Z" {
				return true
			}
		}
		return false
	}
	left, reaped := false, false
	err := g.Wait(func() {
		left = rest()
		if reaped {
			t.Error("reaped before it was said that it had ended")
		}
		if err := g.Signal(unix.SIGKILL); err != nil {
			t.Error(err)
		}
	}, func() { c.Wait(); reaped = true })
	if err != nil || !left || !reaped || c.ProcessState.ExitCode() != 3 {
		t.Errorf("%v; left over: %v, reaped: %v, %v", err, left, reaped, c.ProcessState)
	}
	for range 200 {
		if !rest() {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if rest() {
		t.Error("what the leader left behind lives on")
	}
	other, _ := sleeper(t)
	g.PID = other.Process.Pid // as if it had got the number
	if err := g.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	time.Sleep(20 * time.Millisecond)
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the process that has the number now was ended: %v", err)
	}
}
