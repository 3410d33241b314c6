package archive

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// A terminal that a cell puts in the way of a copy does not become the controlling terminal of
// the keeper, a session leader without one: its hang-up would end the keeper.
func TestTerminalsOfACellStayItsOwn(t *testing.T) {
	const leader = "PANDO_TEST_LEADER"
	if os.Getenv(leader) == "" {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), exe, "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), leader+"=1", "TMPDIR="+t.TempDir())
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(master)
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(fmt.Sprintf("/dev/pts/%d", n), link); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{cell.FileRead, cell.FileWrite} {
		if _, err := act(root, cell.FileAct{Act: a, Path: link}, "x"); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%s a terminal: %v", a, err)
		}
	}
	if fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); !errors.Is(err, unix.ENXIO) {
		unix.Close(fd)
		t.Errorf("the controlling terminal: %v, want ENXIO", err)
	}
}
