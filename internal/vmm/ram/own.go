package ram

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// run is a range of the image that the process has as own pages.
type run struct {
	addr uint64
	off  int64
	n    int64
}

// A lister finds the process's own pages in an area, in order.
type lister func(pagemap *os.File, a area, add func(start, end uint64)) error

// own selects the process's own pages, written by any process.
var own = linux.PageScan{None: linux.PageFile | linux.PageZero, Any: linux.PagePresent | linux.PageSwapped}

// ownWritten selects own pages that were written since they were protected.
var ownWritten = linux.PageScan{All: linux.PageWritten, None: own.None, Any: own.Any}

// protected is ownWritten, and protects the pages again.
var protected = linux.PageScan{All: ownWritten.All, None: own.None, Any: own.Any, Protect: true}

// found is the number of ranges per call.
const found = 1024

// scan returns a lister that uses PAGEMAP_SCAN.
func scan(s linux.PageScan) lister {
	return func(pagemap *os.File, a area, add func(start, end uint64)) error {
		return scanTo(pagemap, a.start, a.end, s, make([]linux.PageRange, found), add)
	}
}

func scanTo(pagemap *os.File, at, end uint64, s linux.PageScan, to []linux.PageRange, add func(start, end uint64)) error {
	for at < end {
		n, next, err := linux.ScanPages(pagemap, at, end, s, to)
		if err != nil {
			return err
		}
		for _, r := range to[:n] {
			add(r.Start, r.End)
		}
		if next <= at {
			return io.ErrNoProgress
		}
		at = next
	}
	return nil
}

// near is the maximum distance of ranges that are scanned together, in bytes.
const near = 64 << 10

// scanWritten is scan for written pages, and fast if few were written. The kernel has a fast
// path for written pages of any kind (pagemap_scan_pmd_entry); the result is scanned again with
// s.
func scanWritten(s linux.PageScan) lister {
	return func(pagemap *os.File, a area, add func(start, end uint64)) error {
		rough, exact := make([]linux.PageRange, found), make([]linux.PageRange, found)
		var from, to uint64
		var failed error
		look := func() {
			if from < to && failed == nil {
				failed = scanTo(pagemap, from, to, s, exact, add)
			}
		}
		err := scanTo(pagemap, a.start, a.end, linux.PageScan{All: linux.PageWritten}, rough, func(start, end uint64) {
			if start > to+near {
				look()
				from = start
			}
			to = end
		})
		look()
		return errors.Join(err, failed)
	}
}

// Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
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

// pages returns the process's own pages as runs of the image, in order, and their size in
// bytes. Several goroutines scan concurrently: every page of a GiB takes one of them 15 ms.
func (t *Taking) pages(list lister) (runs []run, n int64, err error) {
	parts := partsOf(t.areas)
	lists := make([][]run, len(parts))
	errs := make([]error, len(parts))
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(lookers, runtime.GOMAXPROCS(0)) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(parts); i = int(next.Add(1)) - 1 {
				lists[i], errs[i] = runsOf(t.pagemap, parts[i], list)
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, 0, err
	}
	for _, l := range lists {
		for _, r := range l {
			n += r.n
			if k := len(runs) - 1; k >= 0 && runs[k].addr+uint64(runs[k].n) == r.addr && runs[k].off+runs[k].n == r.off {
				runs[k].n += r.n
			} else {
				runs = append(runs, r)
			}
		}
	}
	return runs, n, nil
}

const (
	lookers  = 4
	partSize = 4 * piece // bytes per scan
)

// partsOf splits areas at possible borders of huge pages. Own pages may be dense anywhere.
func partsOf(areas []area) (parts []area) {
	for _, a := range areas {
		for a.start < a.end {
			end := min((a.start/partSize+1)*partSize, a.end)
			parts = append(parts, area{a.start, end, a.off})
			a.off, a.start = a.off+int64(end-a.start), end
		}
	}
	return parts
}

// runsOf lists the pages of an area.
func runsOf(pagemap *os.File, a area, list lister) (runs []run, err error) {
	err = list(pagemap, a, func(start, end uint64) {
		if k := len(runs) - 1; k >= 0 && runs[k].addr+uint64(runs[k].n) == start {
			runs[k].n += int64(end - start)
			return
		}
		runs = append(runs, run{start, a.off + int64(start-a.start), int64(end - start)})
	})
	return runs, err
}

// all lists all own pages of the process.
func all(pagemap *os.File, a area, add func(start, end uint64)) error {
	err := scan(own)(pagemap, a, add)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
		return readPagemap(pagemap, a, add)
	}
	return err
}
