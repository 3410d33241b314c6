package main

import (
	"os"
	"syscall"
	"unsafe"
)

// finitModule is the number of the system call on x86-64.
const finitModule = 313

func loadModule(f *os.File) error {
	none := [1]byte{}
	_, _, e := syscall.Syscall(finitModule, f.Fd(), uintptr(unsafe.Pointer(&none)), 0)
	if e != 0 {
		return e
	}
	return nil
}
