package repl

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// A stand is a program that only waits to be forked. It has a second socket for that, of
// packets, and its wait there changes no memory.
//
//	keeper: one byte, and the descriptors of a fork
//	program: eight bytes, the fork's PID, or a negative errno
//
// It ends when the socket is closed; then the program answers questions again.
type stand struct {
	c     *net.UnixConn
	flags uintptr
}

// stands makes the program stand, if it can and does not yet. It returns nil if it cannot. The
// caller holds c.standing.
func (c *Conn) stands(ctx context.Context, flags uintptr) *stand {
	if st := c.stand.Load(); st != nil && st.flags == flags {
		return st
	}
	if c.sits {
		return nil
	}
	c.rise()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "stand"), os.NewFile(uintptr(fds[1]), "stand")
	defer ours.Close()
	defer theirs.Close()
	var a struct {
		Standing bool `json:"standing"`
	}
	if err := c.ask(ctx, map[string]any{"op": "stand", "flags": uint64(flags)}, &a, theirs); err != nil || !a.Standing {
		c.sits = cell.KindOf(err) == cell.Unsupported || err == nil
		c.slow = "it does not say why"
		if err != nil {
			c.slow = bounded(strings.TrimPrefix(err.Error(), "cannot stand the interpreter: "))
		}
		return nil
	}
	nc, err := net.FileConn(ours)
	if err != nil {
		return nil
	}
	c.slow = ""
	st := &stand{nc.(*net.UnixConn), flags}
	c.stand.Store(st)
	return st
}

// Stand makes the program stand before its first fork, if it can.
func (c *Conn) Stand(ctx context.Context, flags uintptr) {
	c.standing.Lock()
	defer c.standing.Unlock()
	c.stands(ctx, flags)
}

// Slow returns why a program that was asked to stand does not, which makes forks slower; "" if
// it does, or was not asked.
func (c *Conn) Slow() string {
	c.standing.Lock()
	defer c.standing.Unlock()
	return c.slow
}

// sit ends a stand, so that the program answers questions.
func (c *Conn) sit() {
	if c.stand.Load() == nil {
		return
	}
	c.standing.Lock()
	defer c.standing.Unlock()
	c.rise()
}

func (c *Conn) rise() {
	if st := c.stand.Swap(nil); st != nil {
		st.c.Close()
	}
}

// clone requests one fork. The caller holds Conn.standing.
func (s *stand) clone(ctx context.Context, files []*os.File) (pid int, err error) {
	// The program counts descriptors by the length of the message, which the kernel rounds up
	// to two. An extra one makes it write to a cgroup twice.
	if len(files)%2 == 1 {
		files = append(files[:len(files):len(files)], files[len(files)-1])
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		s.c.SetDeadline(time.Unix(1, 0))
		close(done)
	})
	defer func() {
		if !stop() {
			<-done
		}
	}()
	if _, _, err := s.c.WriteMsgUnix([]byte{0}, unix.UnixRights(fds...), nil); err != nil {
		return 0, cell.Errorf(cell.Unavailable, "interp.Fork", "", "cannot fork the interpreter: %w", err)
	}
	var b [8]byte
	n, err := s.c.Read(b[:])
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, cell.Errorf(cell.Timeout, "interp.Fork", "", "cannot fork the interpreter: it does not answer")
	case err != nil || n != len(b):
		return 0, cell.Errorf(cell.Unavailable, "interp.Fork", "", "cannot fork the interpreter: it is gone")
	}
	if pid = int(int64(binary.NativeEndian.Uint64(b[:]))); pid <= 0 {
		return 0, cell.Errorf(cell.Unsupported, "interp.Fork", "", "cannot fork the interpreter: clone: %w", unix.Errno(-pid))
	}
	return pid, nil
}
