//go:build faults

package failpoint

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Step says that what is about to be changed.
func Step(what string) {
	role, ok := strings.CutPrefix(os.Args[0], "pando-")
	exe := Program("")
	if !ok || exe == "" {
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
	count, wait := strings.CutSuffix(strings.TrimSpace(string(buf[:k])), " wait")
	n, err := strconv.Atoi(count)
	if err != nil || n <= 0 {
		return
	}
	if n--; n > 0 {
		count = strconv.Itoa(n)
		if wait {
			count += " wait"
		}
		f.Truncate(0)
		f.WriteAt([]byte(count+"\n"), 0)
		return
	}
	f.Truncate(0)
	f.WriteAt([]byte(what+"\n"), 0)
	for wait {
		unix.Flock(int(f.Fd()), unix.LOCK_UN)
		time.Sleep(time.Millisecond)
		k, _ := f.ReadAt(buf[:], 0)
		if _, err := strconv.Atoi(strings.TrimSpace(string(buf[:k]))); err == nil {
			return
		}
	}
	unix.Kill(os.Getpid(), unix.SIGKILL)
	select {}
}

// Program is the path of this program, by which a copy of it in memory is called: so
// that it finds the file, too.
func Program(short string) string {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return short
	}
	return strings.TrimSuffix(strings.TrimPrefix(exe, "/memfd:"), " (deleted)")
}
