package gvisor

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/linux"
)

// missingName returns the system call in a line of output, or "".
func missingName(line string) string {
	f := strings.Fields(line)
	if len(line) > missingLine || len(f) != 4 {
		return ""
	}
	var n [4]uint64
	for i := range n {
		v, err := strconv.ParseUint(f[i], 10, 64)
		if err != nil {
			return ""
		}
		n[i] = v
	}
	if n[0] >= uint64(len(callNames())) {
		return ""
	}
	switch name := callNames()[n[0]]; name {
	case "rseq": // glibc tries it for each thread and works without it
		return ""
	// gVisor has the following ones, but not all their operations.
	case "prctl", "arch_prctl", "membarrier":
		return fmt.Sprintf("%s %#x", name, uint32(n[1]))
	case "ioctl", "futex", "shmctl", "fallocate":
		return fmt.Sprintf("%s %#x", name, uint32(n[2]))
	case "setsockopt", "getsockopt":
		return fmt.Sprintf("%s %#x %#x", name, uint32(n[2]), uint32(n[3]))
	case "semctl":
		return fmt.Sprintf("%s %#x", name, uint32(n[3]))
	default:
		return name
	}
}

// callNames maps system call numbers to names.
var callNames = sync.OnceValue(func() []string {
	arch := linux.AMD64
	if runtime.GOARCH == "arm64" {
		arch = linux.ARM64
	}
	var list []string
	for name, nr := range linux.SeccompNumbers(arch) {
		if nr >= len(list) {
			list = append(list, make([]string, nr+1-len(list))...)
		}
		list[nr] = name
	}
	return list
})
