package microvm

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// takeMemory copies the memory of a stopped machine (thin path: all of it).
func takeMemory(pid int, base *os.File, size int64, to *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(base.Fd()), &st); err != nil {
		return err
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return err
	}
	defer mem.Close()
	if err := to.Truncate(size); err != nil {
		return err
	}
	zero := make([]byte, 1<<16)
	buf := make([]byte, 1<<16)
	found := false
	for in := bufio.NewScanner(bytes.NewReader(maps)); in.Scan(); {
		f := strings.Fields(in.Text())
		if len(f) < 5 || f[4] != strconv.FormatUint(st.Ino, 10) {
			continue
		}
		var start, end, off uint64
		fmt.Sscanf(f[0], "%x-%x", &start, &end)
		fmt.Sscanf(f[2], "%x", &off)
		found = true
		for a := start; a < end; a += uint64(len(buf)) {
			n, err := mem.ReadAt(buf[:min(uint64(len(buf)), end-a)], int64(a))
			if err != nil {
				return err
			}
			if bytes.Equal(buf[:n], zero[:n]) {
				continue
			}
			if _, err := to.WriteAt(buf[:n], int64(off+a-start)); err != nil {
				return err
			}
		}
	}
	if !found {
		return fmt.Errorf("memory isn't mapped")
	}
	return nil
}
