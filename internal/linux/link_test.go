package linux

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
		if time.Since(began) > 5*time.Second {
			t.Fatal(elsewhere)
		}
	}
}
