package cell

import (
	"net"
	"net/netip"
)

// InterfaceName is the name of the one interface beside lo, in a cell with a network.
const InterfaceName = "pando0"

// HostName is the name for the host's loopback inside a cell. A rule must name it, with a
// port.
const HostName = "host.pando.internal"

// NetworkLink is the link between a cell's interface and its gateway.
type NetworkLink struct {
	Kind string `json:"kind"` // "tun", "veth", "socket"
	MTU  int    `json:"mtu"`
	// The addresses inside: the cell's interface, and the gateway, which answers DNS and
	// is the default route.
	Cell4    netip.Prefix `json:"cell4"`
	Cell6    netip.Prefix `json:"cell6"`
	Gateway4 netip.Addr   `json:"gateway4"`
	Gateway6 netip.Addr   `json:"gateway6"`
}

// Refusals returns the range that denied names resolve to. It lies in the range of the
// cell's own names, above every address that the gateway assigns to a name; the gateway
// answers there.
func (l NetworkLink) Refusals() netip.Prefix {
	if !l.Gateway4.Is4() {
		return netip.Prefix{}
	}
	b := netip.PrefixFrom(l.Gateway4, 15).Masked().Addr().As4()
	b[1]++
	b[2] = 0x80
	return netip.PrefixFrom(netip.AddrFrom4(b), 22)
}

// Ethernet reports whether the link carries Ethernet frames; else it carries IP packets. A
// socket is the link of a virtual machine, with one frame per message.
func (l NetworkLink) Ethernet() bool { return l.Kind == "veth" || l.Kind == "socket" }

// The ends of a link with frames. Their addresses are configured, not asked for with ARP.
var (
	GatewayMAC = net.HardwareAddr{0x02, 'p', 'a', 'n', 'd', 1}
	CellMAC    = net.HardwareAddr{0x02, 'p', 'a', 'n', 'd', 2}
)

// DefaultLink is the addressing of every cell. Cells can be alike, because each has a link
// of its own. The ranges are those set aside for benchmarks (RFC 2544) and a random unique
// local prefix (RFC 4193).
func DefaultLink() NetworkLink {
	return NetworkLink{
		MTU:   65520,
		Cell4: netip.MustParsePrefix("198.18.0.2/30"), Gateway4: netip.MustParseAddr("198.18.0.1"),
		Cell6: netip.MustParsePrefix("fd70:616e:646f::2/64"), Gateway6: netip.MustParseAddr("fd70:616e:646f::1"),
	}
}
