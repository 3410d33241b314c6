package linux

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Born tells a directory from its copies: its inode number and the time when that was made, where the file system knows it. A
// directory that is moved within its file system stays what it is.
func Born(dir string) (string, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return "", &os.PathError{Op: "statx", Path: dir, Err: err}
	}
	if st.Mask&unix.STATX_BTIME == 0 {
		return fmt.Sprintf("%d", st.Ino), nil
	}
	return fmt.Sprintf("%d.%d.%d", st.Ino, st.Btime.Sec, st.Btime.Nsec), nil
}
