package ram

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"sync"

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

// pages lists the process's own pages as runs of the image, in its order, and their
// bytes. Lists of half the memory are made at once: to look at a GiB takes 8 ms.
func (t *Taking) pages(list lister) (runs []run, n int64, err error) {
	halves := halve(t.areas)
	lists := make([][]run, len(halves))
	errs := make([]error, len(halves))
	var all sync.WaitGroup
	for i, half := range halves {
		all.Go(func() { lists[i], errs[i] = runsOf(t.pagemap, half, list) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, 0, err
	}
	runs = slices.Concat(lists...)
	for _, r := range runs {
		n += r.n
	}
	return runs, n, nil
}

// halve parts areas in two of the same size, at what may be the border of a huge page.
func halve(areas []area) (halves [2][]area) {
	var size uint64
	for _, a := range areas {
		size += a.end - a.start
	}
	var before uint64
	for _, a := range areas {
		n := a.end - a.start
		mid := a.start
		if before < size/2 {
			mid = min((a.start+size/2-before+piece-1)/piece*piece, a.end)
		}
		if mid > a.start {
			halves[0] = append(halves[0], area{a.start, mid, a.off})
		}
		if mid < a.end {
			halves[1] = append(halves[1], area{mid, a.end, a.off + int64(mid-a.start)})
		}
		before += n
	}
	return halves
}

// runsOf lists the pages of some areas.
func runsOf(pagemap *os.File, areas []area, list lister) (runs []run, err error) {
	for _, a := range areas {
		err := list(pagemap, a, func(start, end uint64) {
			off, n := a.off+int64(start-a.start), int64(end-start)
			if k := len(runs) - 1; k >= 0 && runs[k].addr+uint64(runs[k].n) == start && runs[k].off+runs[k].n == off {
				runs[k].n += n
				return
			}
			runs = append(runs, run{start, off, n})
		})
		if err != nil {
			return nil, err
		}
	}
	return runs, nil
}

// all lists all pages of the process's own.
func all(pagemap *os.File, a area, add func(start, end uint64)) error {
	err := scan(false, false)(pagemap, a, add)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
		return readPagemap(pagemap, a, add)
	}
	return err
}
