package linux

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// HeldBytes adds up the files that have no name any more and take their room
// on disk only because a process holds them, open or mapped. proc is a /proc
// that shows the processes. A mapped file is taken to be as large as what is
// mapped of it. Files in memory are left out.
//
// What is under way between two processes in a socket is not seen.
func HeldBytes(proc string, pids []int) int64 {
	type file struct{ dev, ino uint64 }
	sizes := map[file]int64{}
	var inMemory map[uint64]bool
	for _, pid := range pids {
		dir := filepath.Join(proc, strconv.Itoa(pid))
		fds, _ := os.ReadDir(filepath.Join(dir, "fd"))
		for _, e := range fds {
			var st unix.Stat_t
			at := filepath.Join(dir, "fd", e.Name())
			if unix.Stat(at, &st) != nil || st.Nlink != 0 || st.Mode&unix.S_IFMT != unix.S_IFREG {
				continue
			}
			var fs unix.Statfs_t
			if unix.Statfs(at, &fs) == nil && fs.Type != unix.TMPFS_MAGIC {
				sizes[file{st.Dev, st.Ino}] = st.Blocks * 512
			}
		}
		for _, m := range deletedMaps(dir) {
			if inMemory == nil {
				inMemory = memoryMounts(dir)
			}
			if mem, known := inMemory[m.dev]; known && !mem {
				sizes[file{m.dev, m.ino}] = max(sizes[file{m.dev, m.ino}], m.size)
			}
		}
	}
	var sum int64
	for _, n := range sizes {
		sum += n
	}
	return sum
}

type deletedMap struct {
	dev, ino uint64
	size     int64
}

// deletedMaps reads the mappings of deleted files from proc_pid_maps(5).
func deletedMaps(dir string) (list []deletedMap) {
	f, err := os.Open(filepath.Join(dir, "maps"))
	if err != nil {
		return nil
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if !strings.HasSuffix(s.Text(), " (deleted)") {
			continue
		}
		var from, to, offset, ino uint64
		var perm string
		var major, minor uint32
		if n, _ := fmt.Sscanf(s.Text(), "%x-%x %s %x %x:%x %d", &from, &to, &perm, &offset, &major, &minor, &ino); n == 7 && to > from {
			list = append(list, deletedMap{unix.Mkdev(major, minor), ino, int64(to - from)})
		}
	}
	return list
}

// memoryMounts says of each device number that a process sees mounted whether
// it is a file system in memory.
func memoryMounts(dir string) map[uint64]bool {
	out := map[uint64]bool{}
	b, _ := os.ReadFile(filepath.Join(dir, "mountinfo"))
	for l := range strings.Lines(string(b)) {
		head, tail, ok := strings.Cut(l, " - ")
		f, kind := strings.Fields(head), strings.Fields(tail)
		if !ok || len(f) < 3 || len(kind) < 1 {
			continue
		}
		var major, minor uint32
		if n, _ := fmt.Sscanf(f[2], "%d:%d", &major, &minor); n == 2 {
			out[unix.Mkdev(major, minor)] = kind[0] == "tmpfs" || kind[0] == "devtmpfs"
		}
	}
	return out
}
