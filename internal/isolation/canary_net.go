package isolation

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux"
)

// reserved is the domain of the names that canaries resolve. RFC 6761 reserves it, so no host
// has such a name.
const reserved = ".pando-canary.invalid"

// alternatives is one canary of a talking cell. It tries the first access that the policy
// denies.
type alternatives struct {
	name string
	any  []cell.Access
	try  confine.Attempt
}

// proof records which canaries of a command the gateway must see.
type proof struct {
	trial server.Trial
	wants map[int]string // canary name by index of the access
}

// talkingCanaries adds the canaries against the gateway of a talking cell, for accesses that
// its policy denies.
func (c *Cell) talkingCanaries(s *linux.Script, made *confine.Measured) (*proof, error) {
	list, skipped, p, err := c.announce()
	if err == nil {
		made.Skipped = append(made.Skipped, skipped...)
		confine.Attempts(s, made, list)
	}
	return p, err
}

// announce registers the coming canaries of a command with the cell's gateway. It returns the
// accesses to try, which the policy denies, and in skipped the names of canaries that the
// policy allows.
func (c *Cell) announce() (list []confine.Attempt, skipped []string, p *proof, err error) {
	p = &proof{wants: map[int]string{}}
	if c.link == nil {
		return nil, nil, p, nil
	}
	if c.link.witness == nil {
		return nil, nil, p, cell.Errorf(cell.Internal, "isolation.Start", "", "cannot prove the cell's network: it has no gateway")
	}
	tries := c.link.attempts()
	var all []cell.Access
	for _, t := range tries {
		all = append(all, t.any...)
	}
	if p.trial, err = c.link.witness.Try(all); err != nil {
		return nil, nil, p, err
	}
	denied := p.trial.Denied()
	at := 0
	for _, t := range tries {
		found := false
		for i, a := range t.any {
			if !found && denied[at+i] {
				found = true
				p.wants[at+i] = t.name
				t.try.Name, t.try.Access = t.name, a
				list = append(list, t.try)
			}
		}
		if !found {
			skipped = append(skipped, t.name)
		}
		at += len(t.any)
	}
	return list, skipped, p, nil
}

// complete waits until the gateway has seen each canary. A canary that something else stopped
// proves nothing about the gateway.
func (p *proof) complete(int) error {
	if p.trial == nil {
		return nil
	}
	for began := time.Now(); ; time.Sleep(100 * time.Microsecond) {
		missing := ""
		for i, observed := range p.trial.Seen() {
			if name, wanted := p.wants[i]; wanted && !observed {
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

// ProveNetwork runs a process of the fork that tries what its gateway must deny. The gateway
// already applies the policy that the fork is adopted with.
func (c *Cell) ProveNetwork(made *confine.Measured) error {
	if c.link == nil {
		return nil
	}
	s := &linux.Script{Gated: true}
	s.Stdio([3]*os.File{}, c.Init.PIDFD)
	s.Call("join the fork", unix.SYS_SETNS, int(c.Init.PIDFD.Fd()), unix.CLONE_NEWUSER|unix.CLONE_NEWNS|unix.CLONE_NEWNET)
	confine.Shed(s, c.become(s))
	c.filter(s, true)
	proof, err := c.talkingCanaries(s, made)
	defer proof.end()
	if err != nil {
		return err
	}
	s.Report()
	s.Gate()
	s.Exit()
	child, err := linux.Spawn(s, linux.SpawnOptions{PIDNS: int(c.Init.PIDFD.Fd()), Share: true, Gate: proof.complete})
	if u, ok := errors.AsType[*unseen](err); ok {
		return cell.Errorf(cell.Denied, "isolation.ProveNetwork", "report this: the cell's isolation does not hold on this host",
			"cannot adopt the fork: the canary %q was stopped, but nothing of it came to the gateway", u.name).About(cell.Canary)
	}
	if err != nil {
		return explainSlot(err)
	}
	child.Wait()
	return child.PIDFD.Close()
}

// unseen is a canary that did not reach the gateway.
type unseen struct{ name string }

func (e *unseen) Error() string { return "canary " + e.name + ": never came to the gateway" }

// attempts returns the canaries of one command. Names, addresses and ports are random where
// possible, to tell them from other traffic of the cell.
func (l *link) attempts() []alternatives {
	var nonce [20]byte
	rand.Read(nonce[:])
	word := hex.EncodeToString(nonce[:10])
	port := 1024 + binary.BigEndian.Uint16(nonce[10:])%40000
	// Addresses reserved for documentation: should a connection get through, no host answers.
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
	dials, sends := confine.Attempt{How: confine.Dial}, confine.Attempt{How: confine.Datagram}
	list := []alternatives{
		{"a host by name", name(word + reserved), confine.Attempt{How: confine.Query, Server: l.Gateway4, Type: 1, ID: [2]byte(nonce[:2]), Refusals: l.Refusals()}},
		{"a tunnel through DNS", name(strings.TrimSuffix(tunnel, ".") + reserved), confine.Attempt{How: confine.Query, Server: l.Gateway4, Type: 16, ID: [2]byte(nonce[2:4]), Refusals: l.Refusals()}},
		{"a host by address", to("tcp", 443, test(nonce[16])...), dials},
		{"UDP", to("udp", port, test(nonce[17])...), sends},
		{"QUIC", to("udp", 443, test(nonce[18])...), sends},
		{"another DNS server", to("udp", 53, test(nonce[19])...), sends},
		{"another DNS server over TCP", to("tcp", 53, test(nonce[19])...), dials},
		{"the metadata service", to("tcp", 80, netip.MustParseAddr("169.254.169.254")), dials},
		{"a private network", to("tcp", 443, netip.AddrFrom4([4]byte{10, nonce[15], nonce[16], 1})), dials},
		{"the host's SSH server", to("tcp", 22, l.Gateway4), dials},
		{"the host's web server", to("tcp", 80, l.Gateway4), dials},
	}
	if l.six {
		list = append(list,
			alternatives{"a host over IPv6", to("tcp", 443, netip.AddrFrom16(six)), dials},
			alternatives{"UDP over IPv6", to("udp", port, netip.AddrFrom16(six)), sends},
			alternatives{"the metadata service over IPv6", to("tcp", 80, netip.MustParseAddr("fd00:ec2::254")), dials},
			alternatives{"the host over IPv6", to("tcp", 22, l.Gateway6), dials})
	}
	return list
}

// bait is an abstract socket in the host's network namespace. It exists, so that a canary that
// does not reach it proves isolation.
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
