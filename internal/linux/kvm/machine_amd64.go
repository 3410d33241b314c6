package kvm

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// silent processors have virtualisation and don't say so.
const silent = false

// ran is what a machine that ran proves.
const ran = "a virtual machine was made, and ran"

// More calls of the device, and reasons why a machine has stopped, of linux/kvm.h.
const (
	setUserMemoryRegion = 0x4020AE46
	setTSSAddr          = 0xAE47
	setIdentityMapAddr  = 0x4008AE48
	runVCPU             = 0xAE80

	exitIO  = 2
	exitHLT = 5
)

const pageSize = 4096

// A processor begins in real mode, at the last sixteen bytes of four GiB. So one
// page that ends there is all the memory that a machine needs, and none of its
// registers has to be set.
const (
	pageAt = 1<<32 - pageSize
	codeAt = pageSize - 16
)

// code adds, says what came out, and halts. What can't run it can't boot a system
// either.
var code = []byte{
	0xb0, answer - 1, // mov al, answer-1
	0xfe, 0xc0, // inc al
	0xe6, port, // out port, al
	0xf4, // hlt
}

const (
	answer = 0x2a
	port   = 0x42
)

// machine is the script of a child that runs a machine with one page of memory.
func machine() (s *linux.Script, free func(), err error) {
	memory, err := unix.Mmap(-1, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	// What the kernel says of the processor is mapped over these by the child: struct
	// kvm_run, and the page that bytes of out come in.
	said, err := unix.Mmap(-1, 0, 2*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		unix.Munmap(memory)
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	free = func() { unix.Munmap(memory); unix.Munmap(said) }
	copy(memory[codeAt:], code)

	s, vm := begin()
	// Intel's older processors need room in the machine for what makes real mode of
	// theirs; others ignore it.
	s.Try("give it room", unix.SYS_IOCTL, vm, setTSSAddr, 0xfffbd000)
	room := uint64(0xfffbc000)
	s.Try("give it room", unix.SYS_IOCTL, vm, setIdentityMapAddr, linux.AddressOf(s, &room))
	region := struct {
		slot, flags          uint32
		at, size, fromMemory uint64
	}{at: pageAt, size: pageSize, fromMemory: uint64(linux.AddressOf(s, &memory[0]))}
	s.Call("give it memory", unix.SYS_IOCTL, vm, setUserMemoryRegion, linux.AddressOf(s, &region))
	cpu := s.Call("give it a processor", unix.SYS_IOCTL, vm, createVCPU, 0)
	s.Call("map its processor", unix.SYS_MMAP, linux.AddressOf(s, &said[0]), len(said), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED, cpu, 0)

	s.Call("run it", unix.SYS_IOCTL, cpu, runVCPU, 0)
	out := binary.NativeEndian.AppendUint32([]byte{1, 1, port, 0}, 1) // out, of one byte, to port, once
	out = binary.NativeEndian.AppendUint64(out, pageSize)             // its data is there
	same(s, "where it stopped first", said[8:], binary.NativeEndian.AppendUint32(nil, exitIO))
	same(s, "what it did first", said[32:], out)
	same(s, "what it computed", said[pageSize:], []byte{answer})
	s.Call("let it go on", unix.SYS_IOCTL, cpu, runVCPU, 0)
	same(s, "where it stopped at last", said[8:], binary.NativeEndian.AppendUint32(nil, exitHLT))
	s.Exit()
	return s, free, nil
}

// same ends a script where memory differs from want.
func same(s *linux.Script, what string, memory, want []byte) {
	mask := make([]byte, len(want))
	for i := range mask {
		mask[i] = 0xff
	}
	s.Match(what, memory[:len(want)], mask, want)
}
