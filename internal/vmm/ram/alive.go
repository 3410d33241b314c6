package ram

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// aliveProbe tells whether a process and its memory still exist. It holds a pidfd and
// an open /proc/PID/pagemap, so that a later process with the same number is not
// mistaken for it.
type aliveProbe struct {
	pidfd   int
	pagemap *os.File
}

// newAliveProbe opens the pidfd of a process. The caller keeps its pagemap open.
func newAliveProbe(pid int, pagemap *os.File) (*aliveProbe, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return &aliveProbe{fd, pagemap}, nil
}

// check fails with ESRCH if the process has ended, or if its memory is being removed.
// Pages that were listed and read before a successful check were those of a process
// with all its memory. PAGEMAP_SCAN alone does not say so: some kernels find no pages
// in memory that was removed, and report success.
//
// The pidfd is not enough: a process loses its memory some time before its pidfd becomes
// readable. A read of pagemap returns nothing from that moment on (mmget_not_zero in
// pagemap_read).
func (p *aliveProbe) check(addr uint64) error {
	var entry [8]byte
	n, err := p.pagemap.ReadAt(entry[:], int64(addr/uint64(os.Getpagesize())*8))
	if n == 0 && (err == nil || err == io.EOF) {
		return unix.ESRCH
	}
	if err != nil {
		return err
	}
	for {
		fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return os.NewSyscallError("poll", err)
		case n > 0:
			return unix.ESRCH
		default:
			return nil
		}
	}
}

func (p *aliveProbe) close() error { return unix.Close(p.pidfd) }
