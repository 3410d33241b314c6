package linux

import (
	"bufio"
	"errors"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/testenv"
)

// waiter is a program with one other thread, which twenty times does something that waits
// for a tenth of a second; it prints when a wait was cut short, long, or failed.
const waiter = `
import os, select, sys, threading, time
r, w = os.pipe()
lock = threading.Lock(); lock.acquire()
def nothing():
    b = time.monotonic()
    while time.monotonic() - b < 0.1: pass
wait = {
    "sleep": lambda: time.sleep(0.1),
    "select": lambda: select.select([r], [], [], 0.1),
    "lock": lambda: lock.acquire(timeout=0.1),
    "read": lambda: os.read(r, 1),
    "nothing": nothing,
}[sys.argv[1]]
def run():
    try:
        for i in range(20):
            b = time.monotonic(); wait(); d = time.monotonic() - b
            assert d > 0.09 or sys.argv[1] == "read", d
        print("fine", flush=True)
    except BaseException as e: print(repr(e), flush=True)
t = threading.Thread(target=run); t.start()
print("ready", flush=True)
if sys.argv[1] == "read":
    for i in range(20):
        time.sleep(0.1); os.write(w, b"x")
t.join()
`

// waits starts one that waits so, and returns how to hear its next word.
func waits(t *testing.T, how string) (pid int, hear func() string) {
	t.Helper()
	cmd := exec.Command(testenv.Python(t), "-c", waiter, how)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	in := bufio.NewScanner(out)
	hear = func() string { in.Scan(); return in.Text() }
	if got := hear(); got != "ready" {
		t.Fatalf("it says %q", got)
	}
	return cmd.Process.Pid, hear
}

// TestAThreadThatAskedGoesOn: its registers, signals and interrupted calls are as
// before, whatever it was in.
func TestAThreadThatAskedGoesOn(t *testing.T) {
	for _, how := range []string{"sleep", "select", "lock", "read", "nothing"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			pid, hear := waits(t, how)
			began := time.Now() // it says its word after two seconds, and ends
			for i := 0; i < 100 && time.Since(began) < time.Second; i++ {
				f, err := UserfaultOf(pid)
				if err != nil {
					t.Fatal(err)
				}
				f.Close()
				time.Sleep(10 * time.Millisecond)
			}
			if got := hear(); got != "fine" {
				t.Errorf("a thread that was made to ask says %q", got)
			}
		})
	}
}

// TestWhoMayNotAskSaysSo: a process that has all the files that it may.
func TestWhoMayNotAskSaysSo(t *testing.T) {
	pid, hear := waits(t, "sleep")
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{}, nil); err != nil {
		t.Fatal(err)
	}
	if f, err := UserfaultOf(pid); !errors.Is(err, unix.EMFILE) {
		f.Close()
		t.Errorf("asking is %v, want %v", err, unix.EMFILE)
	}
	if got := hear(); got != "fine" {
		t.Errorf("a thread that was made to ask says %q", got)
	}
}
