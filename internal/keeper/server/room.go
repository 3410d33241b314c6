package server

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// A keeper has descriptors open for each cell of its family, and a limit of them
// (RLIMIT_NOFILE, which the Go runtime raises to the hard limit). When there are none
// left no cell of the family can be used. So forks are counted before they are made,
// and some descriptors are kept back for the use of the cells that there are.

// filesPerFork is how many descriptors a keeper has open for a fork: pidfd, connection,
// stdout, stderr. All else is opened when it is used: files of cgroups and counted
// directories by their paths, Landlock's rules for each command.
// Only a fork with denied programs has one more, for the queue of those that are
// executed: in one queue for all, one cell's could drive out another's. The kernel gives
// a user 128 of these, as it is set usually.
//
// filesPerLink is what a network interface of its own adds: the interface, what ends its
// reader (an eventfd), and the connection over which the daemon waits for what the cell
// asks for.
const (
	filesPerFork = 4
	filesPerLink = 3
)

// keptBack is how many descriptors forks leave: commands, evaluations and the counting
// of files take some for a while.
func keptBack(limit int64) int64 { return max(64, limit/8) }

// filesToFork is how many descriptors a fork takes while it is made: those that come
// with the request, pipes, mounts.
const filesToFork = 32

// forksAtOnce is how many forks are made at one time: they share half of what is kept
// back.
func forksAtOnce(limit int64) int64 { return max(keptBack(limit)/2/filesToFork, 1) }

// turnToFork waits until a fork may be made, and returns what ends its turn.
func (s *Server) turnToFork() (done func()) {
	s.sizing.Do(func() {
		_, limit, _ := openFiles()
		s.forking = make(chan struct{}, forksAtOnce(limit))
	})
	s.forking <- struct{}{}
	return func() { <-s.forking }
}

// openFiles says how many descriptors this process has open, and may have.
func openFiles() (open, limit int64, err error) {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 0, 0, os.NewSyscallError("getrlimit", err)
	}
	limit = int64(min(lim.Cur, 1<<30))
	var st unix.Stat_t
	if unix.Stat("/proc/self/fd", &st) == nil && st.Size > 0 { // Linux 6.2 counts them
		return st.Size, limit, nil
	}
	names, err := os.ReadDir("/proc/self/fd")
	return int64(len(names)), limit, err
}

// room is how many forks this keeper has descriptors for. Those that talk have a network
// interface.
func room(talk bool) (int64, error) {
	open, limit, err := openFiles()
	free := max(limit-keptBack(limit)-open, 0)
	if talk {
		return free / (filesPerFork + filesPerLink), err
	}
	return free / filesPerFork, err
}

// roomFor refuses forks that this keeper has no descriptors for.
func roomFor(n int64, talk bool) error {
	left, err := room(talk)
	if err == nil && n > left {
		err = cell.Errorf(cell.Unavailable, "keeper.fork", cell.RoomHint, "cannot fork the interpreter: its keeper has file descriptors for %d more, not %d", left, n)
	}
	return err
}
