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

// disconnect ends the connections to others that a copy's processes have open,
// because those belong to its source, and returns to whom they were. It asks each
// process for its sockets: gVisor has no sock_diag(7) that could end them.
func (p *place) disconnect() (ended []string) {
	for _, pid := range p.all.pids() {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it is gone
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

// sockets are the descriptors of a process that are sockets.
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

// peer is the other end of a TCP connection, unless that is the sandbox itself.
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

// end resets a connection; where the kernel can't, whoever reads gets the end, and
// whoever writes an error.
func end(s int) error {
	if linux.Disconnect(s) == nil {
		return nil
	}
	if err := unix.Shutdown(s, unix.SHUT_RDWR); err != nil {
		return fmt.Errorf("cannot end a connection: %w", err)
	}
	return nil
}
