package e2e

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// netnsEnv marks the test program that runs in a network namespace of its own.
const netnsEnv = "PANDO_E2E_NETNS"

// ownNetwork runs the calling test once more, in a network namespace made for
// it, where it may have every address and port: what a test offers as the
// world, a cell may try to reach, and nothing leaves the machine. It reports
// whether this is that second time; the first one only waits and tells.
//
// An ordinary user's lies in a user namespace with the same user in it, so
// that everything below is as unprivileged as that user is.
func ownNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(netnsEnv) != "" {
		return true
	}
	t.Parallel() // it shares nothing with the others
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=9m")
	c.Env = append(os.Environ(), netnsEnv+"=1", "PANDO_BIN="+built)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		c.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN}
	}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	text := out.String()
	switch skip := regexp.MustCompile(`(?m)^\s*\S+_test\.go:\d+: (.*)\n--- SKIP`).FindStringSubmatch(text); {
	case err != nil && out.Len() == 0:
		t.Skipf("needs a network namespace: %v", err)
	case err != nil:
		t.Errorf("in a network of its own: %v\n%s", err, text)
	case skip != nil:
		t.Skip(skip[1])
	case !strings.Contains(text, "--- PASS: "+t.Name()):
		t.Errorf("in a network of its own it did not run:\n%s", text)
	case testing.Verbose():
		t.Log(strings.ReplaceAll("\n"+strings.TrimSpace(text), "\n", "\n| ")) // or it reads like a result of its own
	}
	return false
}

// world makes the loopback of the test's network the whole world: each address
// is one of this machine, so that a server can be anywhere. What was needed for
// that is given up again.
func world(t *testing.T, addrs ...string) {
	t.Helper()
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(s)
	ifr, err := unix.NewIfreq("lo")
	must(t, err)
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	must(t, unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr))
	for _, a := range addrs {
		addr := netip.MustParseAddr(a)
		if err := addLoopback(addr); err != nil && addr.Is6() {
			t.Skipf("needs IPv6: %v", err)
		} else {
			must(t, err)
		}
	}
	must(t, os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0))
	if os.Getuid() == 0 {
		return // it was given none
	}
	// Each thread has its own: a program with more of them than the daemon can't be looked at by it.
	switch _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0); errno {
	case 0:
	case unix.ENOTSUP:
		t.Fatal("a test with a network of its own is built without cgo: CGO_ENABLED=0")
	default:
		must(t, errno)
	}
}

// addLoopback gives the loopback interface an address, by one message of
// rtnetlink(7).
func addLoopback(a netip.Addr) error {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	ip, family := a.AsSlice(), byte(unix.AF_INET)
	if a.Is6() {
		family = unix.AF_INET6
	}
	var m bytes.Buffer
	u32 := func(n uint32) { m.Write([]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}) }
	u16 := func(n uint16) { m.Write([]byte{byte(n), byte(n >> 8)}) }
	u32(0) // length, below
	u16(unix.RTM_NEWADDR)
	u16(unix.NLM_F_REQUEST | unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_REPLACE)
	u32(1)
	u32(0)
	m.Write([]byte{family, byte(a.BitLen()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE})
	u32(1) // lo
	for _, kind := range []uint16{unix.IFA_LOCAL, unix.IFA_ADDRESS} {
		u16(uint16(4 + len(ip)))
		u16(kind)
		m.Write(ip)
	}
	b := m.Bytes()
	b[0], b[1] = byte(len(b)), byte(len(b)>>8)
	if err := unix.Sendto(s, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	reply := make([]byte, 4096)
	n, _, err := unix.Recvfrom(s, reply, 0)
	if err != nil {
		return err
	}
	if n >= 20 {
		if errno := -int32(uint32(reply[16]) | uint32(reply[17])<<8 | uint32(reply[18])<<16 | uint32(reply[19])<<24); errno != 0 {
			return syscall.Errno(errno)
		}
	}
	return nil
}
