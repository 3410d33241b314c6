package ram

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// leastBlank is the smallest hole that gets its own mapping, in bytes. An image has some
// hundred holes, and a few dozen have nearly all of the space.
const leastBlank = 2 << 20

// Blank makes process pid map new memory over large holes of the base, of which it has mapped
// the first size bytes privately, where it has no own pages yet. It returns the number of
// bytes. Otherwise each page that the machine writes there would exist twice: the kernel adds a
// zero page to the base's file before it copies it (shmem_fault), and the file keeps it.
//
// The machine must be stopped. If no thread of the process can be made to map (see
// linux.UserfaultOf), nothing changes, and that is no error.
func Blank(pid int, base *os.File, size int64) (n int64, err error) {
	areas, err := find(pid, base, size)
	if err != nil {
		return 0, err
	}
	pagemap, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return 0, err
	}
	defer pagemap.Close()
	var holes []linux.PageRange
	add := func(start, end uint64) {
		if start < end && end-start >= leastBlank {
			holes = append(holes, linux.PageRange{Start: start, End: end})
			n += int64(end - start)
		}
	}
	for _, a := range areas {
		err := holesIn(base, a, func(start, end uint64) error {
			err := all(pagemap, area{start: start, end: end}, func(from, to uint64) { // own pages
				add(start, from)
				start = to
			})
			add(start, end)
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	if len(holes) == 0 {
		return 0, nil
	}
	err = linux.MapBlank(pid, holes)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return 0, nil
	}
	return n, err
}

// holesIn calls f with the addresses at which an area has holes of the base.
func holesIn(base *os.File, a area, f func(start, end uint64) error) error {
	last := a.off + int64(a.end-a.start)
	for off := a.off; off < last; {
		from, end, err := nextData(base, off, last)
		if err != nil {
			return err
		}
		if err := f(a.start+uint64(off-a.off), a.start+uint64(from-a.off)); err != nil {
			return err
		}
		if from == last {
			return nil
		}
		off = end
	}
	return nil
}
