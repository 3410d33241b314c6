package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// OpenTerminal makes a new terminal of the devpts with its ptmx at path. With sizes it has
// that size. Neither end becomes the controlling terminal of this process, which would end
// with the terminal.
func OpenTerminal(path string, rows, cols uint16) (master, slave *os.File, err error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	master = os.NewFile(uintptr(fd), "terminal")
	defer func() {
		if err != nil {
			master.Close()
		}
	}()
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, os.NewSyscallError("unlock terminal", err)
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, nil, os.NewSyscallError("open terminal", errno)
	}
	slave = os.NewFile(peer, "terminal")
	if rows > 0 && cols > 0 {
		if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
			slave.Close()
			return nil, nil, os.NewSyscallError("size terminal", err)
		}
	}
	return master, slave, nil
}
