package linux

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// OpenProcess returns a file that stands for the process, which need not be a
// child of this one, and for no later one of its number. Gone waits for its end
// without a thread.
func OpenProcess(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return Raise(os.NewFile(uintptr(fd), "pidfd"))
}

// WaitGone returns when the process behind a file of OpenProcess has ended, or
// when the file is closed.
func WaitGone(f *os.File) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return c.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
}

// ExitStatus says how the process behind a pidfd ended, also for a process that is not a
// child of the caller (Linux 6.15 and later). It is not known before the process was
// reaped.
func ExitStatus(f *os.File) (syscall.WaitStatus, bool) {
	return pidfdExit(f)
}
