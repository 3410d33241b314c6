package linux

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// What the probe says of TUNs is what opening the device says, and what it makes
// is gone with it.
func TestProbeLinks(t *testing.T) {
	tun, veth := ProbeLinks(nil)
	f, err := os.OpenFile(TunPath, os.O_RDWR, 0)
	if err == nil {
		f.Close()
	}
	if (tun == nil) != (err == nil) {
		t.Errorf("TUN: the probe says %v, opening it %v", tun, err)
	}
	t.Logf("TUN: %v; veth: %v", tun, veth)
	if os.Geteuid() == 0 {
		node, err := TunNode()
		if err != nil {
			t.Fatal(err)
		}
		defer node.Close()
		if tun, _ := ProbeLinks(node); tun != nil {
			t.Errorf("with a device of our own: %v", tun)
		}
	}
	if _, err := InterfaceIndex("pando-probe1"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("the probe's interface: %v", err)
	}
}

// The kernel's no is told with the request that it refused, whichever of a batch
// it was; the others were carried out.
func TestNetlinkSaysWhatFailed(t *testing.T) {
	n, err := OpenNetlink()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	const nowhere = 1 << 30
	n.AddAddr(nowhere, netip.MustParsePrefix("192.0.2.1/24"))
	n.AddDefault(nowhere, netip.MustParseAddr("192.0.2.2"))
	err = n.Send()
	ne, ok := errors.AsType[*NetlinkError](err)
	if !ok || ne.Request != "add the address 192.0.2.1/24" || (ne.Errno != unix.ENODEV && ne.Errno != unix.EPERM) {
		t.Errorf("%v", err)
	}
}

// A thread that was in another namespace is never seen again, and the process's
// first thread is never one of them.
func TestInNetNS(t *testing.T) {
	was, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		err := InNetNS(0, func() error {
			if now, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || now == was {
				t.Errorf("in %s, %v", now, err)
			}
			return nil
		})
		if errors.Is(err, unix.EPERM) {
			t.Skip("needs root")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if now, err := os.Readlink("/proc/self/ns/net"); err != nil || now != was {
		t.Errorf("the process is in %s, %v; was in %s", now, err, was)
	}
	for began := time.Now(); ; time.Sleep(time.Millisecond) { // the last of them may still be ending
		elsewhere := ""
		tasks, _ := os.ReadDir("/proc/self/task")
		for _, task := range tasks {
			if now, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/net"); err == nil && now != was {
				elsewhere = "thread " + task.Name() + " is in " + now
			}
		}
		if elsewhere == "" {
			break
		}
		if time.Since(began) > testenv.Patience() {
			t.Fatal(elsewhere)
		}
	}
}

// A machine's interface is found by its address, whatever it is called, and becomes
// the cell's: what is sent over it are frames to the gateway from the cell, and what
// is sent to the cell's addresses arrives.
func TestInterfaceBecomesTheLink(t *testing.T) {
	l := cell.DefaultLink()
	l.Kind = "socket"
	err := InNetNS(0, func() error {
		n, err := OpenNetlink()
		if err != nil {
			return err
		}
		defer n.Close()
		if err := NameLink(); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("in a namespace without it: %v", err)
		}
		n.AddVeth(LinkEnd{Name: "gateway", MAC: cell.GatewayMAC, MTU: l.MTU}, LinkEnd{Name: "ens3", MAC: cell.CellMAC, MTU: 1500}, 0)
		if err := n.Send(); err != nil {
			return err
		}
		far, err := InterfaceIndex("gateway")
		if err != nil {
			return err
		}
		n.Up(far, 0)
		if err := n.Send(); err != nil {
			return err
		}
		if err := NameLink(); err != nil {
			t.Error(err)
		}
		six, err := ConfigureLink(l)
		if err != nil || six != HasIPv6() {
			t.Errorf("IPv6 %t, %v", six, err)
		}
		i, err := net.InterfaceByName(cell.InterfaceName)
		if err != nil || i.MTU != l.MTU || i.Flags&net.FlagUp == 0 || i.HardwareAddr.String() != cell.CellMAC.String() {
			t.Errorf("%+v, %v", i, err)
		}
		gateway, err := OpenPacket("gateway")
		if err != nil {
			return err
		}
		defer gateway.Close()
		for network, from := range map[string]netip.Addr{"udp4": l.Cell4.Addr(), "udp6": l.Cell6.Addr()} {
			if network == "udp6" && !six {
				continue
			}
			c, err := net.ListenUDP(network, &net.UDPAddr{IP: from.AsSlice()})
			if err != nil {
				t.Errorf("the address %s: %v", from, err)
				continue
			}
			defer c.Close()
			if _, err := c.WriteTo([]byte("somewhere"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(map[string]string{"udp4": "192.0.2.1:9", "udp6": "[2001:db8::1]:9"}[network]))); err != nil {
				t.Errorf("%s: %v", network, err)
			}
			b := make([]byte, 1<<16)
			gateway.SetReadDeadline(time.Now().Add(testenv.Patience()))
			k, err := gateway.Read(b)
			if err != nil || !strings.HasPrefix(string(b[:k]), string(cell.GatewayMAC)+string(cell.CellMAC)) || !strings.HasSuffix(string(b[:k]), "somewhere") {
				t.Errorf("%s: the gateway gets %q, %v", network, b[:k], err)
			}
		}
		return nil
	})
	if errors.Is(err, unix.EPERM) {
		t.Skip("needs root")
	}
	if err != nil {
		t.Fatal(err)
	}
}
