package guest

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// The operations of gVisor's freezer, and the number by which it knows a call of it:
// freeze.go of cmd/pando-runsc, in another module, has the same.
const (
	freezeMagic = 0x70616e64

	freezeProbe = 1 // is there one
	freezeHold  = 2 // freeze all but the guest, and have copies of it begin frozen
	freezeTasks = 3 // freeze all but the guest
	freezeThaw  = 4 // all go on
	freezeRests = 5 // 1 when each thread of a process, by its number in the cell, is frozen and has stopped
	freezeMop   = 6 // those that were killed end
)

// freezer asks the application kernel's freezer. On another kernel, and where pando-runsc
// has none, it fails and does nothing.
func freezer(op, pid int) (n uint64, err error) {
	answer := new(uint64)
	unix.Syscall6(unix.SYS_SCHED_GET_PRIORITY_MAX, freezeMagic, uintptr(op), uintptr(pid), uintptr(unsafe.Pointer(answer)), 0, 0)
	runtime.KeepAlive(answer)
	if *answer == 0 {
		return 0, cell.Errorf(cell.Unsupported, "guest.freezer", "use the pando-runsc of this pando", "the cell's kernel has no freezer for its processes")
	}
	return *answer - 1, nil
}
