package linux

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// userOnly is UFFD_USER_MODE_ONLY: what everybody may ask for. Recording writes
// doesn't depend on who writes.
const userOnly = 1

// UserfaultOf returns a userfaultfd of another process's memory. The kernel makes one
// only for who asks, so one of its threads is stopped for some 100 µs and made to ask;
// we take what it got, and have the thread close its own. That thread's registers,
// signals and interrupted call are as before. It must not be the first thread: whoever
// waits for that process's end would hear of the stop.
//
// It needs the right to trace that process, and fails with ENOSYS where this isn't
// written for the processor, with EPERM if the process is traced or may not ask.
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
