package reexec

import (
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/failpoint"
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
	name := failpoint.Program("pando")
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if err == unix.EINVAL { // before Linux 6.3 there is no MFD_EXEC, and no need for it
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, "", os.NewSyscallError("memfd_create", err)
	}
	defer unix.Close(fd)
	// Above the numbers that a child's own descriptors get before it executes.
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 100)
	if err != nil {
		return nil, "", os.NewSyscallError("fcntl", err)
	}
	f = os.NewFile(uintptr(high), "pando")
	if _, err := io.Copy(f, src); err != nil {
		f.Close()
		return nil, "", err
	}
	if _, err := unix.FcntlInt(uintptr(high), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, "", os.NewSyscallError("seal", err)
	}
	return f, "/proc/self/fd/" + strconv.Itoa(high), nil
}
