package gatewaytest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/pando-dev/pando/internal/cell"
)

// Cell is the inside of a cell.
type Cell interface {
	// Dial connects to an address, "tcp" or "udp".
	Dial(ctx context.Context, network, address string) (net.Conn, error)
	// Ping sends an ICMP echo request, and fails with what came back instead of
	// an answer.
	Ping(ctx context.Context, addr netip.Addr) error
}

// Site is one cell and the gateway's end of its link.
type Site struct {
	Link     cell.NetworkLink
	File     *os.File
	Endpoint stack.LinkEndpoint // or this, in memory
	Cell     Cell
}

// wire is one end of a link in memory. What is sent is queued, as on a real
// link: neither side works in the other's call.
type wire struct {
	mtu   uint32
	queue chan packet
	other *wire
	quit  chan struct{}
	once  *sync.Once
	ended sync.WaitGroup

	mu sync.RWMutex
	to stack.NetworkDispatcher
}

type packet struct {
	proto tcpip.NetworkProtocolNumber
	buf   buffer.Buffer
}

// Wire makes a link in memory.
func Wire(mtu uint32) (a, b stack.LinkEndpoint) {
	quit, once := make(chan struct{}), new(sync.Once)
	x := &wire{mtu: mtu, queue: make(chan packet, 1024), quit: quit, once: once}
	y := &wire{mtu: mtu, queue: make(chan packet, 1024), quit: quit, once: once}
	x.other, y.other = y, x
	return x, y
}

func (w *wire) Attach(d stack.NetworkDispatcher) {
	w.mu.Lock()
	was := w.to
	w.to = d
	w.mu.Unlock()
	switch {
	case d == nil:
		w.once.Do(func() { close(w.quit) })
	case was == nil:
		w.ended.Go(func() {
			for {
				select {
				case <-w.quit:
					return
				case p := <-w.queue:
					pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: p.buf})
					w.mu.RLock()
					to := w.to
					w.mu.RUnlock()
					if to != nil {
						to.DeliverNetworkPacket(p.proto, pkt)
					}
					pkt.DecRef()
				}
			}
		})
	}
}

func (w *wire) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	n := 0
	for _, p := range pkts.AsSlice() {
		select {
		case w.other.queue <- packet{p.NetworkProtocolNumber, p.ToBuffer()}:
			n++
		case <-w.quit:
			return n, &tcpip.ErrClosedForSend{}
		default: // a full queue loses packets
			n++
		}
	}
	return n, nil
}

func (w *wire) IsAttached() bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.to != nil
}
func (w *wire) Wait()         { w.ended.Wait() }
func (w *wire) MTU() uint32   { return w.mtu }
func (w *wire) SetMTU(uint32) {}
func (w *wire) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload
}
func (w *wire) MaxHeaderLength() uint16                 { return 0 }
func (w *wire) LinkAddress() tcpip.LinkAddress          { return "" }
func (w *wire) SetLinkAddress(tcpip.LinkAddress)        {}
func (w *wire) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (w *wire) AddHeader(*stack.PacketBuffer)           {}
func (w *wire) ParseHeader(*stack.PacketBuffer) bool    { return true }
func (w *wire) Close()                                  { w.once.Do(func() { close(w.quit) }) }
func (w *wire) SetOnCloseAction(func())                 {}

// Inside is a cell that is a second TCP/IP stack in this process.
type Inside struct {
	stack *stack.Stack
	link  cell.NetworkLink
}

// Stack joins a cell of this process to a link in memory.
func Stack(t testing.TB) Site {
	link := cell.DefaultLink()
	mine, theirs := Wire(uint32(link.MTU))
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	if err := s.CreateNIC(1, mine); err != nil {
		t.Fatal(err)
	}
	for _, p := range []netip.Prefix{link.Cell4, link.Cell6} {
		proto := ipv4.ProtocolNumber
		if p.Addr().Is6() {
			proto = ipv6.ProtocolNumber
		}
		if err := s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: proto, AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(p.Addr().AsSlice()), PrefixLen: p.Bits()}}, stack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}, {Destination: header.IPv6EmptySubnet, NIC: 1}})
	sack := tcpip.TCPSACKEnabled(true)
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack)
	t.Cleanup(func() {
		mine.Attach(nil) // or the stack waits for it under a lock that it takes
		mine.Wait()
		s.Destroy()
	})
	return Site{Link: link, Endpoint: theirs, Cell: &Inside{stack: s, link: link}}
}

// Dial connects from inside.
func (in *Inside) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	proto := ipv4.ProtocolNumber
	if ap.Addr().Is6() {
		proto = ipv6.ProtocolNumber
	}
	to := tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFromSlice(ap.Addr().AsSlice()), Port: ap.Port()}
	switch network {
	case "tcp":
		c, err := gonet.DialContextTCP(ctx, in.stack, to, proto)
		if err != nil {
			return nil, err
		}
		return c, nil
	case "udp":
		c := &udpConn{to: net.UDPAddrFromAddrPort(ap)}
		var terr tcpip.Error
		if c.ep, terr = in.stack.NewEndpoint(udp.ProtocolNumber, proto, &c.wq); terr == nil {
			terr = c.ep.Connect(to)
		}
		if terr != nil {
			return nil, errors.New(terr.String())
		}
		return c, nil
	}
	return nil, fmt.Errorf("unknown network %s", network)
}

// Ping sends one echo request from inside.
func (in *Inside) Ping(ctx context.Context, addr netip.Addr) error {
	proto, trans := ipv4.ProtocolNumber, icmp.ProtocolNumber4
	msg := make([]byte, 16)
	msg[0] = byte(header.ICMPv4Echo)
	if addr.Is6() {
		proto, trans = ipv6.ProtocolNumber, icmp.ProtocolNumber6
		msg[0] = byte(header.ICMPv6EchoRequest)
	}
	binary.BigEndian.PutUint16(msg[6:], 1)
	var wq waiter.Queue
	ep, terr := in.stack.NewEndpoint(trans, proto, &wq)
	if terr != nil {
		return errors.New(terr.String())
	}
	defer ep.Close()
	e, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventErr)
	wq.EventRegister(&e)
	defer wq.EventUnregister(&e)
	if terr := ep.Connect(tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFromSlice(addr.AsSlice())}); terr != nil {
		return errors.New(terr.String())
	}
	p := &payload{msg}
	if _, terr := ep.Write(p, tcpip.WriteOptions{}); terr != nil {
		return errors.New(terr.String())
	}
	select {
	case <-ready:
	case <-time.After(300 * time.Millisecond): // this stack throws refusals away
		return errors.New("no answer")
	}
	b := tcpip.SliceWriter(make([]byte, 64))
	if _, terr := ep.Read(&b, tcpip.ReadOptions{}); terr != nil {
		return errors.New(terr.String())
	}
	return nil
}

// udpConn is a connected UDP socket that hears of refusals, as one of a kernel
// does.
type udpConn struct {
	ep   tcpip.Endpoint
	wq   waiter.Queue
	to   net.Addr
	till time.Time
}

func (c *udpConn) Read(b []byte) (int, error) {
	e, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventErr)
	c.wq.EventRegister(&e)
	defer c.wq.EventUnregister(&e)
	late := make(<-chan time.Time)
	if !c.till.IsZero() {
		late = time.After(time.Until(c.till))
	}
	for {
		w := tcpip.SliceWriter(b)
		res, err := c.ep.Read(&w, tcpip.ReadOptions{})
		if err == nil {
			return res.Count, nil
		}
		if _, ok := err.(*tcpip.ErrWouldBlock); !ok {
			return 0, errors.New(err.String())
		}
		if err := c.ep.LastError(); err != nil {
			return 0, errors.New(err.String())
		}
		select {
		case <-ready:
		case <-late:
			return 0, os.ErrDeadlineExceeded
		}
	}
}

func (c *udpConn) Write(b []byte) (int, error) {
	n, err := c.ep.Write(&payload{b}, tcpip.WriteOptions{})
	if err != nil {
		return int(n), errors.New(err.String())
	}
	return int(n), nil
}

func (c *udpConn) Close() error                      { c.ep.Close(); return nil }
func (c *udpConn) LocalAddr() net.Addr               { return &net.UDPAddr{} }
func (c *udpConn) RemoteAddr() net.Addr              { return c.to }
func (c *udpConn) SetDeadline(t time.Time) error     { c.till = t; return nil }
func (c *udpConn) SetReadDeadline(t time.Time) error { c.till = t; return nil }
func (c *udpConn) SetWriteDeadline(time.Time) error  { return nil }

type payload struct{ b []byte }

func (p *payload) Read(to []byte) (int, error) {
	n := copy(to, p.b)
	p.b = p.b[n:]
	return n, nil
}

func (p *payload) Len() int { return len(p.b) }
