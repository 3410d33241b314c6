package guest

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// disconnect closes the connections to other hosts that a copy inherited from its source, and
// returns the peers. It inspects each process's sockets, because gVisor has no sock_diag(7).
func (p *place) disconnect() (ended []string) {
	for _, pid := range p.all.pids() {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		for _, n := range p.sockets(pid) {
			s, err := unix.PidfdGetfd(fd, n, 0)
			if err != nil {
				continue
			}
			if to, ok := peer(s); ok && end(s) == nil {
				ended = append(ended, "socket "+to)
			}
			unix.Close(s)
		}
		unix.Close(fd)
	}
	return ended
}

// sockets returns the socket descriptors of a process.
func (p *place) sockets(pid int) (list []int) {
	fd, err := unix.Openat(int(p.proc.Fd()), strconv.Itoa(pid)+"/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	d := os.NewFile(uintptr(fd), "fd")
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	for _, name := range names {
		buf := make([]byte, 64)
		k, err := unix.Readlinkat(fd, name, buf)
		if err != nil || !strings.HasPrefix(string(buf[:k]), "socket:") {
			continue
		}
		if n, err := strconv.Atoi(name); err == nil {
			list = append(list, n)
		}
	}
	return list
}

// peer returns the remote address of a TCP connection, unless it is local to the sandbox.
func peer(s int) (string, bool) {
	if kind, err := unix.GetsockoptInt(s, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
		return "", false
	}
	to, err := unix.Getpeername(s)
	if err != nil {
		return "", false
	}
	var at netip.AddrPort
	switch a := to.(type) {
	case *unix.SockaddrInet4:
		at = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		at = netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	default:
		return "", false
	}
	return at.String(), !at.Addr().IsLoopback()
}

// end resets a connection. If the kernel cannot, readers get EOF, and writers get an error.
func end(s int) error {
	if linux.Disconnect(s) == nil {
		return nil
	}
	if err := unix.Shutdown(s, unix.SHUT_RDWR); err != nil {
		return fmt.Errorf("cannot end a connection: %w", err)
	}
	return nil
}
