//go:build faults

package fault

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Step says that what is about to be changed.
func Step(what string) {
	role, ok := strings.CutPrefix(os.Args[0], "pando-")
	exe, err := os.Readlink("/proc/self/exe")
	if !ok || err != nil {
		return
	}
	f, err := os.OpenFile(exe+"."+role, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX) != nil {
		return
	}
	var buf [32]byte
	k, _ := f.ReadAt(buf[:], 0)
	n, err := strconv.Atoi(strings.TrimSpace(string(buf[:k])))
	if err != nil || n <= 0 {
		return
	}
	if n--; n > 0 {
		f.Truncate(0)
		f.WriteAt([]byte(strconv.Itoa(n)+"\n"), 0)
		return
	}
	f.Truncate(0)
	f.WriteAt([]byte(what+"\n"), 0)
	unix.Kill(os.Getpid(), unix.SIGKILL)
	select {}
}
