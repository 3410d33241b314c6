package gateway

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/nested"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/pando-dev/pando/internal/cell"
)

// packetFilter filters packets between the link and the stack. A stack that answers for every address
// would also answer pings to every address: door rejects them, as a packet filter would.
type packetFilter struct {
	nested.Endpoint
	g *Gateway
}

func newPacketFilter(g *Gateway, child stack.LinkEndpoint) *packetFilter {
	d := &packetFilter{g: g}
	d.Endpoint.Init(child, d)
	return d
}

// DeliverNetworkPacket receives a packet from the cell.
func (d *packetFilter) DeliverNetworkPacket(protocol tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	defer d.g.survive("a packet")
	first, ok := pkt.Data().PullUp(min(pkt.Data().Size(), header.IPv6MinimumSize+8))
	if !ok || len(first) == 0 {
		return
	}
	switch first[0] >> 4 {
	case 4:
		if protocol == 0 {
			protocol = header.IPv4ProtocolNumber
		}
		if protocol == header.IPv4ProtocolNumber && !d.admit4(first, pkt) {
			return
		}
	case 6:
		if protocol == 0 {
			protocol = header.IPv6ProtocolNumber
		}
		if protocol == header.IPv6ProtocolNumber && !d.admit6(first, pkt) {
			return
		}
	}
	d.Endpoint.DeliverNetworkPacket(protocol, pkt)
}

// admit4 decides whether the stack gets the packet.
func (d *packetFilter) admit4(b []byte, pkt *stack.PacketBuffer) bool {
	if len(b) < header.IPv4MinimumSize {
		return false
	}
	ip := header.IPv4(b)
	src, dst := addrOf(ip.SourceAddress()), addrOf(ip.DestinationAddress())
	if src != d.g.cfg.Link.Cell4.Addr() {
		return false
	}
	if ip.Protocol() != uint8(header.ICMPv4ProtocolNumber) || dst == d.g.cfg.Link.Gateway4 {
		return true
	}
	hl := int(ip.HeaderLength())
	if hl < header.IPv4MinimumSize || len(b) < hl+1 || b[hl] != uint8(header.ICMPv4Echo) || ip.FragmentOffset() != 0 {
		return false // answers without a request
	}
	d.refusePing(dst)
	quote := head(pkt, hl+8)
	msg := make([]byte, header.IPv4MinimumSize+header.ICMPv4MinimumSize+len(quote))
	icmp := header.ICMPv4(msg[header.IPv4MinimumSize:])
	icmp.SetType(header.ICMPv4DstUnreachable)
	icmp.SetCode(header.ICMPv4AdminProhibited)
	copy(icmp[header.ICMPv4MinimumSize:], quote)
	icmp.SetChecksum(^checksum.Checksum(icmp, 0))
	out := header.IPv4(msg)
	out.Encode(&header.IPv4Fields{TotalLength: uint16(len(msg)), TTL: 64, Protocol: uint8(header.ICMPv4ProtocolNumber), SrcAddr: tcpip.AddrFromSlice(d.g.cfg.Link.Gateway4.AsSlice()), DstAddr: ip.SourceAddress()})
	out.SetChecksum(^out.CalculateChecksum())
	d.send(header.IPv4ProtocolNumber, msg, pkt)
	return false
}

func (d *packetFilter) admit6(b []byte, pkt *stack.PacketBuffer) bool {
	if len(b) < header.IPv6MinimumSize {
		return false
	}
	ip := header.IPv6(b)
	src, dst := addrOf(ip.SourceAddress()), addrOf(ip.DestinationAddress())
	link := src.IsLinkLocalUnicast() || src.IsUnspecified() // neighbour discovery
	if src != d.g.cfg.Link.Cell6.Addr() && !(link && ip.NextHeader() == uint8(header.ICMPv6ProtocolNumber)) {
		return false
	}
	if ip.NextHeader() != uint8(header.ICMPv6ProtocolNumber) || dst == d.g.cfg.Link.Gateway6 || len(b) < header.IPv6MinimumSize+8 {
		return true
	}
	if b[header.IPv6MinimumSize] != uint8(header.ICMPv6EchoRequest) {
		return true
	}
	if link || dst.IsMulticast() {
		return false
	}
	d.refusePing(dst)
	quote := head(pkt, header.IPv6MinimumSize+64)
	body := make([]byte, header.ICMPv6MinimumSize+4+len(quote))
	icmp := header.ICMPv6(body[:header.ICMPv6DstUnreachableMinimumSize+len(quote)])
	icmp.SetType(header.ICMPv6DstUnreachable)
	icmp.SetCode(header.ICMPv6Prohibited)
	copy(icmp[header.ICMPv6DstUnreachableMinimumSize:], quote)
	from := tcpip.AddrFromSlice(d.g.cfg.Link.Gateway6.AsSlice())
	icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: from, Dst: ip.SourceAddress()}))
	msg := make([]byte, header.IPv6MinimumSize, header.IPv6MinimumSize+len(icmp))
	header.IPv6(msg).Encode(&header.IPv6Fields{PayloadLength: uint16(len(icmp)), TransportProtocol: header.ICMPv6ProtocolNumber, HopLimit: 64, SrcAddr: from, DstAddr: ip.SourceAddress()})
	d.send(header.IPv6ProtocolNumber, append(msg, icmp...), pkt)
	return false
}

// head copies the first n bytes of a packet, or fewer.
func head(pkt *stack.PacketBuffer, n int) []byte {
	b, _ := pkt.Data().PullUp(min(pkt.Data().Size(), n))
	return append([]byte(nil), b...)
}

// send puts a packet on the link, to the sender of the one it answers.
func (d *packetFilter) send(proto tcpip.NetworkProtocolNumber, msg []byte, cause *stack.PacketBuffer) {
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{ReserveHeaderBytes: int(d.MaxHeaderLength()), Payload: buffer.MakeWithData(msg)})
	defer p.DecRef()
	p.NetworkProtocolNumber = proto
	if eth := cause.LinkHeader().Slice(); len(eth) >= header.EthernetMinimumSize {
		h := header.Ethernet(eth)
		p.EgressRoute.LocalLinkAddress, p.EgressRoute.RemoteLinkAddress = h.DestinationAddress(), h.SourceAddress()
		d.AddHeader(p)
	}
	var list stack.PacketBufferList
	list.PushBack(p)
	d.WritePackets(list)
}

func (d *packetFilter) refusePing(dst netip.Addr) {
	a := cell.Access{Act: cell.Connect, Addr: dst, Transport: "icmp"}
	if host, _ := d.g.hostAt(dst); host != "" {
		a.Host, a.Addr = host, netip.Addr{}
	}
	l := d.g.inForce.Load()
	d.g.tellRefused(l, a, d.g.decideConnect(l, a), "")
}

// datagram rejects UDP that is not for the gateway's own DNS. The stack answers "port
// unreachable", upon which a QUIC client falls back to TCP.
func (g *Gateway) datagram(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	defer g.survive("a datagram")
	dst := addrOf(id.LocalAddress)
	if dst.IsMulticast() || dst == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return true // messages to neighbours; there are none
	}
	a := cell.Access{Act: cell.Connect, Addr: dst, Port: id.LocalPort, Transport: "udp"}
	if host, _ := g.hostAt(dst); host != "" {
		a.Host, a.Addr = host, netip.Addr{}
	}
	l := g.inForce.Load()
	g.tellRefused(l, a, g.decideConnect(l, a), "")
	return false
}
