package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// reserveSize is the space kept back, in bytes, so that a run whose command
// has filled the disk can be brought to its end: frozen, judged, sealed.
const reserveSize = 2 << 20

// lastSize is kept back beside it, in bytes, for what removes alone: a run that needed the
// reserve can have left a disk on which nothing is free, and a removal writes, too.
const lastSize = 512 << 10

func (e *Engine) lastPath() string { return filepath.Join(e.cfg.Home.State, "reserve.last") }

// keepLast makes the reserve of removals as large as there is room for.
func (e *Engine) keepLast() {
	e.space.Lock()
	defer e.space.Unlock()
	st, err := os.Stat(e.lastPath())
	if err == nil && st.Size() == lastSize {
		return
	}
	f, err := os.OpenFile(e.lastPath(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return // freeing goes without
	}
	defer f.Close()
	for size := int64(lastSize); size >= 4<<10 && (st == nil || size > st.Size()); size /= 2 {
		if unix.Fallocate(int(f.Fd()), 0, 0, size) == nil {
			return
		}
	}
}

// spendLast frees the reserve of removals, if it is there.
func (e *Engine) spendLast() {
	e.space.Lock()
	defer e.space.Unlock()
	os.Remove(e.lastPath())
}

func (e *Engine) reservePath() string { return filepath.Join(e.cfg.Home.State, "reserve") }

// keepReserve makes the reserve if it isn't there. A disk that has no room for
// it has none for a run.
func (e *Engine) keepReserve() error {
	e.keepLast()
	e.space.Lock()
	defer e.space.Unlock()
	if st, err := os.Stat(e.reservePath()); err == nil && st.Size() == reserveSize {
		return nil
	}
	failpoint.Step("keep some space")
	if free, _, err := e.free(); err == nil && !roomForReserve(free, e.spenders) {
		return &os.PathError{Op: "keep some space free in", Path: e.cfg.Home.State, Err: unix.ENOSPC}
	}
	f, err := os.OpenFile(e.reservePath(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err = unix.Fallocate(int(f.Fd()), 0, 0, reserveSize); errors.Is(err, unix.EOPNOTSUPP) {
		_, err = f.Write(make([]byte, reserveSize))
	}
	if err != nil {
		os.Remove(e.reservePath())
		return &os.PathError{Op: "keep some space free in", Path: e.cfg.Home.State, Err: err}
	}
	return nil
}

// roomForReserve reports whether the reserve may be made of so many free bytes: while
// something is done with its space, as much has to stay free for that.
func roomForReserve(free int64, spenders int) bool {
	return spenders == 0 || free >= 2*reserveSize
}

// spendReserve frees the reserve, if it is there, and leaves its space free until done is
// called.
func (e *Engine) spendReserve() (done func()) {
	e.space.Lock()
	defer e.space.Unlock()
	os.Remove(e.reservePath())
	e.spenders++
	return func() {
		e.space.Lock()
		defer e.space.Unlock()
		e.spenders--
	}
}

// freeing does what gives space back. Its records need some: on a full disk it
// is done again, with the reserve, and then with that of removals. Of several at once one
// finds the reserve, and all have its space: so each is done again, whether the reserve was
// still there or not.
func (e *Engine) freeing(do func() error) error {
	err := do()
	if durable.IsFull(err) {
		defer e.spendReserve()()
		err = do()
	}
	if durable.IsFull(err) {
		e.spendLast()
		err = do()
		e.keepLast() // of what was not needed, or is free now
	}
	return err
}

// DefaultFree is how much of the file system that the state lies on stays free, in
// bytes, when nothing is said; of a small one less.
const DefaultFree = 64 << 20

// roomy refuses what would make something new while less is free than should be:
// what there is must still be finished, recorded and removed.
func (e *Engine) roomy() error {
	e.lookAtSpace()
	free, keep, err := e.free()
	if err == nil && free < keep {
		return cell.Errorf(cell.Unavailable, "engine.roomy", e.spaceHint(),
			"cannot make anything new: %s has %s free, and %s are kept: %w", e.cfg.Home.State, policy.FormatSize(free), policy.FormatSize(keep), unix.ENOSPC)
	}
	return err
}

// Ready reports whether something new can be made: there is room on the disk, and among the
// cells that there may be. It is cheap, since probes ask it that know no token.
func (v *View) Ready() bool {
	e := v.e
	if free, keep, err := e.free(); err != nil || free < keep {
		return false
	}
	return e.reg.Size() < e.cfg.MaxCells
}

// free is how much of the file system that the state lies on is free, and how much
// of it is to stay so.
func (e *Engine) free() (free, keep int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(e.cfg.Home.State, &st); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: e.cfg.Home.State, Err: err}
	}
	if keep = e.cfg.MinFree; keep == 0 {
		keep = min(DefaultFree, int64(st.Blocks)*st.Bsize/64)
	}
	return int64(st.Bavail) * st.Bsize, keep, nil
}

// full says what a full disk means to the person who waits.
func full(err error) error {
	if durable.IsFull(err) {
		return cell.Errorf(cell.Unavailable, "engine", "free some space (`pando gc` shows what pando can free), then try again", "cannot go on: %w", err)
	}
	return err
}

// again is how long a run that could not be finished waits for the next try.
const again = 3 * time.Second

// finishLater tries once more to finish a run that could not be recorded, as
// a restarted daemon would. Meanwhile why is what is known of its end.
func (e *Engine) finishLater(id cell.RunID, why error) {
	e.mu.Lock()
	e.lost[id] = why
	e.mu.Unlock()
	e.background(func(ctx context.Context) {
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return // the next daemon does it
		}
		e.mu.Lock()
		delete(e.lost, id)
		e.mu.Unlock()
		if r, err := e.reg.Run(id); err == nil && r.Phase != cell.Ended {
			e.recoverRun(r, why)
		}
	})
}

// unfinished is a conflict when a run of the cell, other than but, has ended
// and could not be recorded: the workspace is still that run's. The caller
// holds the cell's lock, so that none is under way.
func (e *Engine) unfinished(c *state.Cell, but cell.RunID) error {
	for _, r := range e.reg.Runs(c.ID) {
		if p := r.Phase; (p == cell.Executing || p == cell.Finishing) && r.RunID() != but {
			return cell.Errorf(cell.Conflict, "engine.unfinished", "free some space; it is finished as soon as that works",
				"run %s in cell %s could not be finished", r.ID, c.Title())
		}
	}
	return nil
}
