package guest

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// Operations of gVisor's freezer, and the number of its call. freeze.go of cmd/pando-runsc, in
// another module, has the same.
const (
	freezeMagic = 0x70616e64

	freezeProbe = 1 // test whether there is a freezer
	freezeHold  = 2 // freeze all but the guest; copies start frozen
	freezeTasks = 3 // freeze all but the guest
	freezeThaw  = 4 // thaw all
	freezeRests = 5 // 1 if each thread of a process, by its PID in the cell, is frozen and stopped
	freezeMop   = 6 // let killed processes end
	// markOp says that the caller begins a command, with its number: pando-runsc tells of its processes from then on.
	// It is heeded while the caller has the guest's memory. See processes.go there.
	markOp = 7
)

// freezer calls the application kernel's freezer. On another kernel, or if pando-runsc has
// none, it fails without effect.
func freezer(op, pid int) (n uint64, err error) {
	answer := new(uint64)
	unix.Syscall6(unix.SYS_SCHED_GET_PRIORITY_MAX, freezeMagic, uintptr(op), uintptr(pid), uintptr(unsafe.Pointer(answer)), 0, 0)
	runtime.KeepAlive(answer)
	if *answer == 0 {
		return 0, cell.Errorf(cell.Unsupported, "guest.freezer", "use the pando-runsc of this pando", "the cell's kernel has no freezer for its processes")
	}
	return *answer - 1, nil
}
