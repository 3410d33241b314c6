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

// Stats says how memory was taken. Bytes are whole pages.
type Stats struct {
	BaseBytes int64  // copied of the base: all that are no holes
	Recorded  bool   // what was written meanwhile was known, so that only that was copied in the pause
	Why       string // why not, as a sentence's end
	Rounds    int    // over the process's pages, while the machine ran
	Before    int64  // bytes copied in these
	Paused    int64  // bytes copied by Finish

	Began    time.Duration // how long Begin took
	Finished time.Duration // how long Finish took: its share of the pause
}

// Options are how memory is taken.
type Options struct {
	// Unrecorded has nothing recorded.
	Unrecorded bool
	// Own has the image be what the process has of its own, and nothing of the base: what
	// is a hole in it is the base's (see Fill).
	Own bool
}

// A Taking is memory that is being taken. Its methods are called one after the other.
type Taking struct {
	pid     int
	areas   []area
	to      *os.File
	pagemap *os.File
	alive   *aliveProbe
	writes  *os.File // a userfaultfd of the process's; nil if what it writes isn't recorded
	own     bool     // nothing of the base is taken
	stats   Stats
	done    bool // Finish was called

	mu  sync.Mutex
	has pageSet // where the image has data
}

// Rounds end when so little was written during one that the pause may hold it, when
// one brings no less than two thirds of that before, or after so many.
const (
	enough    = 2 << 20
	maxRounds = 12
)

// Begin takes the memory of a running machine of process pid, which has mapped the
// first size bytes (whole pages) of base privately, into the file to, whatever that
// had. A base that is /dev/zero has none. It returns when what is left is what the machine
// keeps writing; where that isn't recorded, what the process has of its own is left to
// Finish.
//
// It fails with cell.Unavailable if the process has ended, with cell.Invalid if it
// hasn't mapped all of the base privately, and with ENOSPC in the error's chain if to's
// file system is full. When it fails, nothing is changed in the process; what to has
// then is of no use.
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
		t.stats.Why = "nobody wanted it recorded"
	} else if err := t.record(); err != nil {
		t.stats.Why = err.Error()
	} else if err := t.rounds(ctx); err != nil {
		return nil, err
	}
	t.stats.Began = time.Since(began)
	return t, nil
}

// open finds the process's mappings of the base, and opens what tells of its pages and
// of its end.
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

// record has the kernel record what the process writes from now on. If it fails,
// nothing is recorded.
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

// rounds copies what was written since the round before, for as long as it pays.
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

// Finish copies what was written since Begin looked for the last time. The machine must
// stand still until it returns. Then the image is whole, and that of the moment at
// which the machine was stopped. It fails as Begin does, also if the process ended after
// its last page was copied, and can't be called again.
func (t *Taking) Finish(ctx context.Context) (Stats, error) {
	if t.writes != nil {
		return t.finish(ctx, scanWritten(ownWritten))
	}
	return t.finish(ctx, all)
}

// finish is Finish with the pages that list finds.
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

// piece is how much memory is forgotten at once. It is a multiple of every huge page's
// size that mappings of processes have by themselves.
const piece = 16 << 20

// forget ends the recording piece by piece. Closing it would do all of it at once, and
// the machine might wait for 20 ms per GiB.
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

// failed is the error of a Taking.
func (t *Taking) failed(op string, err error) error {
	if errors.Is(err, unix.ESRCH) {
		return cell.Errorf(cell.Unavailable, op, "", "cannot take the memory of process %d: it has ended", t.pid)
	}
	return fmt.Errorf("cannot take the memory of process %d: %w", t.pid, err)
}

// Close ends the recording, also that of a Taking that isn't finished: nothing of it is
// left in the process. Closing twice is nothing.
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
