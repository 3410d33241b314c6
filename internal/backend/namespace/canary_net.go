package namespace

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/linux"
)

// reserved is where the names lie that canaries ask for: nobody can have them
// (RFC 6761).
const reserved = ".pando-canary.invalid"

// patience is how long a canary waits for the gateway's no. It comes at once;
// none at all is a failure.
var patience = unix.Timeval{Sec: 3}

// unreachable is what a denied destination must look like: nobody is there.
var unreachable = []unix.Errno{unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EACCES}

// attempt is a canary of a talking cell: an access that its gateway denies. Of
// the alternatives the first that the policy denies is tried.
type attempt struct {
	name string
	any  []cell.Access
	// try begins it; what it returns waits for the answer. All are begun before
	// the first is waited for, so that together they cost little more than one.
	try func(s *linux.Script, op string, a cell.Access) (settle func())
}

// proof is what the gateway must have seen of a command's canaries.
type proof struct {
	trial keeper.Trial
	wants map[int]string // by index of the access
}

// talkingCanaries adds what is tried against the gateway of a talking cell, as
// far as its policy denies it.
func (c *liveCell) talkingCanaries(s *linux.Script, made *confine.Measured) (*proof, error) {
	p := &proof{wants: map[int]string{}}
	if c.link == nil {
		return p, nil
	}
	if c.link.witness == nil {
		return p, cell.Errorf(cell.Internal, "namespace.Start", "", "cannot prove the cell's network: it has no gateway")
	}
	list := c.link.attempts()
	var all []cell.Access
	for _, t := range list {
		all = append(all, t.any...)
	}
	var err error
	if p.trial, err = c.link.witness.Try(all); err != nil {
		return p, err
	}
	denied := p.trial.Denied()
	at := 0
	var settle []func()
	for _, t := range list {
		found := false
		for i, a := range t.any {
			if !found && denied[at+i] {
				found = true
				p.wants[at+i] = t.name
				settle = append(settle, t.try(s, made.Add(t.name, "gateway"), a))
			}
		}
		if !found {
			made.Skipped = append(made.Skipped, t.name)
		}
		at += len(t.any)
	}
	for _, f := range settle {
		f()
	}
	return p, nil
}

// complete waits until the gateway has seen all that was tried: a canary that
// something else stopped says nothing about the gateway.
func (p *proof) complete(int) error {
	if p.trial == nil {
		return nil
	}
	for began := time.Now(); ; time.Sleep(100 * time.Microsecond) {
		missing := ""
		for i, seen := range p.trial.Seen() {
			if name, wanted := p.wants[i]; wanted && !seen {
				missing = name
			}
		}
		if missing == "" {
			return nil
		}
		if time.Since(began) > time.Second {
			return &unseen{missing}
		}
	}
}

func (p *proof) end() {
	if p.trial != nil {
		p.trial.End()
	}
}

// unseen is a canary that the gateway knows nothing of.
type unseen struct{ name string }

func (e *unseen) Error() string { return "canary " + e.name + ": never came to the gateway" }

// attempts are those of one command. Names, addresses and ports are its own, as
// far as what is tried leaves a choice, so that they can be told from whatever
// else the cell does.
func (l *link) attempts() []attempt {
	var nonce [20]byte
	rand.Read(nonce[:])
	word := hex.EncodeToString(nonce[:10])
	port := 1024 + binary.BigEndian.Uint16(nonce[10:])%40000
	// Addresses set aside for documentation: should one of these ever be let
	// through, nobody is there.
	test := func(b byte) []netip.Addr {
		return []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, b}), netip.AddrFrom4([4]byte{198, 51, 100, b}), netip.AddrFrom4([4]byte{203, 0, 113, b})}
	}
	six := [16]byte{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8}
	copy(six[8:], nonce[12:])
	to := func(transport string, port uint16, addrs ...netip.Addr) (list []cell.Access) {
		for _, a := range addrs {
			list = append(list, cell.Access{Act: cell.Connect, Addr: a, Port: port, Transport: transport})
		}
		return list
	}
	name := func(host string) []cell.Access { return []cell.Access{{Act: cell.Resolve, Host: host}} }
	tunnel := strings.Repeat(word+word+word[:20]+".", 3) // three labels of 60
	list := []attempt{
		{"a host by name", name(word + reserved), l.query(1, nonce[:2])},
		{"a tunnel through DNS", name(strings.TrimSuffix(tunnel, ".") + reserved), l.query(16, nonce[2:4])},
		{"a host by address", to("tcp", 443, test(nonce[16])...), dial},
		{"UDP", to("udp", port, test(nonce[17])...), datagram},
		{"QUIC", to("udp", 443, test(nonce[18])...), datagram},
		{"another DNS server", to("udp", 53, test(nonce[19])...), datagram},
		{"another DNS server over TCP", to("tcp", 53, test(nonce[19])...), dial},
		{"the metadata service", to("tcp", 80, netip.MustParseAddr("169.254.169.254")), dial},
		{"a private network", to("tcp", 443, netip.AddrFrom4([4]byte{10, nonce[15], nonce[16], 1})), dial},
		{"the host's SSH server", to("tcp", 22, l.Gateway4), dial},
		{"the host's web server", to("tcp", 80, l.Gateway4), dial},
	}
	if l.six {
		list = append(list,
			attempt{"a host over IPv6", to("tcp", 443, netip.AddrFrom16(six)), dial},
			attempt{"UDP over IPv6", to("udp", port, netip.AddrFrom16(six)), datagram},
			attempt{"the metadata service over IPv6", to("tcp", 80, netip.MustParseAddr("fd00:ec2::254")), dial},
			attempt{"the host over IPv6", to("tcp", 22, l.Gateway6), dial})
	}
	return list
}

// dial opens a connection that must be refused. The first call to connect
// begins it, the second says how it ended.
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

// datagram sends one, which must come back as undeliverable.
func datagram(s *linux.Script, op string, a cell.Access) func() {
	fd := begin(s, a, unix.SOCK_DGRAM)
	to, text := sockaddr(a.Addr, a.Port), []byte("canary")
	s.Try("connect", unix.SYS_CONNECT, fd, to, len(to))
	s.Try("send", unix.SYS_SENDTO, fd, text, len(text), 0, nil, 0)
	return func() {
		s.Refused(op, unreachable, unix.SYS_RECVFROM, fd, make([]byte, 64), 64, 0, nil, nil)
		s.Call("close", unix.SYS_CLOSE, fd)
	}
}

// query asks the gateway's DNS, which must refuse.
func (l *link) query(kind uint16, id []byte) func(*linux.Script, string, cell.Access) func() {
	return func(s *linux.Script, op string, a cell.Access) func() {
		be := binary.BigEndian
		q := append(append([]byte{}, id...), 1, 0, 0, 1, 0, 0, 0, 0, 0, 0) // recursion desired; one question
		for label := range strings.SplitSeq(a.Host, ".") {
			q = append(append(q, byte(len(label))), label...)
		}
		q = be.AppendUint16(be.AppendUint16(append(q, 0), kind), 1) // class IN
		fd := begin(s, cell.Access{Addr: l.Gateway4}, unix.SOCK_DGRAM)
		to, answer := sockaddr(l.Gateway4, 53), make([]byte, 512)
		s.Call(op, unix.SYS_CONNECT, fd, to, len(to))
		s.Call(op, unix.SYS_SENDTO, fd, q, len(q), 0, nil, 0)
		return func() {
			s.Call(op, unix.SYS_RECVFROM, fd, answer, len(answer), 0, nil, nil)
			// The same id, a response, REFUSED.
			s.Match(op, answer, []byte{0xff, 0xff, 0x80, 0x0f}, []byte{id[0], id[1], 0x80, 5})
			s.Call("close", unix.SYS_CLOSE, fd)
		}
	}
}

// begin makes a socket whose calls end after a while.
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

// sockaddr is a struct sockaddr_in or sockaddr_in6.
func sockaddr(a netip.Addr, port uint16) []byte {
	if a.Is4() {
		b := binary.BigEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, unix.AF_INET), port)
		return append(append(b, a.AsSlice()...), make([]byte, 8)...)
	}
	b := binary.BigEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, unix.AF_INET6), port)
	return append(append(append(b, 0, 0, 0, 0), a.AsSlice()...), 0, 0, 0, 0)
}

// bait is a socket with a name in the host's network namespace. It is really
// there, so that a canary that finds nobody has shown something.
type bait struct {
	file    *os.File
	address []byte // a struct sockaddr_un
}

func newBait() (b bait, err error) {
	var nonce [8]byte
	rand.Read(nonce[:])
	name := "@pando-canary-" + hex.EncodeToString(nonce[:])
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return b, os.NewSyscallError("socket", err)
	}
	b.file = os.NewFile(uintptr(fd), name)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		b.file.Close()
		return b, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		b.file.Close()
		return b, os.NewSyscallError("listen", err)
	}
	b.address = append(binary.NativeEndian.AppendUint16(nil, unix.AF_UNIX), name...)
	b.address[2] = 0 // an abstract name
	return b, nil
}
