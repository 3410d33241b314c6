package linux

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// LinkSettings are the kernel's settings of a cell's interface, below net/ipv6/conf/NAME.
// Only the gateway is on its link, and there is nothing to discover. A kernel may lack some.
var LinkSettings = [][2]string{
	{"disable_ipv6", "0"}, {"accept_ra", "0"}, {"autoconf", "0"}, {"accept_dad", "0"}, {"dad_transmits", "0"},
	{"router_solicitations", "0"}, {"use_tempaddr", "0"}, {"accept_redirects", "0"},
}

// ConfigureLink gives a cell's interface, which bears its name, the addresses of the
// link and the way to everywhere. It works in the network namespace of this thread.
// six says whether IPv6 works on it: a kernel without has a link without.
func ConfigureLink(l cell.NetworkLink) (six bool, err error) {
	index, err := InterfaceIndex(cell.InterfaceName)
	if err != nil {
		return false, err
	}
	n, err := OpenNetlink()
	if err != nil {
		return false, err
	}
	defer n.Close()
	mtu := l.MTU
	if l.Kind == "veth" {
		mtu = 0 // it was made so
	}
	n.Up(index, mtu)
	n.protocol(index, l, l.Cell4, l.Gateway4)
	if err := n.Send(); err != nil {
		return false, err
	}
	n.protocol(index, l, l.Cell6, l.Gateway6)
	err = n.Send()
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	if err == nil {
		err = n.arrived(l.Cell6.Addr())
	}
	return err == nil, err
}

// protocol is what an interface must know of one protocol: its own address, and the
// gateway's.
func (n *Netlink) protocol(index int, l cell.NetworkLink, own netip.Prefix, gateway netip.Addr) {
	n.AddAddr(index, own)
	if l.Ethernet() {
		n.AddNeighbour(index, gateway, cell.GatewayMAC)
	}
	n.AddDefault(index, gateway)
}

// arrived waits until an address is the namespace's.
func (n *Netlink) arrived(a netip.Addr) error {
	for began := time.Now(); time.Since(began) < 5*time.Second; time.Sleep(100 * time.Microsecond) {
		if arrives, err := n.Arrives(a); arrives || err != nil {
			return err
		}
	}
	return fmt.Errorf("cannot use the address %s: the kernel doesn't take it", a)
}

// NameLink gives the interface with the cell's Ethernet address, in the network
// namespace of this thread, the name of a cell's, before it is up. It fails with
// os.ErrNotExist if there is none.
func NameLink() error {
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range all {
		if !bytes.Equal(i.HardwareAddr, cell.CellMAC) {
			continue
		}
		n, err := OpenNetlink()
		if err != nil {
			return err
		}
		defer n.Close()
		n.Rename(i.Index, cell.InterfaceName)
		return n.Send()
	}
	return fmt.Errorf("no interface has the address %s: %w", cell.CellMAC, os.ErrNotExist)
}

// linkBuffer is how much may be under way to either end of a FramePair, in bytes: what
// every host allows. The kernel makes twice as much of it, for some largest frames as it
// counts them.
const linkBuffer = 212992

// FramePair is two ends of a link over which frames go, each whole. Neither end
// blocks; one that is full says so with EAGAIN.
func FramePair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	for _, fd := range fds {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, linkBuffer)
	}
	return os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link"), nil
}
