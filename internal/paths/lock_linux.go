package paths

import (
	"os"

	"golang.org/x/sys/unix"
)

// Locked reports whether a daemon holds the installation's lock.
func (h Home) Locked() bool { return held(h.Lock()) }

// Served reports whether a pando serve is there: its daemon comes back by itself.
func (h Home) Served() bool { return held(h.ServeLock()) }

func held(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}
