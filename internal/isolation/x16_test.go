package isolation

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/testenv"
)

// That there are no descriptors left is said as what it is.
func TestX16AShortageIsNamed(t *testing.T) {
	c := &Cell{w: wire{Landlock: true}, Init: &linux.Child{PID: os.Getpid()}, forked: true,
		cgroup: linux.CgroupPlace{Dirs: []linux.CgroupDir{{Path: t.TempDir()}}}.Cgroup()}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	_, entry := c.entry()
	_, rules := c.rules()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{entry, rules} {
		if cell.KindOf(err) != cell.Unavailable {
			t.Errorf("with no descriptors left: %v", err)
		}
	}
}

// A cell that was frozen when it was killed ends also when it could not be thawed at
// once: on version 1 of cgroups nothing frozen dies.
func TestX16KilledIsThawedAgain(t *testing.T) {
	group := t.TempDir()
	sleep := exec.Command("sleep", "3600")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer sleep.Wait()
	pidfd, err := linux.OpenProcess(sleep.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	c := &Cell{Init: &linux.Child{PID: sleep.Process.Pid, PIDFD: pidfd}, gone: make(chan struct{}),
		cgroup: linux.CgroupPlace{Dirs: []linux.CgroupDir{{Path: group, V2: true}}}.Cgroup()}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.End()
	}()
	state := filepath.Join(group, "cgroup.freeze") // until now there was nothing to write to
	if err := os.WriteFile(state, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool {
		b, _ := os.ReadFile(state)
		return string(b) == "0"
	}, "the cell is thawed again")
	close(c.gone)
	testenv.Receive(t, ended, "the end of the cell")
}

// A fork can be killed when no descriptor is left to look at its processes.
func TestX16AForkIsKilledWithoutDescriptors(t *testing.T) {
	sleep := exec.Command("sleep", "3600")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd, err := linux.OpenProcess(sleep.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	const id = cell.ID("c-0000000000000001")
	c := &Cell{Init: &linux.Child{PID: sleep.Process.Pid, PIDFD: pidfd}, forked: true, gone: make(chan struct{})}
	d := &Driver{cells: map[cell.ID]*Cell{id: c}}
	c.d = d
	go c.follow()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	n, err := d.KillAll(id)
	if serr := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); serr != nil {
		t.Fatal(serr)
	}
	if n != 1 || err != nil {
		t.Errorf("%d processes were killed, %v", n, err)
	}
	sleep.Wait()
}
