package ram

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// Stats describes a capture of memory. Bytes are whole pages.
type Stats struct {
	BaseBytes int64  // copied from the base: everything except holes
	Recorded  bool   // writes were recorded, so that only they were copied in the pause
	Why       string // why not, as the end of a sentence
	Rounds    int    // passes over the process's pages while the machine ran
	Before    int64  // bytes copied in these passes
	Paused    int64  // bytes copied by Finish

	Began    time.Duration // duration of Begin
	Finished time.Duration // duration of Finish: its share of the pause
}

// Options configure a capture.
type Options struct {
	// Unrecorded disables the recording of writes.
	Unrecorded bool
	// Own limits the image to the process's own pages; a hole in it stands for the page of the
	// base (see Fill).
	Own bool
}

// A Taking is a capture in progress. Its methods must not be called concurrently.
type Taking struct {
	pid     int
	areas   []area
	to      *os.File
	pagemap *os.File
	alive   *aliveProbe
	writes  *os.File // a userfaultfd of the process; nil if writes are not recorded
	own     bool     // the base is not copied
	stats   Stats
	done    bool // Finish was called

	mu  sync.Mutex
	has pageSet // guarded by mu: where the image has data
}

// Begin's rounds end when few enough pages were written for the pause, when a round copies no
// less than two thirds of the one before, or after a maximum number.
const (
	enough    = 2 << 20
	maxRounds = 12
)

// Begin takes the memory of a running machine into the file to, and overwrites that. The
// process pid must have mapped the first size bytes (whole pages) of base privately. A base of
// /dev/zero has no data. Begin returns when only pages remain that the machine keeps writing.
// Without recording it leaves all own pages of the process to Finish.
//
// It fails with cell.Unavailable if the process has ended, with cell.Invalid if it has not
// mapped all of the base privately, and with ENOSPC in the error's chain if the file system of
// to is full. After a failure the process is unchanged, and the content of to is invalid.
func Begin(ctx context.Context, pid int, base *os.File, size int64, to *os.File, o Options) (_ *Taking, err error) {
	began := time.Now()
	t := &Taking{pid: pid, to: to, own: o.Own, has: newPageSet(size)}
	defer func() {
		if err != nil {
			t.Close()
			err = t.failed("ram.Begin", err)
		}
	}()
	if size <= 0 || size%int64(os.Getpagesize()) != 0 {
		return nil, cell.Errorf(cell.Invalid, "ram.Begin", "", "%d bytes are no whole pages", size)
	}
	if err := t.open(base, size); err != nil {
		return nil, err
	}
	if err := t.copyBase(ctx, base, size); err != nil {
		return nil, err
	}
	if o.Unrecorded {
		t.stats.Why = "recording is disabled"
	} else if err := t.record(); err != nil {
		t.stats.Why = err.Error()
	} else if err := t.rounds(ctx); err != nil {
		return nil, err
	}
	t.stats.Began = time.Since(began)
	return t, nil
}

// open finds the process's mappings of the base, and opens its pagemap and pidfd.
func (t *Taking) open(base *os.File, size int64) (err error) {
	if t.areas, err = find(t.pid, base, size); err != nil {
		return err
	}
	if t.pagemap, err = os.Open(fmt.Sprintf("/proc/%d/pagemap", t.pid)); err != nil {
		return err
	}
	t.alive, err = newAliveProbe(t.pid, t.pagemap)
	return err
}

// record makes the kernel record the process's writes. If it fails, nothing is recorded.
func (t *Taking) record() error {
	writes, err := linux.UserfaultOf(t.pid)
	if err != nil {
		return err
	}
	err = linux.RecordWrites(writes)
	for _, a := range t.areas {
		if err == nil {
			err = linux.RecordWritesTo(writes, a.start, a.end)
		}
	}
	if err != nil {
		writes.Close()
		return err
	}
	t.writes, t.stats.Recorded = writes, true
	return nil
}

// rounds copies the pages written since the round before, as long as it is worthwhile.
func (t *Taking) rounds(ctx context.Context) error {
	var last int64
	for {
		runs, n, err := t.pages(scanWritten(protected))
		if err != nil {
			return err
		}
		if err := t.copyRuns(ctx, runs, false); err != nil {
			return err
		}
		t.stats.Rounds++
		t.stats.Before += n
		if n <= enough || t.stats.Rounds == maxRounds || t.stats.Rounds > 2 && n > last/3*2 {
			return nil
		}
		last = n
	}
}

// Finish copies the pages written since the last round of Begin. The machine must be stopped
// until it returns. The image is complete then, of the moment at which the machine was stopped.
// Finish fails as Begin does, also if the process ended after its last page was copied, and
// cannot be called again.
func (t *Taking) Finish(ctx context.Context) (Stats, error) {
	if t.writes != nil {
		return t.finish(ctx, scanWritten(ownWritten))
	}
	return t.finish(ctx, all)
}

// finish is Finish with a lister for the pages.
func (t *Taking) finish(ctx context.Context, list lister) (Stats, error) {
	if t.done {
		return t.stats, cell.Errorf(cell.Conflict, "ram.Finish", "", "cannot take a machine's memory twice")
	}
	t.done = true
	began := time.Now()
	runs, n, err := t.pages(list)
	if err == nil {
		err = t.copyRuns(ctx, runs, true)
	}
	if err == nil {
		err = t.alive.check(t.areas[0].start)
	}
	if err != nil {
		return t.stats, t.failed("ram.Finish", err)
	}
	t.stats.Paused, t.stats.Finished = n, time.Since(began)
	return t.stats, nil
}

// piece is the amount of memory per step of forget, in bytes. It is a multiple of every
// transparent huge page size.
const piece = 16 << 20

// forget ends the recording piece by piece. Closing it would do all of it at once, and could
// delay the machine for 20 ms per GiB.
func (t *Taking) forget() {
	for _, a := range t.areas {
		for at := a.start; at < a.end; {
			next := min((at/piece+1)*piece, a.end)
			if linux.ForgetWritesTo(t.writes, at, next) != nil {
				return // closing it does the rest
			}
			at = next
		}
	}
}

// failed returns the error of a Taking.
func (t *Taking) failed(op string, err error) error {
	if errors.Is(err, unix.ESRCH) {
		return cell.Errorf(cell.Unavailable, op, "", "cannot take the memory of process %d: it has ended", t.pid)
	}
	return fmt.Errorf("cannot take the memory of process %d: %w", t.pid, err)
}

// Close ends the recording, finished or not, and removes all of it from the process. Closing
// twice has no effect.
func (t *Taking) Close() error {
	var errs []error
	if t.writes != nil {
		t.forget()
	}
	for _, f := range []*os.File{t.writes, t.pagemap} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	if t.alive != nil {
		errs = append(errs, t.alive.close())
	}
	t.writes, t.pagemap, t.alive, t.done = nil, nil, nil, true
	return errors.Join(errs...)
}
