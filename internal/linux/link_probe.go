package linux

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ProbeLinks tries, in a user and a network namespace that a forked child has
// for a moment, by what cells could be connected to their gateways: a TUN (made
// from node if that isn't nil, else from TunPath), or a veth pair read through a
// packet socket. nil means that it works.
func ProbeLinks(node *os.File) (tun, veth error) {
	const name = "pando-probe"
	var keep []*os.File
	path := TunPath
	if node != nil {
		n, err := unix.FcntlInt(node.Fd(), unix.F_DUPFD_CLOEXEC, reportFD+1)
		if err != nil {
			return err, err
		}
		f := os.NewFile(uintptr(n), "tun")
		defer f.Close()
		keep, path = append(keep, f), "/proc/self/fd/"+strconv.Itoa(n)
	}
	s := &Script{}
	s.Stdio([3]*os.File{}, keep...)
	r, _ := unix.NewIfreq(name)
	r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	fd := s.Probe("open "+TunPath, unix.SYS_OPENAT, AtCWD, path, unix.O_RDWR, 0)
	s.Probe("make a TUN", unix.SYS_IOCTL, fd, unix.TUNSETIFF, AddressOf(s, r))

	var n Netlink
	n.AddVeth(LinkEnd{Name: name + "1", MAC: []byte{2, 0, 0, 0, 0, 1}, MTU: 1500}, LinkEnd{Name: name + "2", MAC: []byte{2, 0, 0, 0, 0, 2}, MTU: 1500}, 0)
	nl := s.Probe("open netlink", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	s.Probe("ask for a veth pair", unix.SYS_SENDTO, nl, n.batch, len(n.batch), 0, nil, 0)
	s.CaptureRead("answer", nl, 4096)
	s.Probe("open a packet socket", unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0)
	s.Report()
	s.Exit()
	c, err := Spawn(s, SpawnOptions{Flags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET})
	if err != nil {
		return err, err
	}
	c.Wait()
	c.PIDFD.Close()
	for _, p := range c.Probes {
		if p.Errno == 0 {
			continue
		}
		to := &veth
		if strings.HasSuffix(p.Name, TunPath) || p.Name == "make a TUN" {
			to = &tun
		}
		if *to == nil {
			*to = errors.New("cannot " + p.Name + ": " + p.Errno.Error())
		}
	}
	if a := c.Captured["answer"]; veth == nil && len(a) >= unix.NLMSG_HDRLEN+4 {
		if errno := -int32(native.Uint32([]byte(a)[unix.NLMSG_HDRLEN:])); errno != 0 {
			veth = errors.New("cannot make a veth pair: " + unix.Errno(errno).Error())
		}
	}
	return tun, veth
}
