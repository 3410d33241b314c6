package cell

import (
	"net"
	"net/netip"
)

// InterfaceName is that of a talking cell's one interface beside lo.
const InterfaceName = "pando0"

// HostName is the user's own machine, as a cell knows it: what listens on its
// loopback. A rule must name it, with a port.
const HostName = "host.pando.internal"

// NetworkLink is how a cell's interface reaches its gateway.
type NetworkLink struct {
	Kind string `json:"kind"` // "tun", "veth", "socket"
	MTU  int    `json:"mtu"`
	// The addresses inside: of the cell's interface, and of the gateway that
	// answers DNS and is the way to everywhere.
	Cell4    netip.Prefix `json:"cell4"`
	Cell6    netip.Prefix `json:"cell6"`
	Gateway4 netip.Addr   `json:"gateway4"`
	Gateway6 netip.Addr   `json:"gateway6"`
}

// Refusals are the addresses that denied names lead to: of the range of the
// cell's own names, behind all that can be given to one. The gateway answers
// there, and nobody else can have them.
func (l NetworkLink) Refusals() netip.Prefix {
	if !l.Gateway4.Is4() {
		return netip.Prefix{}
	}
	b := netip.PrefixFrom(l.Gateway4, 15).Masked().Addr().As4()
	b[1]++
	b[2] = 0x80
	return netip.PrefixFrom(netip.AddrFrom4(b), 22)
}

// Ethernet reports whether frames go over the link; else it is packets alone. A
// socket is the link of a virtual machine: a frame each.
func (l NetworkLink) Ethernet() bool { return l.Kind == "veth" || l.Kind == "socket" }

// The ends of a link with frames. Neither asks for the other: they are told.
var (
	GatewayMAC = net.HardwareAddr{0x02, 'p', 'a', 'n', 'd', 1}
	CellMAC    = net.HardwareAddr{0x02, 'p', 'a', 'n', 'd', 2}
)

// DefaultLink is the addressing of every cell: nobody else shares its link, so
// all can be alike. The ranges are those set aside for benchmarks (RFC 2544)
// and a random unique local prefix (RFC 4193).
func DefaultLink() NetworkLink {
	return NetworkLink{
		MTU:   65520,
		Cell4: netip.MustParsePrefix("198.18.0.2/30"), Gateway4: netip.MustParseAddr("198.18.0.1"),
		Cell6: netip.MustParsePrefix("fd70:616e:646f::2/64"), Gateway6: netip.MustParseAddr("fd70:616e:646f::1"),
	}
}
