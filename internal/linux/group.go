package linux

import (
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// Group is a child of this process that leads a process group, and what is in
// that group. Its number is its own until it is reaped, so signals are sent
// only before: never to a later process, or group, of the same number.
type Group struct {
	PID int

	mu     sync.Mutex // guards reaped, and the number while a signal is sent
	reaped bool
}

// Signal reaches the group and its leader. After the leader was reaped it does
// nothing.
func (g *Group) Signal(sig unix.Signal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reaped {
		return nil
	}
	if unix.Kill(-g.PID, sig) == nil {
		return nil
	}
	if err := unix.Kill(g.PID, sig); err != unix.ESRCH {
		return err
	}
	return nil
}

// Wait returns when the leader has ended and reap has taken its exit. ended is
// called between the two: a signal sent from there still reaches what is left
// of the group.
func (g *Group) Wait(ended, reap func()) error {
	for {
		err := unix.Waitid(unix.P_PID, g.PID, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return os.NewSyscallError("waitid", err)
		}
	}
	ended()
	g.mu.Lock()
	defer g.mu.Unlock()
	reap()
	g.reaped = true
	return nil
}

// SignalExactly sends sig to the process that p describes, and to no other
// that has its number meanwhile: a process is its number and when it began.
// One that is gone is no error.
func SignalExactly(p cell.ProcessInfo, sig unix.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return gone(err)
	}
	defer unix.Close(fd)
	// From here on the number can change hands and fd doesn't.
	now, _, err := readProcessNow("/proc/"+strconv.Itoa(p.PID), p.PID, bootTime())
	switch {
	case IsGone(err), err == nil && !now.Started.Equal(p.Started):
		return nil
	case err != nil:
		return err
	}
	return gone(unix.PidfdSendSignal(fd, sig, nil, 0))
}

func gone(err error) error {
	if err == unix.ESRCH {
		return nil
	}
	return os.NewSyscallError("pidfd", err)
}
