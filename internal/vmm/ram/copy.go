package ram

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	chunk   = 512 << 10 // what is read at once, in bytes: it stays in the processor's cache until it is written
	parts   = 256       // runs that are read at once
	copiers = 2         // one reads while another writes
)

var zeros [pageSize]byte

// copyRuns copies parts of the process's memory into the image.
func (t *Taking) copyRuns(ctx context.Context, runs []run, still bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	jobs := split(runs)
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(copiers, len(jobs)) {
		all.Go(func() {
			buf := make([]byte, chunk)
			for context.Cause(ctx) == nil {
				i := int(next.Add(1)) - 1
				if i >= len(jobs) {
					return
				}
				if err := t.copyJob(jobs[i], buf, still); err != nil {
					cancel(err)
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// split makes jobs of at most a chunk, and of so many parts, out of runs.
func split(runs []run) (jobs [][]run) {
	var job []run
	var n int64
	flush := func() {
		if len(job) > 0 {
			jobs, job, n = append(jobs, job), nil, 0
		}
	}
	for _, r := range runs {
		for r.n > 0 {
			part := r
			part.n = min(r.n, chunk-n)
			job, n = append(job, part), n+part.n
			r = run{r.addr + uint64(part.n), r.off + part.n, r.n - part.n}
			if n == chunk || len(job) == parts {
				flush()
			}
		}
	}
	flush()
	return jobs
}

// copyJob reads all parts with one call, and writes them.
func (t *Taking) copyJob(job []run, buf []byte, still bool) error {
	remote := make([]unix.RemoteIovec, len(job))
	var size int
	for i, r := range job {
		remote[i] = unix.RemoteIovec{Base: uintptr(r.addr), Len: int(r.n)}
		size += int(r.n)
	}
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(size)
	n, err := unix.ProcessVMReadv(t.pid, local, remote, 0)
	if err != nil {
		return os.NewSyscallError("process_vm_readv", err)
	}
	if n != size {
		return fmt.Errorf("cannot read the machine's memory: %d bytes of %d are there", n, size)
	}
	for _, r := range job {
		if err := t.write(buf[:r.n], r.off, still); err != nil {
			return err
		}
		buf = buf[r.n:]
	}
	return nil
}

// write writes pages into the image. Those of zeros remain holes where there is
// nothing below them, and become such, but for a machine that stands still: a hole
// takes longer to make than zeros to write. Where the image is the process's own pages
// alone they are data as others are: a hole would be the base's.
func (t *Taking) write(b []byte, off int64, still bool) error {
	zeros := func(b []byte) bool { return !t.own && isZero(b) }
	for len(b) > 0 {
		zero := zeros(b)
		n := pageSize
		for n < len(b) && zeros(b[n:]) == zero {
			n += pageSize
		}
		var err error
		if zero {
			err = t.writeZeros(b[:n], off, still)
		} else {
			_, err = t.to.WriteAt(b[:n], off)
			t.note(off, int64(n))
		}
		if err != nil {
			return err
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

func (t *Taking) writeZeros(b []byte, off int64, still bool) error {
	for len(b) > 0 {
		there := t.there(off)
		n := int64(pageSize)
		for n < int64(len(b)) && t.there(off+n) == there {
			n += pageSize
		}
		if there {
			err := error(unix.EOPNOTSUPP)
			if !still {
				err = unix.Fallocate(int(t.to.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
			}
			if err != nil {
				if _, err := t.to.WriteAt(b[:n], off); err != nil {
					return err
				}
			}
		}
		b, off = b[n:], off+n
	}
	return nil
}

func isZero(b []byte) bool { return bytes.Equal(b[:pageSize], zeros[:]) }

// note notes that the image has data somewhere, there asks for it. Copiers work on
// different pages, but these may be of the same word of the set.
func (t *Taking) note(off, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.has.add(off, off+n)
}

func (t *Taking) there(off int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.has.has(off)
}
