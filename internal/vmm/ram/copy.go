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
	chunk   = 512 << 10 // bytes per read; small enough to stay in the processor's cache until they are written
	parts   = 256       // runs per read
	copiers = 2         // one reads while another writes
)

var zeros [pageSize]byte

// copyRuns copies ranges of the process's memory into the image.
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

// split splits runs into jobs of at most one chunk and parts runs.
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

// copyJob reads all runs of a job with one call, and writes them.
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

// write writes pages into the image. Zero pages stay holes if the image has no data there.
// Otherwise they become holes while the machine runs; during the pause zeros are written, which
// is faster. In an image of own pages zeros are data: a hole would stand for the base's page.
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

// note records that the image has data in a range. Copiers work on different pages, but these
// may share a word of the set.
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
