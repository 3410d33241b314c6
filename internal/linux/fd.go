package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// Raise returns a duplicate of f above the numbers that children use, closed
// on exec, and closes f.
func Raise(f *os.File) (*os.File, error) {
	n, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, reportFD+1)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	name := f.Name()
	f.Close()
	return os.NewFile(uintptr(n), name), nil
}

func reportPipe() (r, w *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	w, err = Raise(os.NewFile(uintptr(p[1]), "report"))
	if err != nil {
		unix.Close(p[0])
		return nil, nil, err
	}
	return os.NewFile(uintptr(p[0]), "report"), w, nil
}
