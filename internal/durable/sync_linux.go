package durable

import (
	"os"

	"golang.org/x/sys/unix"
)

const directoryOnly = unix.O_DIRECTORY

// asItIs are the flags to open a file by its name alone: opening a FIFO does not block, and
// a symlink is not followed.
const asItIs = unix.O_NOFOLLOW | unix.O_NONBLOCK

// syncData makes a file's content and size survive power loss.
func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}
