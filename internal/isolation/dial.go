package isolation

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// Dial implements server.Dialer. The socket is created in the cell's network namespace. Dial
// tries IPv6 if nothing listens on IPv4.
func (d *Driver) Dial(ctx context.Context, id cell.ID, port int) (net.Conn, error) {
	c, err := d.Cell(id)
	if err != nil {
		return nil, err
	}
	if port < 1 || port > 65535 {
		return nil, cell.Errorf(cell.Invalid, "isolation.Dial", "", "cannot connect to port %d", port)
	}
	conn, err := c.dial(ctx, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}, unix.AF_INET)
	if errors.Is(err, unix.ECONNREFUSED) {
		if six, serr := c.dial(ctx, &unix.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}}, unix.AF_INET6); serr == nil {
			return six, nil
		}
	}
	if err != nil {
		return nil, cell.Errorf(cell.Unavailable, "isolation.Dial", "", "cannot reach port %d in the cell: %w", port, err)
	}
	return conn, nil
}

func (c *Cell) dial(ctx context.Context, to unix.Sockaddr, family int) (net.Conn, error) {
	fd := -1
	err := linux.InNetNS(int(c.Init.PIDFD.Fd()), func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, err
	}
	limit := 10 * time.Second
	if at, ok := ctx.Deadline(); ok {
		limit = time.Until(at)
	}
	tv := unix.NsecToTimeval(max(limit, time.Millisecond).Nanoseconds())
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv) // applies to connect
	if err := unix.Connect(fd, to); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{})
	f := os.NewFile(uintptr(fd), "port")
	defer f.Close()
	return net.FileConn(f)
}

// Ports implements server.Dialer.
func (d *Driver) Ports(_ context.Context, id cell.ID) (list []cell.Listening, err error) {
	c, err := d.Cell(id)
	if err != nil {
		return nil, err
	}
	err = linux.InNetNS(int(c.Init.PIDFD.Fd()), func() (err error) {
		list, err = linux.Listening("/proc/thread-self/net")
		return err
	})
	return list, err
}
