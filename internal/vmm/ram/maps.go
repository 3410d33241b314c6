package ram

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// area is an address range at which a process has mapped a part of the base, or memory in place
// of a part (see Blank).
type area struct {
	start, end uint64
	off        int64 // offset in the base
}

// mapping is a line of /proc/PID/maps.
type mapping struct {
	area
	perms, file string // the file as device and inode
}

// find returns where a process has mapped the first size bytes of a file, in file order. There
// may be several areas, with anything between them. A hole of the file that is not mapped
// counts as mapped if private memory is at its addresses.
func find(pid int, base *os.File, size int64) ([]area, error) {
	name, err := nameInMaps(base)
	if err != nil {
		return nil, err
	}
	all, err := readMaps(fmt.Sprint(pid))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(all) == 0 {
		return nil, unix.ESRCH
	}
	if err != nil {
		return nil, err
	}
	invalid := func(format string, args ...any) ([]area, error) {
		return nil, cell.Errorf(cell.Invalid, "ram.Begin", "", "cannot take the machine's memory: "+format, args...)
	}
	var areas, blank []area
	for _, m := range all {
		if m.file == noFile && m.perms[3] == 'p' {
			blank = append(blank, m.area)
		}
		if m.file != name || m.off >= size {
			continue
		}
		if m.perms[3] != 'p' {
			return invalid("its file is mapped shared")
		}
		if m.off+int64(m.end-m.start) > size {
			m.end = m.start + uint64(size-m.off)
		}
		areas = append(areas, m.area)
	}
	slices.SortFunc(areas, func(a, b area) int { return cmp.Compare(a.off, b.off) })
	if areas, err = withBlank(base, areas, blank, size); err != nil {
		return nil, err
	}
	var next int64
	for _, a := range areas {
		if a.off != next {
			break
		}
		next += int64(a.end - a.start)
	}
	if next != size {
		return invalid("its process has not mapped all of it once (%d of %d bytes, in %d parts)", next, size, len(areas))
	}
	return areas, nil
}

// noFile is the file of an anonymous mapping.
const noFile = "00:00 0"

// withBlank adds ranges between areas of a file, before the first and after the last, if they
// are holes and have private memory at all their addresses. memory is in address order.
func withBlank(base *os.File, areas, memory []area, size int64) (out []area, err error) {
	if st, err := base.Stat(); err != nil || st.Size() < size { // for a device, too
		return areas, err
	}
	var next int64 // offset in the file
	var at uint64  // address of that offset
	fill := func(n int64) {
		gap := area{at, at + uint64(n), next}
		if n <= 0 || err != nil || !covers(memory, gap) {
			return
		}
		var data int64
		if data, _, err = nextData(base, next, next+n); err == nil && data == next+n {
			out = append(out, gap)
		}
	}
	for i, a := range areas {
		if i == 0 {
			at = a.start - uint64(a.off)
		}
		if at+uint64(a.off-next) == a.start {
			fill(a.off - next)
		}
		out = append(out, a)
		next, at = a.off+int64(a.end-a.start), a.end
	}
	if len(areas) > 0 {
		fill(size - next)
	}
	return out, err
}

// covers reports whether memory covers all of an area.
func covers(memory []area, a area) bool {
	for _, m := range memory {
		if m.start <= a.start && a.start < m.end {
			if a.end <= m.end {
				return true
			}
			a.start = m.end
		}
	}
	return false
}

// nameInMaps returns the kernel's name of a file in maps. Its device may differ from stat's
// (btrfs), so a page of the file is mapped here and looked up.
func nameInMaps(f *os.File) (string, error) {
	page, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_NONE, unix.MAP_PRIVATE)
	if err != nil {
		return "", os.NewSyscallError("mmap", err)
	}
	defer unix.Munmap(page)
	all, err := readMaps("self")
	if err != nil {
		return "", err
	}
	at := addressOf(page)
	for _, m := range all {
		if m.start <= at && at < m.end {
			return m.file, nil
		}
	}
	return "", fmt.Errorf("cannot find a mapping of our own")
}

func readMaps(pid string) (all []mapping, err error) {
	b, err := os.ReadFile("/proc/" + pid + "/maps")
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line)) // 7f…-7f… rw-p 00000000 00:01 INODE /memfd:ram (deleted)
		if len(f) < 5 || len(f[1]) != 4 {
			return nil, fmt.Errorf("cannot understand /proc/%s/maps: %q", pid, line)
		}
		m := mapping{perms: f[1], file: f[3] + " " + f[4]}
		if _, err := fmt.Sscanf(f[0]+" "+f[2], "%x-%x %x", &m.start, &m.end, &m.off); err != nil {
			return nil, fmt.Errorf("cannot understand /proc/%s/maps: %q", pid, line)
		}
		all = append(all, m)
	}
	return all, nil
}
