package main

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	syscalls "gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
)

// refuseOffsets has reads and writes at an offset fail with ESPIPE in files without one, as Linux does, where
// gVisor has EINVAL for terminals (its devpts does not set vfs.FileDescriptionOptions.DenyPRead and DenyPWrite).
// Programs take the first for "write without an offset" and the second for a fault: Zig's standard library
// does, and with it the screen of opencode.
func refuseOffsets() {
	for _, table := range []*kernel.SyscallTable{syscalls.AMD64, syscalls.ARM64} {
		for number, call := range table.Table {
			switch call.Name {
			case "pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2":
				call.Fn = refuseOffset(call.Fn)
				table.Table[number] = call
			}
		}
		table.Init() // again, since it was filled when it was registered
	}
}

func refuseOffset(call kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		n, control, err := call(t, number, args)
		if err == nil || !linuxerr.Equals(linuxerr.EINVAL, err) || args[3].Int64() < 0 {
			return n, control, err
		}
		file := t.GetFile(args[0].Int())
		if file == nil {
			return n, control, err
		}
		defer file.DecRef(t)
		if _, serr := file.Seek(t, 0, linux.SEEK_CUR); linuxerr.Equals(linuxerr.ESPIPE, serr) {
			err = serr
		}
		return n, control, err
	}
}
