package linux

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/testenv"
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

// endedFirstThread is a variable of the environment that lets a process of this test end its first thread alone.
const endedFirstThread = "PANDO_TEST_ENDED_FIRST_THREAD"

func init() { // on the first thread
	if os.Getenv(endedFirstThread) != "" {
		go func() { select {} }()
		time.AfterFunc(testenv.Patience(), func() { os.Exit(0) })
		unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
	}
}

// A process goes on, and is listed as it is, when its first thread alone ends. The kernel calls it a zombie.
func TestProcessWithoutItsFirstThread(t *testing.T) {
	cmd := exec.Command(os.Args[0], "that", "goes", "on")
	cmd.Env = append(os.Environ(), endedFirstThread+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	dir := fmt.Sprintf("/proc/%d", cmd.Process.Pid)
	testenv.Eventually(t, func() bool {
		_, f, err := readStat(dir)
		return err == nil && f[0] == "Z"
	}, "the end of the first thread")
	p, err := ReadProcess(cmd.Process.Pid)
	if err != nil || p.State == "Z" || p.State == "X" || p.RSS == 0 || !strings.HasSuffix(p.Command, " that goes on") {
		t.Errorf("%+v, %v", p, err)
	}
	cmd.Process.Kill()
	testenv.Eventually(t, func() bool {
		p, err := ReadProcess(cmd.Process.Pid)
		return err == nil && p.State == "Z"
	}, "the end of the process")
}

// A process on its way out is dead once it has let go of its memory, and not before.
func TestProcessesThatAreEnding(t *testing.T) {
	for _, c := range []struct{ state, flags, threads, vsize, want string }{
		{"R", "4", "1", "0", "X"}, {"R", "4", "0", "0", "X"}, {"R", "4", "1", "4096", "R"}, {"R", "0", "1", "0", "R"}, {"Z", "4", "1", "0", "Z"},
	} {
		dir := t.TempDir()
		fields := slices.Repeat([]string{"0"}, 40)
		fields[0], fields[6], fields[17], fields[20] = c.state, c.flags, c.threads, c.vsize
		if err := os.WriteFile(filepath.Join(dir, "stat"), []byte("5 (sleep) "+strings.Join(fields, " ")), 0o600); err != nil {
			t.Fatal(err)
		}
		if p, _, err := readProcessNow(dir, 5, time.Time{}); err != nil || p.State != c.want {
			t.Errorf("%+v: %q, %v", c, p.State, err)
		}
	}
}

// A process that is listed in the middle of an exec has the arguments of the new program. One that is ending
// and a thread of the kernel's have none, and are not waited for.
func TestProcessesInAnExec(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proc := t.TempDir()
		put := func(name, text string) {
			t.Helper()
			if err := os.MkdirAll(filepath.Dir(filepath.Join(proc, name)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(proc, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for pid, of := range map[string]struct{ state, flags string }{"5": {"S", "0"}, "6": {"Z", "0"}, "7": {"R", "4"}, "8": {"I", "2097152"}} {
			put(pid+"/stat", pid+" (sleep) "+of.state+" 1 1 1 0 -1 "+of.flags+strings.Repeat(" 0", 30))
			put(pid+"/cmdline", "")
		}
		time.AfterFunc(execTick*5/2, func() { put("5/cmdline", "sleep\x001000\x00") })
		began := time.Now()
		list, err := Processes(proc)
		if err != nil || len(list) != 4 || list[0].Command != "sleep 1000" || list[1].Command != "sleep" || list[2].Command != "sleep" || list[3].Command != "sleep" {
			t.Errorf("%+v, %v", list, err)
		}
		if took := time.Since(began); took != 3*execTick {
			t.Errorf("it took %s", took)
		}
		for _, pid := range []string{"5", "15", "25", "35"} { // without arguments, for good
			put(pid+"/stat", pid+" (sleep) S 1 1 1 0 -1 0"+strings.Repeat(" 0", 30))
			put(pid+"/cmdline", "")
		}
		began = time.Now()
		if list, err := Processes(proc); err != nil || list[0].Command != "sleep" {
			t.Errorf("of an exec that takes long: %+v, %v", list, err)
		}
		if took := time.Since(began); took > execWait+execTick {
			t.Errorf("four processes without arguments took %s", took)
		}
	})
}
