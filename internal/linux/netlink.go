package linux

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// A Netlink changes the interfaces, addresses and routes of a network
// namespace: that of the thread that opened it. Requests are collected and
// sent at once; the kernel carries them out one after the other, and stops at
// none that fails. It is not safe for concurrent use.
type Netlink struct {
	fd    int
	batch []byte
	names []string // of the requests, for errors
}

// OpenNetlink opens it for the namespace that this thread is in now.
func OpenNetlink() (*Netlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// What the kernel echoes of a request is not wanted in its answers.
	unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return &Netlink{fd: fd}, nil
}

// Close closes it; what was not sent is forgotten.
func (n *Netlink) Close() { unix.Close(n.fd) }

// request begins one: a header (its length is put in by end) and a body.
func (n *Netlink) request(name string, kind uint16, flags int, body []byte) (at int) {
	at = len(n.batch)
	h := make([]byte, unix.NLMSG_HDRLEN)
	native.PutUint16(h[4:], kind)
	native.PutUint16(h[6:], uint16(unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags))
	native.PutUint32(h[8:], uint32(len(n.names)))
	n.batch = append(append(n.batch, h...), body...)
	n.names = append(n.names, name)
	return at
}

func (n *Netlink) end(at int) { native.PutUint32(n.batch[at:], uint32(len(n.batch)-at)) }

// attr adds an attribute; data is padded.
func (n *Netlink) attr(kind uint16, data []byte) {
	at := n.open(kind)
	n.batch = append(n.batch, data...)
	n.close(at)
}

func (n *Netlink) attr32(kind uint16, v uint32) { n.attr(kind, native.AppendUint32(nil, v)) }

// open begins an attribute that holds others.
func (n *Netlink) open(kind uint16) (at int) {
	at = len(n.batch)
	n.batch = native.AppendUint16(native.AppendUint16(n.batch, 0), kind)
	return at
}

func (n *Netlink) close(at int) {
	native.PutUint16(n.batch[at:], uint16(len(n.batch)-at))
	for len(n.batch)%4 != 0 {
		n.batch = append(n.batch, 0)
	}
}

var native = binary.NativeEndian

// ifinfo is a struct ifinfomsg.
func ifinfo(index int, flags, change uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	native.PutUint32(b[4:], uint32(index))
	native.PutUint32(b[8:], flags)
	native.PutUint32(b[12:], change)
	return b
}

// A LinkEnd is one end of a veth pair.
type LinkEnd struct {
	Name string
	MAC  net.HardwareAddr
	MTU  int
}

func (n *Netlink) end1(e LinkEnd) {
	n.attr(unix.IFLA_IFNAME, append([]byte(e.Name), 0))
	n.attr(unix.IFLA_ADDRESS, e.MAC)
	n.attr32(unix.IFLA_MTU, uint32(e.MTU))
}

// AddVeth makes a pair: here is in the namespace of n, there in that of process
// pid, or with pid 0 beside it.
func (n *Netlink) AddVeth(here, there LinkEnd, pid int) {
	at := n.request("make a veth pair", unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, ifinfo(0, 0, 0))
	n.end1(here)
	info := n.open(unix.IFLA_LINKINFO)
	n.attr(unix.IFLA_INFO_KIND, []byte("veth"))
	data := n.open(unix.IFLA_INFO_DATA)
	peer := n.open(1) // VETH_INFO_PEER
	n.batch = append(n.batch, ifinfo(0, 0, 0)...)
	n.end1(there)
	if pid > 0 {
		n.attr32(unix.IFLA_NET_NS_PID, uint32(pid))
	}
	n.close(peer)
	n.close(data)
	n.close(info)
	n.end(at)
}

// Up brings an interface up: without multicast, without resolution of
// neighbours and without a link-local address of its own making. With mtu
// above 0 it gets that first.
func (n *Netlink) Up(index, mtu int) {
	if mtu > 0 {
		at := n.request("set the size of packets", unix.RTM_NEWLINK, 0, ifinfo(index, 0, 0))
		n.attr32(unix.IFLA_MTU, uint32(mtu))
		n.end(at)
	}
	if HasIPv6() {
		at := n.request("leave out link-local addresses", unix.RTM_NEWLINK, 0, ifinfo(index, 0, 0))
		spec := n.open(unix.IFLA_AF_SPEC)
		inet6 := n.open(unix.AF_INET6)
		n.attr(8, []byte{1}) // IFLA_INET6_ADDR_GEN_MODE: IN6_ADDR_GEN_MODE_NONE
		n.close(inet6)
		n.close(spec)
		n.end(at)
	}
	const change = unix.IFF_UP | unix.IFF_MULTICAST | unix.IFF_NOARP
	at := n.request("bring the interface up", unix.RTM_NEWLINK, 0, ifinfo(index, unix.IFF_UP|unix.IFF_NOARP, change))
	n.end(at)
}

// Rename gives an interface that is down another name.
func (n *Netlink) Rename(index int, name string) {
	at := n.request("name an interface "+name, unix.RTM_NEWLINK, 0, ifinfo(index, 0, 0))
	n.attr(unix.IFLA_IFNAME, append([]byte(name), 0))
	n.end(at)
}

// AddAddr gives an interface an address.
func (n *Netlink) AddAddr(index int, p netip.Prefix) {
	b := make([]byte, unix.SizeofIfAddrmsg)
	b[0], b[1] = family(p.Addr()), byte(p.Bits())
	native.PutUint32(b[4:], uint32(index))
	at := n.request("add the address "+p.String(), unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, b)
	n.attr(unix.IFA_LOCAL, p.Addr().AsSlice())
	n.attr(unix.IFA_ADDRESS, p.Addr().AsSlice())
	n.attr32(unix.IFA_FLAGS, unix.IFA_F_NODAD|unix.IFA_F_PERMANENT)
	n.end(at)
}

// AddDefault makes gateway the way to everywhere.
func (n *Netlink) AddDefault(index int, gateway netip.Addr) {
	b := make([]byte, unix.SizeofRtMsg)
	b[0] = family(gateway)
	b[4], b[5], b[6], b[7] = unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST
	at := n.request("add the route over "+gateway.String(), unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, b)
	n.attr32(unix.RTA_OIF, uint32(index))
	n.attr(unix.RTA_GATEWAY, gateway.AsSlice())
	n.end(at)
}

// AddNeighbour says for good where a neighbour is.
func (n *Netlink) AddNeighbour(index int, a netip.Addr, mac net.HardwareAddr) {
	b := make([]byte, unix.SizeofNdMsg)
	b[0] = family(a)
	native.PutUint32(b[4:], uint32(index))
	native.PutUint16(b[8:], unix.NUD_PERMANENT)
	at := n.request("add the neighbour "+a.String(), unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, b)
	n.attr(unix.NDA_DST, a.AsSlice())
	n.attr(unix.NDA_LLADDR, mac)
	n.end(at)
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// Send carries out what was collected, and returns the first failure.
func (n *Netlink) Send() error {
	batch, names := n.batch, n.names
	n.batch, n.names = nil, nil
	if err := unix.Sendto(n.fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	var first error
	buf := make([]byte, 16<<10)
	for left := len(names); left > 0; {
		k, _, err := unix.Recvfrom(n.fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		for b := buf[:k]; len(b) >= unix.NLMSG_HDRLEN+4; {
			size, kind, seq := int(native.Uint32(b)), native.Uint16(b[4:]), int(native.Uint32(b[8:]))
			if size < unix.NLMSG_HDRLEN+4 || size > len(b) || kind != unix.NLMSG_ERROR || seq >= len(names) {
				return fmt.Errorf("cannot read the kernel's answer about interfaces")
			}
			if errno := -int32(native.Uint32(b[unix.NLMSG_HDRLEN:])); errno != 0 && first == nil {
				first = &NetlinkError{names[seq], unix.Errno(errno)}
			}
			left--
			b = b[min((size+3)&^3, len(b)):]
		}
	}
	return first
}

// Arrives reports whether what is sent to an address is taken by this namespace
// itself. The kernel makes an IPv6 address so only some time after it was added:
// until then it sends from it, and drops what comes back.
func (n *Netlink) Arrives(a netip.Addr) (bool, error) {
	b := make([]byte, unix.SizeofRtMsg)
	b[0], b[1] = family(a), byte(a.BitLen())
	at := n.request("look for the route to "+a.String(), unix.RTM_GETROUTE, 0, b)
	n.attr(unix.RTA_DST, a.AsSlice())
	n.end(at)
	native.PutUint16(n.batch[6:], unix.NLM_F_REQUEST) // one answer
	batch := n.batch
	n.batch, n.names = nil, nil
	if err := unix.Sendto(n.fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return false, os.NewSyscallError("sendto", err)
	}
	buf := make([]byte, 4<<10)
	for {
		k, _, err := unix.Recvfrom(n.fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false, os.NewSyscallError("recvfrom", err)
		}
		const kind = 7 // of struct rtmsg: rtm_type
		return k > unix.NLMSG_HDRLEN+kind && native.Uint16(buf[4:]) == unix.RTM_NEWROUTE && buf[unix.NLMSG_HDRLEN+kind] == unix.RTN_LOCAL, nil
	}
}

// NetlinkError says which request the kernel refused.
type NetlinkError struct {
	Request string
	Errno   unix.Errno
}

func (e *NetlinkError) Error() string { return fmt.Sprintf("cannot %s: %v", e.Request, e.Errno) }

// Unwrap returns the errno.
func (e *NetlinkError) Unwrap() error { return e.Errno }
