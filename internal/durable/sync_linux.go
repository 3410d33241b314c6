package durable

import (
	"os"

	"golang.org/x/sys/unix"
)

const directoryOnly = unix.O_DIRECTORY

// asItIs opens a file that nothing has taken the place of: a FIFO holds nobody, and a
// symlink is not followed.
const asItIs = unix.O_NOFOLLOW | unix.O_NONBLOCK

// syncData makes a file's content and size survive power loss.
func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}
