package gateway

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// patience is how long a packet waits for room on the socket to a machine.
const patience = 50 * time.Millisecond

// patient is a link over a socket. An interface queues a thousand packets, a socket only a few.
// The sender blocks until the machine has taken some, instead of losing packets. A machine that
// takes nothing (it boots, or is paused) blocks a sender once; packets after that are lost until
// it does.
type patient struct {
	stack.LinkEndpoint
	fd       int
	patience time.Duration
	deaf     atomic.Bool
}

// WritePackets implements stack.LinkEndpoint.
func (p *patient) WritePackets(list stack.PacketBufferList) (int, tcpip.Error) {
	all, sent := list.AsSlice(), 0
	for {
		var rest stack.PacketBufferList
		for _, pkt := range all[sent:] {
			rest.PushBack(pkt)
		}
		n, err := p.LinkEndpoint.WritePackets(rest)
		if sent += n; n > 0 {
			p.deaf.Store(false)
		}
		if _, full := err.(*tcpip.ErrWouldBlock); !full || p.deaf.Load() {
			return sent, err
		}
		if !p.room() {
			p.deaf.Store(true)
			return sent, err
		}
	}
}

// room waits until there is room, and reports whether there is.
func (p *patient) room() bool {
	for until := time.Now().Add(p.patience); ; {
		left := time.Until(until)
		if left <= 0 {
			return false
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLOUT}}, int(left/time.Millisecond)+1)
		if err != unix.EINTR {
			return n == 1 && err == nil
		}
	}
}
