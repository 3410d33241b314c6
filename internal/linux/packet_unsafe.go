package linux

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtool commands that switch something off.
const (
	ethtoolSTXCSUM = 0x17
	ethtoolSTSO    = 0x1f
	ethtoolSGSO    = 0x24
)

// NoOffload makes the kernel finish the packets that it sends over an interface of this
// thread's namespace: checksums, and segments of the interface's size. A packet socket at
// the other end of a veth pair then reads the packets as they would be on a wire.
func NoOffload(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	for _, cmd := range []uint32{ethtoolSTXCSUM, ethtoolSTSO, ethtoolSGSO} {
		req := struct { // ifreq
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{data: unsafe.Pointer(&[2]uint32{cmd, 0})} // ethtool_value
		copy(req.name[:unix.IFNAMSIZ-1], name)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
		runtime.KeepAlive(&req)
		if errno != 0 && errno != unix.EOPNOTSUPP {
			return os.NewSyscallError("SIOCETHTOOL", errno)
		}
	}
	return nil
}

// OpenPacket opens a packet socket that reads and writes whole Ethernet frames
// of an interface of this thread's namespace. It doesn't block.
func OpenPacket(name string) (*os.File, error) {
	index, err := InterfaceIndex(name)
	if err != nil {
		return nil, err
	}
	all := uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // bound first: no packet of another comes in
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// Past the queue: that of a veth's first end begins to work only some time
	// after the second end is up, and drops everything until then.
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return os.NewFile(uintptr(fd), "packet"), nil
}
