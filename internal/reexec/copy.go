package reexec

import (
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/linux"
)

// Copy returns a copy of this executable in memory that no process can change, and the path
// by which this process executes it.
//
// A forked child that executes a file of another user's choice can be made to execute its
// own program (a script with the interpreter /proc/self/exe). A process that may inspect
// the child then reaches the file of that program. With a copy that file is not the
// installed one.
func Copy() (f *os.File, path string, err error) {
	src, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, "", err
	}
	defer src.Close()
	low, err := linux.MemoryFile(failpoint.Program("pando"), true)
	if err != nil {
		return nil, "", err
	}
	defer low.Close()
	// Above the numbers that a child's own descriptors get before it executes.
	high, err := unix.FcntlInt(low.Fd(), unix.F_DUPFD_CLOEXEC, 100)
	if err != nil {
		return nil, "", os.NewSyscallError("fcntl", err)
	}
	f = os.NewFile(uintptr(high), "pando")
	if _, err := io.Copy(f, src); err != nil {
		f.Close()
		return nil, "", err
	}
	if err := linux.Seal(f); err != nil {
		f.Close()
		return nil, "", err
	}
	return f, "/proc/self/fd/" + strconv.Itoa(high), nil
}
