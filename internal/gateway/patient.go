package gateway

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// patience is how long a packet waits for room on the way to a machine.
const patience = 50 * time.Millisecond

// patient is a link that is a socket. Where an interface has a queue of a thousand
// packets, a socket has room for a few, as many as the host lets it have; who sends
// more is held up until the machine has taken some, instead of losing what he sends.
// A machine that takes nothing (it boots, or stands still) is waited for once: what
// comes afterwards is lost until it does.
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

// room waits until there is some, and says whether there is.
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
