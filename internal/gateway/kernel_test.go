package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gateway/gatewaytest"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/testenv"
)

// kernel is a cell that is a network namespace of this test's.
type kernel struct{ ns int }

// enter runs f in the namespace, on a thread that ends with it.
func (k *kernel) enter(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is thrown away
		if err := unix.Setns(k.ns, unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func (k *kernel) Dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = k.enter(func() error {
		var d net.Dialer
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

func (k *kernel) Ping(ctx context.Context, addr netip.Addr) error {
	return k.enter(func() error {
		arg := "-4"
		if addr.Is6() {
			arg = "-6"
		}
		out, err := exec.CommandContext(ctx, "ping", arg, "-c1", "-W2", addr.String()).CombinedOutput()
		if err != nil {
			return errors.New(string(out))
		}
		return nil
	})
}

// newKernel makes a network namespace.
func newKernel(t testing.TB) *kernel {
	needs(t)
	made := make(chan error)
	k := &kernel{}
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			k.ns, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		made <- err
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(k.ns) })
	return k
}

// ip runs lines of ip(8) in the namespace.
func (k *kernel) ip(t testing.TB, lines ...string) {
	t.Helper()
	for _, l := range lines {
		err := k.enter(func() error {
			out, err := exec.Command("ip", strings.Fields(l)...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("ip %s: %v: %s", l, err, out)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// up gives the cell's interface its addresses and routes.
func (k *kernel) up(t testing.TB, link cell.NetworkLink) {
	k.ip(t, "link set lo up", fmt.Sprintf("link set pando0 mtu %d up", link.MTU),
		"addr add "+link.Cell4.String()+" dev pando0", "addr add "+link.Cell6.String()+" dev pando0 nodad",
		"route add default via "+link.Gateway4.String(), "-6 route add default via "+link.Gateway6.String())
	// The kernel takes what is sent to a new IPv6 address a moment later.
	testenv.Eventually(t, func() bool {
		return k.enter(func() error {
			out, err := exec.Command("ip", "-6", "route", "show", "table", "local").Output()
			if err == nil && !strings.Contains(string(out), link.Cell6.Addr().String()) {
				err = errors.New("not yet")
			}
			return err
		}) == nil
	}, "the cell's IPv6 address")
}

// tap makes an interface; its packets, or frames with IFF_TAP, are read and written here.
func (k *kernel) tap(t testing.TB, kind uint16) (f *os.File) {
	err := k.enter(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		r, err := unix.NewIfreq("pando0")
		if err != nil {
			return err
		}
		r.SetUint16(kind | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, r); err != nil {
			return err
		}
		f = os.NewFile(uintptr(fd), "tun")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// tun is a site with a TUN device as its link.
func tun(t testing.TB) gatewaytest.Site {
	k := newKernel(t)
	link := cell.DefaultLink()
	link.Kind = "tun"
	f := k.tap(t, unix.IFF_TUN)
	k.up(t, link)
	return gatewaytest.Site{Link: link, File: f, Cell: k}
}

// socket is a site with a socket as its link, one frame a message, like that of a machine. The
// test carries frames between the socket and the machine's interface, and waits for room, as
// such a program does.
func socket(t testing.TB) gatewaytest.Site {
	k := newKernel(t)
	link := cell.DefaultLink()
	link.Kind = "socket"
	tap := k.tap(t, unix.IFF_TAP)
	k.ip(t, "link set pando0 address "+cell.CellMAC.String())
	k.up(t, link)
	f, machine, err := linux.FramePair()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	carry := func(to, from *os.File) {
		buf := make([]byte, 1<<17)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			to.Write(buf[:n])
		}
	}
	wg.Go(func() { carry(machine, tap) })
	wg.Go(func() { carry(tap, machine) })
	t.Cleanup(func() {
		tap.Close()
		machine.Close()
		wg.Wait()
	})
	return gatewaytest.Site{Link: link, File: f, Cell: k}
}

// veth is a site with a pair of Ethernet interfaces as its link.
func veth(t testing.TB) gatewaytest.Site {
	k, outer := newKernel(t), newKernel(t)
	link := cell.DefaultLink()
	link.Kind = "veth"
	k.ip(t, fmt.Sprintf("link add pando0 address 02:70:61:6e:64:02 type veth peer name pando1 netns /proc/%d/fd/%d", os.Getpid(), outer.ns))
	outer.ip(t, fmt.Sprintf("link set pando1 mtu %d up", link.MTU))
	k.up(t, link)
	var f *os.File
	err := outer.enter(func() error {
		i, err := net.InterfaceByName("pando1")
		if err != nil {
			return err
		}
		all := uint16(unix.ETH_P_ALL)
		be := int(all>>8 | all<<8)
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, be)
		if err != nil {
			return err
		}
		f = os.NewFile(uintptr(fd), "packet")
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(be), Ifindex: i.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	return gatewaytest.Site{Link: link, File: f, Cell: k}
}

// TestConformanceTUN, TestConformanceVeth and TestConformanceSocket run the suite over
// real links, with the kernel's own network inside.
func TestConformanceTUN(t *testing.T) {
	needsTUN(t)
	gatewaytest.Run(t, tun)
}

func TestConformanceSocket(t *testing.T) {
	needsTUN(t)
	gatewaytest.Run(t, socket)
}

func needsTUN(t *testing.T) {
	needs(t)
	if f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0); err != nil {
		t.Skip("needs /dev/net/tun")
	} else {
		f.Close()
	}
}

func TestConformanceVeth(t *testing.T) {
	needs(t)
	gatewaytest.Run(t, veth)
}

func needs(t testing.TB) {
	testenv.Root(t)
	testenv.Program(t, "ip")
	testenv.Program(t, "ping")
}

func BenchmarkStream(b *testing.B) {
	for _, s := range []struct {
		name string
		site func(testing.TB) gatewaytest.Site
	}{{"memory", gatewaytest.Stack}, {"tun", tun}, {"veth", veth}, {"socket", socket}} {
		b.Run(s.name, func(b *testing.B) { stream(b, s.site(b), true) })
		b.Run(s.name+"-up", func(b *testing.B) { stream(b, s.site(b), false) })
	}
}

// stream passes bytes through one connection.
func stream(b *testing.B, site gatewaytest.Site, down bool) {
	j := gatewaytest.Join(b, site, gatewaytest.With(gatewaytest.Policy{Rules: []gatewaytest.Rule{{Effect: cell.Allow, Host: "a.test", Ports: []uint16{9000}}}}))
	j.Record("a.test. 60 IN A 203.0.113.1")
	j.Raw("203.0.113.1:9000", func(c net.Conn) { pass(c, down) })
	c, err := gatewaytest.DialHost(j.Ctx(), j.Cell, j.Link, "a.test:9000")
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	c.Write([]byte("go\n"))
	buf := make([]byte, 1<<20)
	var n int64
	start := time.Now()
	for b.Loop() {
		for m := 0; m < 1<<20; {
			var k int
			if down {
				k, err = c.Read(buf)
			} else {
				k, err = c.Write(buf)
			}
			if err != nil {
				b.Fatal(err)
			}
			m += k
			n += int64(k)
		}
	}
	b.SetBytes(1 << 20)
	b.ReportMetric(float64(n)*8/time.Since(start).Seconds()/1e9, "Gbit/s")
}

func pass(c net.Conn, down bool) {
	buf := make([]byte, 1<<20)
	for {
		var err error
		if down {
			_, err = c.Write(buf)
		} else {
			_, err = c.Read(buf)
		}
		if err != nil {
			return
		}
	}
}

func BenchmarkRequests(b *testing.B) {
	for _, s := range []struct {
		name string
		site func(testing.TB) gatewaytest.Site
	}{{"tun", tun}, {"veth", veth}, {"socket", socket}} {
		b.Run(s.name, func(b *testing.B) {
			j := gatewaytest.Join(b, s.site(b), gatewaytest.With(gatewaytest.Allow("a.test")))
			j.Record("a.test. 60 IN A 203.0.113.1")
			body := strings.Repeat("x", 1024)
			j.HTTP("203.0.113.1:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, body) }))
			c := gatewaytest.Client(j.Cell, j.Link, nil)
			b.SetParallelism(25) // of two processors: 50 connections
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					res, err := c.Get("http://a.test/")
					if err != nil {
						b.Error(err)
						return
					}
					io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			})
		})
	}
}
