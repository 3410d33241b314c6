package gc

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/policy"
)

// ReserveSize is the space kept back, in bytes, so that a run that has filled the disk
// can be brought to its end: frozen, judged, sealed.
const ReserveSize = 2 << 20

// lastSize is kept back beside it, in bytes, for removals alone: a run that needed the reserve
// can have left a disk on which nothing is free, and a removal writes, too.
const lastSize = 512 << 10

// keepLast makes the reserve of removals as large as there is room for.
func (m *Manager) keepLast() {
	m.space.Lock()
	defer m.space.Unlock()
	st, err := os.Stat(m.cfg.Home.LastReserve())
	if err == nil && st.Size() == lastSize {
		return
	}
	f, err := os.OpenFile(m.cfg.Home.LastReserve(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return // Freeing goes without
	}
	defer f.Close()
	for size := int64(lastSize); size >= 4<<10 && (st == nil || size > st.Size()); size /= 2 {
		if unix.Fallocate(int(f.Fd()), 0, 0, size) == nil {
			return
		}
	}
}

// spendLast frees the reserve of removals, if it is there.
func (m *Manager) spendLast() {
	m.space.Lock()
	defer m.space.Unlock()
	os.Remove(m.cfg.Home.LastReserve())
}

// KeepReserve makes the reserve if it isn't there. A disk that has no room for it has none for
// a run.
func (m *Manager) KeepReserve() error {
	m.keepLast()
	m.space.Lock()
	defer m.space.Unlock()
	if st, err := os.Stat(m.cfg.Home.Reserve()); err == nil && st.Size() == ReserveSize {
		return nil
	}
	failpoint.Step("keep some space")
	if free, _, err := m.Free(); err == nil && !roomForReserve(free, m.spenders) {
		return &os.PathError{Op: "keep some space free in", Path: m.cfg.Home.State, Err: unix.ENOSPC}
	}
	f, err := os.OpenFile(m.cfg.Home.Reserve(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err = unix.Fallocate(int(f.Fd()), 0, 0, ReserveSize); errors.Is(err, unix.EOPNOTSUPP) {
		_, err = f.Write(make([]byte, ReserveSize))
	}
	if err != nil {
		os.Remove(m.cfg.Home.Reserve())
		return &os.PathError{Op: "keep some space free in", Path: m.cfg.Home.State, Err: err}
	}
	return nil
}

// roomForReserve reports whether the reserve may be made of so many free bytes: while
// something is done with its space, as much has to stay free for that.
func roomForReserve(free int64, spenders int) bool {
	return spenders == 0 || free >= 2*ReserveSize
}

// SpendReserve frees the reserve, if it is there, and leaves its space free until done is
// called.
func (m *Manager) SpendReserve() (done func()) {
	m.space.Lock()
	defer m.space.Unlock()
	os.Remove(m.cfg.Home.Reserve())
	m.spenders++
	return func() {
		m.space.Lock()
		defer m.space.Unlock()
		m.spenders--
	}
}

// Freeing does what gives space back. Its records need some: on a full disk it is done again,
// with the reserve, and then with that of removals. Of several at once one finds the reserve,
// and all have its space: so each is done again, whether the reserve was still there or not.
func (m *Manager) Freeing(do func() error) error {
	err := do()
	if durable.IsFull(err) {
		defer m.SpendReserve()()
		err = do()
	}
	if durable.IsFull(err) {
		m.spendLast()
		err = do()
		m.keepLast() // of what was not needed, or is free now
	}
	return err
}

// DefaultFree is how much of the file system that the state lies on stays free, in bytes, when
// nothing is said; of a small one less.
const DefaultFree = 64 << 20

// disk is how much of the file system that the state lies on is free, and how large that is, in
// bytes.
func (m *Manager) disk() (free, size int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(m.cfg.Home.State, &st); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: m.cfg.Home.State, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

// Free is how much of that is free, and how much of it is to stay so.
func (m *Manager) Free() (free, keep int64, err error) {
	free, size, err := m.disk()
	if keep = m.cfg.MinFree; keep == 0 {
		keep = min(DefaultFree, size/64)
	}
	return free, keep, err
}

// Room refuses what would make something new while less is free than should be: what there is
// must still be finished, recorded and removed. It looks at the budget, in the background.
func (m *Manager) Room() error {
	m.lookAtSpace()
	free, keep, err := m.Free()
	if err == nil && free < keep {
		return cell.Errorf(cell.Unavailable, "gc.Room", m.Hint(),
			"cannot make anything new: %s has %s free, and %s are kept: %w", m.cfg.Home.State, policy.FormatSize(free), policy.FormatSize(keep), unix.ENOSPC)
	}
	return err
}

// Hint says how space can be had.
func (m *Manager) Hint() string {
	hint := "free some space: `pando gc` shows what pando can free"
	if r, n := m.keptMost(); n > 0 {
		hint += fmt.Sprintf("; `pando discard %s --yes` gives up what is kept of that run, %s", r, policy.FormatSize(n))
	}
	return hint
}

// keptMost is the run with the kept result that holds the most space, of those that can be
// given up, and how much that is. "" if there is none.
func (m *Manager) keptMost() (most cell.RunID, size int64) {
	reg := m.cfg.Records
	for _, r := range reg.Runs("") {
		if r.Verdict != cell.Restored && r.Verdict != cell.Discarded || r.In.After == r.In.Before {
			continue
		}
		c, err := reg.Cell(r.CellID())
		k, kerr := reg.Checkpoint(r.In.After)
		if err != nil || kerr != nil || k.Gone || c.State == cell.Removed || slices.Contains(c.KnownAt, k.ID) || reg.Ancestors(c.Head)[k.ID] {
			continue
		}
		p, err := m.cfg.Provider(k.State.Provider)
		if err != nil || len(k.State.Layers) == 0 {
			continue
		}
		if n, err := p.Size(k.State.Layers[len(k.State.Layers)-1]); err == nil && n > size {
			most, size = r.RunID(), n
		}
	}
	return most, size
}
