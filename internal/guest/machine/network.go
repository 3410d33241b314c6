package machine

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// network configures loopback, and the link to the gateway if the machine has one. The command
// line says whether it must: a cell that should talk fails without its interface, instead of
// staying silent.
func network() error {
	if err := loopback(); err != nil {
		return err
	}
	if os.Getenv("pando_net") != "1" {
		return nil
	}
	if err := linux.NameLink(); err != nil {
		return fmt.Errorf("cannot find the interface to the cell's gateway: %w", err)
	}
	for _, x := range linux.LinkSettings {
		os.WriteFile("/proc/sys/net/ipv6/conf/"+cell.InterfaceName+"/"+x[0], []byte(x[1]), 0)
	}
	l := cell.DefaultLink()
	l.Kind = "socket"
	six, err := linux.ConfigureLink(l)
	if err != nil {
		return fmt.Errorf("cannot connect the machine to the cell's gateway: %w", err)
	}
	if !six { // the keeper's canaries try IPv6 as on a host that has it
		return fmt.Errorf("cannot connect the machine to the cell's gateway: its kernel has no IPv6")
	}
	return nil
}

// loopback brings up the loopback interface.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return os.NewSyscallError("bring loopback up", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r))
}
