package gateway

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/pando-dev/pando/internal/cell"
)

const nic = tcpip.NICID(1)

// Buffers grow with use. A cell can't have many at their largest, since the gateway does not
// read more than it can send on.
const (
	bufferMin     = 4 << 10
	bufferDefault = 512 << 10
	bufferMax     = 4 << 20
	// A cell that doesn't read fills all of its buffers. So connections beyond a crowd stay
	// small: 16384 then cost 2 GiB instead of 60.
	crowd       = 256
	bufferCrowd = 128 << 10
)

// startStack makes the TCP/IP stack with the cell as its one neighbour.
func (g *Gateway) startStack() (err error) {
	end := g.cfg.Endpoint
	if end == nil {
		if end, err = g.openLink(); err != nil {
			return err
		}
	}
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocolWithOptions(ipv6.Options{NDPConfigs: ipv6.NDPConfigurations{HandleRAs: ipv6.HandlingRAsDisabled}}), arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	// A delayed rejection looks like a host that is down.
	s.SetICMPLimit(rate.Inf)
	sack := tcpip.TCPSACKEnabled(true)
	moderate := tcpip.TCPModerateReceiveBufferOption(true)
	for _, o := range []tcpip.SettableTransportProtocolOption{
		&sack, &moderate,
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: bufferMin, Default: bufferDefault, Max: bufferMax},
		&tcpip.TCPSendBufferSizeRangeOption{Min: bufferMin, Default: bufferDefault, Max: bufferMax},
	} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("set an option of TCP: %s", err)
		}
	}
	g.stack = s
	defer func() {
		if err != nil {
			g.stopStack()
		}
	}()
	g.filter = newPacketFilter(g, end)
	if err := s.CreateNIC(nic, g.filter); err != nil {
		return fmt.Errorf("attach the link: %s", err)
	}
	for _, a := range []netip.Addr{g.cfg.Link.Gateway4, g.cfg.Link.Gateway6} {
		proto := ipv4.ProtocolNumber
		if a.Is6() {
			proto = ipv6.ProtocolNumber
		}
		pa := tcpip.ProtocolAddress{Protocol: proto, AddressWithPrefix: tcpip.AddrFromSlice(a.AsSlice()).WithPrefix()}
		if err := s.AddProtocolAddress(nic, pa, stack.AddressProperties{}); err != nil {
			return fmt.Errorf("take the address %s: %s", a, err)
		}
	}
	if g.cfg.Link.Ethernet() { // the cell's address is known without asking
		for proto, a := range map[tcpip.NetworkProtocolNumber]netip.Addr{ipv4.ProtocolNumber: g.cfg.Link.Cell4.Addr(), ipv6.ProtocolNumber: g.cfg.Link.Cell6.Addr()} {
			if err := s.AddStaticNeighbor(nic, proto, tcpip.AddrFromSlice(a.AsSlice()), tcpip.LinkAddress(cell.CellMAC)); err != nil {
				return fmt.Errorf("know the cell: %s", err)
			}
		}
	}
	// It receives packets for any address, and answers from there.
	if err := s.SetPromiscuousMode(nic, true); err != nil {
		return fmt.Errorf("take every address: %s", err)
	}
	if err := s.SetSpoofing(nic, true); err != nil {
		return fmt.Errorf("answer for every address: %s", err)
	}
	s.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, NIC: nic},
		{Destination: header.IPv6EmptySubnet, NIC: nic},
	})
	fwd := tcp.NewForwarder(s, 0, maxOpening, g.accept)
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, fwd.HandlePacket)
	s.SetTransportProtocolHandler(udp.ProtocolNumber, g.datagram)
	return g.startDNS()
}

func (g *Gateway) stopStack() {
	g.stopDNS()
	if g.stack != nil {
		// The stack would wait for the link's reader under a lock that the reader takes.
		if g.filter != nil {
			g.filter.Attach(nil)
			g.filter.Wait()
		}
		g.stack.Destroy()
	}
	if g.cfg.File != nil {
		g.cfg.File.Close()
	}
}

// openLink makes an endpoint of the descriptor. Checksums of the cell's kernel are not verified:
// processes of the cell can't make packets, and on a veth the sums are not filled in. Wrong
// packets of a machine's kernel only harm itself.
func (g *Gateway) openLink() (stack.LinkEndpoint, error) {
	o := fdbased.Options{FDs: []int{int(g.cfg.File.Fd())}, MTU: uint32(g.cfg.Link.MTU), RXChecksumOffload: true, ProcessorsPerChannel: 1}
	switch g.cfg.Link.Kind {
	case "tun":
	case "veth":
		sa, err := unix.Getsockname(o.FDs[0])
		if err != nil {
			return nil, fmt.Errorf("the link is no packet socket: %w", err)
		}
		ll, ok := sa.(*unix.SockaddrLinklayer)
		if !ok || ll.Halen != 6 {
			return nil, fmt.Errorf("the link is no packet socket of an Ethernet interface")
		}
		o.EthernetHeader = true
		o.Address = tcpip.LinkAddress(ll.Addr[:6])
		o.PacketDispatchMode = fdbased.RecvMMsg
	case "socket":
		o.EthernetHeader = true
		o.Address = tcpip.LinkAddress(cell.GatewayMAC)
		o.PacketDispatchMode = fdbased.RecvMMsg
	default:
		return nil, fmt.Errorf("unknown kind of link %q", g.cfg.Link.Kind)
	}
	end, err := fdbased.New(&o)
	if err == nil && g.cfg.Link.Kind == "socket" {
		end = &patient{LinkEndpoint: end, fd: o.FDs[0], patience: patience}
	}
	return end, err
}

func addrOf(a tcpip.Address) netip.Addr {
	n, _ := netip.AddrFromSlice(a.AsSlice())
	return n.Unmap()
}
