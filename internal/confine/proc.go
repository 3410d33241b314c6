package confine

import (
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// hidden are the parts of /proc that say or do something about the host;
// readOnly are those that only root's sysctls live in. (The same as Docker's.)
var (
	hidden   = []string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/proc/sysrq-trigger"}
	readOnly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"}
)

// CoverProc takes the rest of /proc away that is not a cell's. /dev has what to
// cover it with: null, and the empty folder .empty.
func CoverProc(s *linux.Script) {
	for _, p := range hidden {
		// A file is covered by /dev/null, a directory by an empty one; what
		// this kernel doesn't have is covered by nothing.
		s.Try("hide "+p, unix.SYS_MOUNT, "/dev/null", p, nil, unix.MS_BIND, nil)
		s.Try("hide "+p, unix.SYS_MOUNT, "/dev/.empty", p, nil, unix.MS_BIND, nil)
	}
	for _, p := range readOnly {
		s.Try("bind "+p, unix.SYS_MOUNT, p, p, nil, unix.MS_BIND|unix.MS_REC, nil)
		s.Try("protect "+p, unix.SYS_MOUNT, nil, p, nil, unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, nil)
	}
}
