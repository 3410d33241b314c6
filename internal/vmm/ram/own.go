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

// A lister finds the process's own pages in an area, in their order.
type lister func(pagemap *os.File, a area, add func(start, end uint64)) error

// scan returns a lister that has the kernel find the pages. With written it finds
// those that were written since they were protected; with protect it protects them.
func scan(written, protect bool) lister {
	s := linux.PageScan{None: linux.PageFile | linux.PageZero, Any: linux.PagePresent | linux.PageSwapped, Protect: protect}
	if written {
		s.All = linux.PageWritten
	}
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
			if err == nil || err == io.EOF { // the process has no memory any more
				err = unix.ESRCH
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
	err := scan(false, false)(pagemap, a, add)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
		return readPagemap(pagemap, a, add)
	}
	return err
}
