package namespace

import (
	"os"

	"golang.org/x/sys/unix"
)

// openTerminal makes a terminal in the cell's own devpts, so that it has a
// name there.
func openTerminal(init int, rows, cols uint16) (master, slave *os.File, err error) {
	fd, err := unix.Open(procPath(init, "root/dev/pts/ptmx"), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
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
	peer, err := unix.IoctlRetInt(fd, unix.TIOCGPTPEER)
	if err == nil {
		slave = os.NewFile(uintptr(peer), "terminal")
		if rows > 0 && cols > 0 {
			unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
		}
	}
	return master, slave, os.NewSyscallError("open terminal", err)
}
