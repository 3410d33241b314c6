package durable

import (
	"os"

	"golang.org/x/sys/unix"
)

const directoryOnly = unix.O_DIRECTORY

// syncData makes a file's content and size survive power loss.
func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}
