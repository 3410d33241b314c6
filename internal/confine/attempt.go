package confine

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// Attempt is a canary of a talking cell: an access that its gateway must deny.
type Attempt struct {
	Name   string      `json:"name"`
	Access cell.Access `json:"access"`
	How    How         `json:"how"`
	// For a query:
	Server netip.Addr `json:"server,omitzero"`
	Type   uint16     `json:"type,omitempty"` // record type
	ID     [2]byte    `json:"id,omitzero"`
	// Refusals are the addresses that the gateway returns for denied names.
	Refusals netip.Prefix `json:"refusals,omitzero"`
}

// How is the kind of an access.
type How string

// Kinds of accesses.
const (
	Dial     How = "dial"
	Datagram How = "datagram"
	Query    How = "query"
)

// Attempts adds canaries that a gateway must deny. All are started before the first is waited
// for, so that together they cost little more than one.
func Attempts(s *linux.Script, made *Measured, list []Attempt) {
	var settle []func()
	for i := range list {
		a := &list[i]
		op := made.Add(a.Name, "gateway")
		switch a.How {
		case Dial:
			settle = append(settle, dial(s, op, a.Access))
		case Datagram:
			settle = append(settle, datagram(s, op, a.Access))
		case Query:
			settle = append(settle, a.query(s, op))
		}
	}
	for _, f := range settle {
		f()
	}
}

// patience is the time limit for the gateway's refusal, which normally comes at once. No answer
// is a failure.
var patience = unix.Timeval{Sec: 3}

var patienceOfPoll = unix.Timespec{Sec: 3}

// unreachable are the errors of a denied destination.
var unreachable = []unix.Errno{unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EACCES}

// dial opens a connection that must be refused. The first call of connect starts it, the second
// returns the result.
func dial(s *linux.Script, op string, a cell.Access) func() {
	fd := begin(s, a, unix.SOCK_STREAM|unix.SOCK_NONBLOCK)
	to := sockaddr(a.Addr, a.Port)
	s.Try("connect", unix.SYS_CONNECT, fd, to, len(to))
	return func() {
		s.Call("wait", unix.SYS_FCNTL, fd, unix.F_SETFL, 0)
		s.Refused(op, unreachable, unix.SYS_CONNECT, fd, to, len(to))
		s.Call("close", unix.SYS_CLOSE, fd)
	}
}

// datagram sends a datagram, which must be reported as undeliverable.
func datagram(s *linux.Script, op string, a cell.Access) func() {
	fd := begin(s, a, unix.SOCK_DGRAM)
	to, text := sockaddr(a.Addr, a.Port), []byte("canary")
	s.Try("connect", unix.SYS_CONNECT, fd, to, len(to))
	s.Try("send", unix.SYS_SENDTO, fd, text, len(text), 0, nil, 0)
	return func() {
		// gVisor wakes only pollers for an error, not readers.
		s.Call("dup", unix.SYS_DUP3, fd, pollFD, unix.O_CLOEXEC)
		wait := binary.NativeEndian.AppendUint32(nil, pollFD) // struct pollfd {fd int32, events, revents int16}
		s.Call("poll", unix.SYS_PPOLL, append(wait, 0, 0, 0, 0), 1, linux.AddressOf(s, &patienceOfPoll), nil, 0)
		s.Call("close", unix.SYS_CLOSE, pollFD)
		s.Refused(op, unreachable, unix.SYS_RECVFROM, fd, make([]byte, 64), 64, 0, nil, nil)
		s.Call("close", unix.SYS_CLOSE, fd)
	}
}

// pollFD is a descriptor that no script uses otherwise.
const pollFD = 97

// query asks the gateway's DNS server. It must answer with a refusal address, and with no
// record of another type.
func (a *Attempt) query(s *linux.Script, op string) func() {
	be := binary.BigEndian
	q := append(append([]byte{}, a.ID[:]...), 1, 0, 0, 1, 0, 0, 0, 0, 0, 0) // recursion desired; one question
	for label := range strings.SplitSeq(a.Access.Host, ".") {
		q = append(append(q, byte(len(label))), label...)
	}
	q = be.AppendUint16(be.AppendUint16(append(q, 0), a.Type), 1) // class IN
	fd := begin(s, cell.Access{Addr: a.Server}, unix.SOCK_DGRAM)
	to, answer := sockaddr(a.Server, 53), make([]byte, 512)
	s.Call(op, unix.SYS_CONNECT, fd, to, len(to))
	s.Call(op, unix.SYS_SENDTO, fd, q, len(q), 0, nil, 0)
	return func() {
		s.Call(op, unix.SYS_RECVFROM, fd, answer, len(answer), 0, nil, nil)
		mask, want := a.refusal(q)
		s.Match(op, answer, mask, want)
		s.Call("close", unix.SYS_CLOSE, fd)
	}
}

// refusal returns the relevant parts of the answer for a denied name: the same ID, a response
// without an error, and no record, or the one address.
func (a *Attempt) refusal(q []byte) (mask, want []byte) {
	const typeA = 1
	mask = []byte{0xff, 0xff, 0x80, 0x0f, 0, 0, 0xff, 0xff}
	want = []byte{a.ID[0], a.ID[1], 0x80, 0, 0, 0, 0, 0}
	if a.Type != typeA {
		return mask, want
	}
	want[7] = 1
	// After the question: the name again, type, class and TTL (8 bytes), and the length of the
	// address.
	at := len(q) + len(q) - 12 - 4 + 10
	mask, want = append(mask, make([]byte, at+4-len(mask))...), append(want, make([]byte, at+4-len(want))...)
	net := a.Refusals.Masked().Addr().As4()
	copy(want[at:], net[:])
	for i := range a.Refusals.Bits() {
		mask[at+i/8] |= 0x80 >> (i % 8)
	}
	return mask, want
}

// begin creates a socket with a time limit on its calls.
func begin(s *linux.Script, a cell.Access, kind int) linux.Slot {
	family := unix.AF_INET6
	if a.Addr.Is4() {
		family = unix.AF_INET
	}
	fd := s.Call("socket", unix.SYS_SOCKET, family, kind|unix.SOCK_CLOEXEC, 0)
	wait := linux.AddressOf(s, &patience)
	for _, opt := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
		s.Call("timeout", unix.SYS_SETSOCKOPT, fd, unix.SOL_SOCKET, opt, wait, 16)
	}
	return fd
}

// sockaddr returns a struct sockaddr_in or sockaddr_in6.
func sockaddr(a netip.Addr, port uint16) []byte {
	if a.Is4() {
		b := binary.BigEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, unix.AF_INET), port)
		return append(append(b, a.AsSlice()...), make([]byte, 8)...)
	}
	b := binary.BigEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, unix.AF_INET6), port)
	return append(append(append(b, 0, 0, 0, 0), a.AsSlice()...), 0, 0, 0, 0)
}
