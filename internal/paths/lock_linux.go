package paths

import (
	"os"

	"golang.org/x/sys/unix"
)

// Locked reports whether a daemon holds the installation's lock.
func (h Home) Locked() bool {
	f, err := os.Open(h.Lock())
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}
