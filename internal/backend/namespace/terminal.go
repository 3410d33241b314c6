package namespace

import (
	"os"

	"golang.org/x/sys/unix"
)

// openTerminal makes a terminal in the cell's own devpts, so that it has a
// name there.
func openTerminal(init int, rows, cols uint16) (master, slave *os.File, err error) {
	fd, err := unix.Open(procPath(init, "root/dev/pts/ptmx"), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: "the cell's /dev/ptmx", Err: err}
	}
	master = os.NewFile(uintptr(fd), "terminal")
	defer func() {
		if err != nil {
			master.Close()
		}
	}()
	if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, os.NewSyscallError("unlock terminal", err)
	}
	// O_NOCTTY, or it becomes the terminal of the keeper, which then dies of its
	// hang-up.
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		err = os.NewSyscallError("open terminal", errno)
	} else {
		slave = os.NewFile(peer, "terminal")
		if rows > 0 && cols > 0 {
			unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
		}
	}
	return master, slave, err
}
