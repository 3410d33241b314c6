package linux

import (
	"strings"

	"golang.org/x/sys/unix"
)

// LongestPath is the longest path that one system call takes, in bytes. A tree can be
// deeper: a process that changes its directory while it makes one needs no long path.
const LongestPath = unix.PathMax - 1

// OpenBelow is openat2 for a path of any length below a directory. A longer one
// than the kernel takes is followed piece by piece, each below the one before.
// Where many paths are opened below the same directory, a Dir is quicker.
func OpenBelow(dir int, path string, how *unix.OpenHow) (int, error) {
	at, rest, err := approach(dir, path, how.Resolve)
	if err != nil {
		return -1, err
	}
	if at != dir {
		defer unix.Close(at)
	}
	return openAt(at, rest, how)
}

// approach opens the folders on the way to path until one call takes the rest.
// It returns dir itself where that takes all of it.
func approach(dir int, path string, resolve uint64) (int, string, error) {
	at := dir
	for len(path) > LongestPath {
		i := strings.LastIndexByte(path[:LongestPath+1], '/')
		if i <= 0 {
			i = 0 // one name too long for any file system: the kernel says so
		}
		next, err := -1, error(unix.ENAMETOOLONG)
		if i > 0 {
			next, err = openAt(at, path[:i], &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolve})
		}
		if at != dir {
			unix.Close(at)
		}
		if err != nil {
			return -1, "", err
		}
		at, path = next, strings.TrimLeft(path[i:], "/")
	}
	if path == "" {
		path = "."
	}
	return at, path, nil
}

// mostRaces bounds how often a path is resolved anew because a name on it changed.
const mostRaces = 1000

// openAt is openat2 without interruptions. No terminal that it opens becomes the controlling
// terminal of this process: the path may be one that a cell chose, and the hang-up of the
// terminal would end this process.
func openAt(dir int, path string, how *unix.OpenHow) (int, error) {
	to := *how
	if to.Flags&unix.O_PATH == 0 { // with it, openat2 accepts no other flag
		to.Flags |= unix.O_NOCTTY
	}
	for races := 0; ; {
		fd, err := unix.Openat2(dir, path, &to)
		if err == unix.EAGAIN { // a name changed meanwhile; with O_NONBLOCK also: a lease of the file is held
			races++
		}
		if err != unix.EINTR && err != unix.EAGAIN || races > mostRaces {
			return fd, err
		}
	}
}

// Abridged is a path as a message shows it: the middle of a very long one is
// left out.
func Abridged(path string) string {
	const ends = 100
	if len(path) <= 3*ends {
		return path
	}
	return path[:ends] + "/…/" + path[len(path)-ends:]
}
