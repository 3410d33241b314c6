package linux

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// userOnly is UFFD_USER_MODE_ONLY, which needs no privileges. Recording does not depend on
// the mode of the writer.
const userOnly = 1

// UserfaultOf returns a userfaultfd of another process's memory. The kernel makes one only
// for the calling process. So one thread of that process is stopped for some 100 µs and
// made to call; the result is taken over, and the thread closes its own. Its registers,
// signals and interrupted call are as before. It must not be the first thread: a process
// that waits for the end of that one would see the stop.
//
// It needs the right to trace that process. It fails with ENOSYS on a processor without
// an implementation here, and with EPERM if the process is traced or may not call.
func UserfaultOf(pid int) (*os.File, error) {
	var f *os.File
	err := borrowing(pid, func(b *borrowed) error {
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return os.NewSyscallError("pidfd_open", err)
		}
		defer unix.Close(pidfd)
		theirs, err := b.call(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|userOnly)
		if err != nil {
			return os.NewSyscallError("userfaultfd", err)
		}
		fd, err := unix.PidfdGetfd(pidfd, int(theirs), 0)
		if _, gone := b.call(unix.SYS_CLOSE, theirs); err == nil && gone != nil {
			unix.Close(fd)
			err = gone
		}
		if err != nil {
			return os.NewSyscallError("pidfd_getfd", err)
		}
		f = os.NewFile(uintptr(fd), "userfaultfd")
		return nil
	})
	if err != nil {
		if f != nil {
			f.Close()
		}
		return nil, fmt.Errorf("cannot make process %d ask for a userfaultfd: %w", pid, err)
	}
	return f, nil
}
