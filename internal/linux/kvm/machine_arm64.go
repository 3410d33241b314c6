package kvm

import (
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// silent processors have virtualisation and don't say so: the kernel is started in
// the mode of a hypervisor, or not.
const silent = true

// ran is what a machine that ran proves.
const ran = "a virtual machine with a processor was made"

// machine is the script of a child that makes a machine with a processor. It runs nothing:
// no arm64 kernel has only paravirtual guests.
func machine() (s *linux.Script, free func(), err error) {
	s, vm := begin()
	s.Call("give it a processor", unix.SYS_IOCTL, vm, createVCPU, 0)
	s.Exit()
	return s, func() {}, nil
}
