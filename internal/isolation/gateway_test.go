package isolation

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gateway/gatewaytest"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/reexec"
	"github.com/pando-dev/pando/internal/testenv"
)

// TestGateway is the conformance suite of gateways in real cells: their links
// are what is tested, as the kernel of a cell uses them.
func TestGateway(t *testing.T) {
	for _, driver := range []string{plain, vethOnly} {
		t.Run(driver, func(t *testing.T) {
			gatewaytest.Run(t, func(t testing.TB) gatewaytest.Site { return lent(t, driver) })
		})
	}
}

// lend is the prefix of a policy that makes the keeper lend the link, and sockets
// inside, to the listener at the path that follows.
const lend = "lend "

// lender is a gateway that is in another process.
type lender struct {
	server.Network // none
	c              *reexec.Conn
}

// wanted asks a lender for a socket in the cell.
type wanted struct{ Family, Type, Proto int }

// lendTo hands over the link, and serves sockets until the other end hangs up.
func lendTo(path string, d *Driver, id cell.ID, l cell.NetworkLink, f *os.File) (server.Network, error) {
	uc, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return nil, err
	}
	n := lender{c: reexec.NewConn(uc)}
	if err := n.c.Send(l, f); err != nil {
		return nil, err
	}
	f.Close()
	c, err := d.Cell(id)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			var w wanted
			if _, err := n.c.Recv(&w); err != nil {
				return
			}
			var s *os.File
			err := linux.InNetNS(int(c.Init.PIDFD.Fd()), func() error {
				fd, err := unix.Socket(w.Family, w.Type|unix.SOCK_CLOEXEC, w.Proto)
				s = os.NewFile(uintptr(fd), "socket")
				return err
			})
			if err != nil {
				n.c.Send(err.Error())
				continue
			}
			n.c.Send("", s)
			s.Close()
		}
	}()
	return n, nil
}

func (lender) Asked() ([]cell.Asked, <-chan struct{}) { return nil, nil }

func (lender) Settle(time.Duration) {}

func (n lender) Close() error { return n.c.Close() }

// lent makes a cell, and borrows its link.
func lent(t testing.TB, driver string) gatewaytest.Site {
	t.Helper()
	dir, err := os.MkdirTemp("", "lent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cfg := config(t)
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for p, mode := range map[string]os.FileMode{dir: 0o755, path: 0o666} { // as root, the keeper is "nobody" here
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
	}
	b := NewHost(cfg)
	b.keepers.Backend = driver
	t.Cleanup(b.Close)
	spec := backendtest.Little(t)
	spec.Network = &cell.Governance{Policy: json.RawMessage(`"` + lend + path + `"`)}
	i, err := b.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Remove(context.Background(), "done"); err != nil {
			t.Error(err)
		}
	})
	l.SetDeadline(time.Now().Add(testenv.Patience()))
	uc, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	k := &lentCell{c: reexec.NewConn(uc)}
	t.Cleanup(func() { k.c.Close() })
	site := gatewaytest.Site{Cell: k}
	files, err := k.c.Recv(&site.Link)
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %d files", err, len(files))
	}
	site.File = files[0]
	return site
}

// lentCell is a cell with sockets that this process uses.
type lentCell struct {
	mu sync.Mutex // guards c
	c  *reexec.Conn
}

func (k *lentCell) socket(family, kind, proto int) (*os.File, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.c.Send(wanted{family, kind, proto}); err != nil {
		return nil, err
	}
	var why string
	files, err := k.c.Recv(&why)
	if err == nil && len(files) != 1 {
		err = errors.New(why)
	}
	if err != nil {
		return nil, err
	}
	return files[0], nil
}

// connected is a socket of the cell that is connected; what it waits for ends
// with ctx, or after a while.
func (k *lentCell) connected(ctx context.Context, kind, proto int, ap netip.AddrPort) (*os.File, error) {
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(ap.Port()), Addr: ap.Addr().As16()})
	if ap.Addr().Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}
	}
	if proto == unix.IPPROTO_ICMP && family == unix.AF_INET6 {
		proto = unix.IPPROTO_ICMPV6
	}
	f, err := k.socket(family, kind, proto)
	if err != nil {
		return nil, err
	}
	wait := 20 * time.Second
	if d, ok := ctx.Deadline(); ok {
		wait = max(time.Until(d), time.Millisecond)
	}
	tv := unix.NsecToTimeval(int64(wait))
	for _, opt := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
		if err := unix.SetsockoptTimeval(int(f.Fd()), unix.SOL_SOCKET, opt, &tv); err != nil {
			f.Close()
			return nil, err
		}
	}
	if err := unix.Connect(int(f.Fd()), to); err != nil {
		f.Close()
		return nil, &net.OpError{Op: "dial", Net: "cell", Err: os.NewSyscallError("connect", err)}
	}
	return f, nil
}

// Dial implements gatewaytest.Cell.
func (k *lentCell) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	kind := unix.SOCK_STREAM
	if network == "udp" {
		kind = unix.SOCK_DGRAM
	}
	f, err := k.connected(ctx, kind, 0, ap)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return net.FileConn(f)
}

// Ping implements gatewaytest.Cell.
func (k *lentCell) Ping(ctx context.Context, addr netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	f, err := k.connected(ctx, unix.SOCK_RAW, unix.IPPROTO_ICMP, netip.AddrPortFrom(addr, 0))
	if err != nil {
		return err
	}
	defer f.Close()
	fd := int(f.Fd())
	msg := []byte{8, 0, 0, 0, 0x70, 0x61, 0, 1}
	want := byte(0)
	if addr.Is6() {
		msg[0], want = 128, 129
		err = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVERR, 1)
	} else {
		sum := uint32(8<<8) + 0x7061 + 1
		msg[2], msg[3] = ^byte(sum>>8), ^byte(sum)
		err = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_RECVERR, 1)
	}
	if err != nil {
		return err
	}
	if _, err := unix.Write(fd, msg); err != nil {
		return err
	}
	buf := make([]byte, 512)
	for {
		n, err := unix.Read(fd, buf)
		if err != nil {
			return err
		}
		b := buf[:n]
		if addr.Is4() {
			b = b[min(20, n):] // past the IP header
		}
		if len(b) > 0 && b[0] == want {
			return nil
		}
	}
}

// lendPath is where a policy says that a link is wanted.
func lendPath(policy json.RawMessage) (string, bool) {
	var s string
	if json.Unmarshal(policy, &s) != nil {
		return "", false
	}
	return strings.CutPrefix(s, lend)
}

// theDriver is that of this keeper; a keeper has one.
var theDriver *Driver

// remembered makes a driver that the test's gateways can ask.
func remembered(make func() (*Driver, error)) func() (server.Driver, error) {
	return func() (server.Driver, error) {
		d, err := make()
		theDriver = d
		return d, err
	}
}
