package confine

import (
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// hidden lists the parts of /proc that reveal or change the state of the host; readOnly lists
// those with sysctls of root. Docker has the same lists.
var (
	hidden   = []string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/proc/sysrq-trigger"}
	readOnly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"}
)

// CoverProc covers the parts of /proc that are not the cell's. It uses /dev/null and the empty
// directory /dev/.empty.
func CoverProc(s *linux.Script) {
	for _, p := range hidden {
		// A file is covered by /dev/null, a directory by an empty one. Missing paths are
		// skipped.
		s.Try("hide "+p, unix.SYS_MOUNT, "/dev/null", p, nil, unix.MS_BIND, nil)
		s.Try("hide "+p, unix.SYS_MOUNT, "/dev/.empty", p, nil, unix.MS_BIND, nil)
	}
	for _, p := range readOnly {
		s.Try("bind "+p, unix.SYS_MOUNT, p, p, nil, unix.MS_BIND|unix.MS_REC, nil)
		s.Try("protect "+p, unix.SYS_MOUNT, nil, p, nil, unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, nil)
	}
}
