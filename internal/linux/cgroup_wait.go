package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// WaitOOM blocks until more than seen processes were killed at the memory limit, and
// returns their number. It ends with ctx, or with cell.NotFound when the cgroup is removed,
// on v2 up to five seconds later. It occupies no thread, so that thousands of cells can
// have one each.
func (c *Cgroup) WaitOOM(ctx context.Context, seen int64) (int64, error) {
	d, ok := c.with("memory")
	if !ok {
		return 0, cell.Errorf(cell.Unsupported, "linux.WaitOOM", "", "cannot watch cgroup %s: it is in no hierarchy with controller memory", c.Name)
	}
	file := "memory.oom_control"
	if d.tree.v2 {
		file = "memory.events"
	}
	var killed int64
	err := c.wait(ctx, d, file, func() bool {
		killed = keyed(d.path, file, "oom_kill")
		return killed > seen
	})
	return killed, err
}

// WaitEmpty blocks until no process is left in the cgroup. On v1 alone it has
// to look every 20 ms.
func (c *Cgroup) WaitEmpty(ctx context.Context) error {
	d, ok := c.v2()
	if ok {
		return c.wait(ctx, d, "cgroup.events", func() bool { return keyed(d.path, "cgroup.events", "populated") == 0 })
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		populated, err := c.Populated()
		if !populated || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// cgroupLook is the poll interval of a waiter: no event says that a v2 cgroup is gone.
const cgroupLook = 5 * time.Second

// wait blocks until holds is true. It calls holds at the start and at each change of file.
func (c *Cgroup) wait(ctx context.Context, d cgroupDir, file string, holds func() bool) error {
	n, err := newCgroupNotice(d, file)
	if err != nil {
		return fmt.Errorf("cannot watch cgroup %s: %w", c.Name, err)
	}
	defer n.close()
	stop := context.AfterFunc(ctx, func() { n.poll.SetReadDeadline(time.Now()) })
	defer stop()
	for {
		n.rearm()
		if holds() {
			return nil
		}
		if _, err := os.Stat(d.path); err != nil {
			return cell.Errorf(cell.NotFound, "linux.wait", "", "cannot watch cgroup %s: it is gone", c.Name)
		}
		n.poll.SetReadDeadline(time.Now().Add(cgroupLook))
		if ctx.Err() != nil { // its deadline may have been the one just replaced
			return context.Cause(ctx)
		}
		err := n.await()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("cannot watch cgroup %s: %w", c.Name, err)
		case err == nil && !d.tree.v2: // v1 tells before it kills
			settle, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			_ = until(settle, func() (bool, error) { return holds(), nil })
			cancel()
		}
	}
}

// A cgroupNotice waits for changes of a cgroup's file. The kernel reports them by POLLPRI
// on v2 and through an eventfd on v1. Go's poller waits for neither, but it does wait for
// an epoll descriptor of ours that does. (inotify works too, but a user may have only 128
// instances.)
type cgroupNotice struct {
	poll    *os.File // epoll over watched or event
	raw     syscall.RawConn
	watched *os.File
	event   int // v1: an eventfd; -1 on v2
}

func newCgroupNotice(d cgroupDir, file string) (_ *cgroupNotice, err error) {
	n := &cgroupNotice{event: -1}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	if n.watched, err = os.Open(filepath.Join(d.path, file)); err != nil {
		return nil, err
	}
	source, events := int(n.watched.Fd()), uint32(unix.EPOLLPRI)
	if !d.tree.v2 {
		if n.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return nil, err
		}
		if err := writeCgroup(d.path, "cgroup.event_control", fmt.Sprintf("%d %d", n.event, source)); err != nil {
			return nil, err
		}
		source, events = n.event, unix.EPOLLIN
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil { // what makes os.NewFile use the poller
		return nil, errors.Join(err, unix.Close(fd))
	}
	n.poll = os.NewFile(uintptr(fd), "epoll")
	if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, source, &unix.EpollEvent{Events: events}); err != nil {
		return nil, err
	}
	n.raw, err = n.poll.SyscallConn()
	return n, err
}

// rearm discards past events: the next await returns for later ones.
func (n *cgroupNotice) rearm() {
	var b [4096]byte
	if n.event >= 0 {
		unix.Read(n.event, b[:8]) // EAGAIN: nothing has happened
		return
	}
	n.watched.ReadAt(b[:], 0)
}

// await blocks until an event, or fails when the deadline of poll has passed.
func (n *cgroupNotice) await() error {
	var failed error
	err := n.raw.Read(func(fd uintptr) bool {
		var got [1]unix.EpollEvent
		k, err := unix.EpollWait(int(fd), got[:], 0)
		if err != nil && err != unix.EINTR {
			failed = err
		}
		return k > 0 || failed != nil
	})
	return errors.Join(err, failed)
}

func (n *cgroupNotice) close() {
	for _, f := range []*os.File{n.poll, n.watched} {
		if f != nil {
			f.Close()
		}
	}
	if n.event >= 0 {
		unix.Close(n.event)
	}
}
