package ram

import (
	"encoding/binary"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// run is a part of the image that the process has as pages of its own.
type run struct {
	addr uint64
	off  int64
	n    int64
}

// own lists the process's own pages in its areas, as found by one of these.
type lister func(pagemap *os.File, a area, add func(start, end uint64)) error

// written returns a lister of the pages that were written since they were protected;
// with protect it protects them.
func (t *Taking) written(protect bool) lister {
	s := linux.PageScan{All: linux.PageWritten, None: linux.PageFile, Any: linux.PagePresent | linux.PageSwapped, Protect: protect}
	if t.shared {
		s.None = 0
	}
	return scan(s)
}

// scan returns a lister that has the kernel find pages.
func scan(s linux.PageScan) lister {
	return func(pagemap *os.File, a area, add func(start, end uint64)) error {
		found := make([]linux.PageRange, 4096)
		for at := a.start; at < a.end; {
			n, next, err := linux.ScanPages(pagemap, at, a.end, s, found)
			if err != nil {
				return err
			}
			for _, r := range found[:n] {
				add(r.Start, r.End)
			}
			if next <= at {
				return io.ErrNoProgress
			}
			at = next
		}
		return nil
	}
}

// Of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
const (
	entryPresent = 1 << 63
	entrySwapped = 1 << 62
	entryFile    = 1 << 61
)

// readPagemap is a lister for kernels without PAGEMAP_SCAN.
func readPagemap(pagemap *os.File, a area, add func(start, end uint64)) error {
	page := uint64(os.Getpagesize())
	buf := make([]byte, 64<<10)
	for at := a.start; at < a.end; {
		want := min(uint64(len(buf)), (a.end-at)/page*8)
		n, err := pagemap.ReadAt(buf[:want], int64(at/page*8))
		if n < 8 {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		for b := buf[:n&^7]; len(b) > 0; b, at = b[8:], at+page {
			e := binary.LittleEndian.Uint64(b)
			if e&(entryPresent|entrySwapped) != 0 && e&entryFile == 0 {
				add(at, at+page)
			}
		}
	}
	return nil
}

// pages lists the process's own pages as runs of the image, in its order.
func (t *Taking) pages(list lister) (runs []run, n int64, err error) {
	for _, a := range t.areas {
		err := list(t.pagemap, a, func(start, end uint64) {
			size := int64(end - start)
			n += size
			if k := len(runs) - 1; k >= 0 && runs[k].addr+uint64(runs[k].n) == start && runs[k].off+runs[k].n == a.off+int64(start-a.start) {
				runs[k].n += size
				return
			}
			runs = append(runs, run{start, a.off + int64(start-a.start), size})
		})
		if err != nil {
			return nil, 0, err
		}
	}
	return runs, n, nil
}

// all lists all pages of the process's own.
func all(pagemap *os.File, a area, add func(start, end uint64)) error {
	err := scan(linux.PageScan{None: linux.PageFile, Any: linux.PagePresent | linux.PageSwapped})(pagemap, a, add)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
		return readPagemap(pagemap, a, add)
	}
	return err
}

// addUnmapped adds the pages of a shared base that have data, and of which the process's
// tables know nothing: the kernel has taken their memory, and with it whether
// they were written.
func (t *Taking) addUnmapped(runs []run, n int64) ([]run, int64, error) {
	unmapped := scan(linux.PageScan{None: linux.PagePresent | linux.PageSwapped})
	more, _, err := t.pages(unmapped)
	if err != nil {
		return nil, 0, err
	}
	for _, r := range more {
		for end := r.off + r.n; r.off < end; {
			from, to, err := nextData(t.base, r.off, end)
			if err != nil {
				return nil, 0, err
			}
			if from < to {
				runs = append(runs, run{r.addr + uint64(from-r.off), from, to - from})
				n += to - from
			}
			r.addr, r.off = r.addr+uint64(to-r.off), to
		}
	}
	return runs, n, nil
}
