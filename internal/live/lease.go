package live

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// Leases are checked when the next one ends, but at least leaseLeast apart and at most
// leaseMost, so that a change of the clock is noticed.
const (
	leaseLeast = 50 * time.Millisecond
	leaseMost  = time.Minute
)

// leaseRetry is after how long what failed at the end of a lease is tried again.
const leaseRetry = 30 * time.Second

// NewLease is the lease that is asked for, from now on.
func NewLease(req api.LeaseRequest) (*state.Lease, error) {
	l := &state.Lease{Since: time.Now().UTC(), Then: cmp.Or(req.Then, api.LeasePause)}
	if !slices.Contains([]string{api.LeasePause, api.LeaseStop, api.LeaseRemove}, l.Then) {
		return nil, cell.Errorf(cell.Invalid, "live.Lease", "use pause, stop or remove", "%.80q is nothing that can become of a cell", l.Then)
	}
	if req.For == "" {
		return l, nil
	}
	d, err := policy.ParseTimeout(req.For)
	if err != nil {
		return nil, err
	}
	l.Until = l.Since.Add(d)
	return l, nil
}

// SetLeaseEnv keeps the variables of a cell: those with values that look like
// secrets in memory alone, as no record may hold them.
func (m *Manager) SetLeaseEnv(l *state.Lease, env []string) {
	l.Env, l.Unkept = nil, nil
	var secret []string
	for _, kv := range env {
		if m.cfg.Redactor.String(kv) != kv {
			name, _ := policy.CheckEnv(kv)
			l.Unkept, secret = append(l.Unkept, name), append(secret, kv)
			continue
		}
		l.Env = append(l.Env, kv)
	}
	m.envMu.Lock()
	defer m.envMu.Unlock()
	if len(secret) > 0 {
		m.env[l.Cell] = secret
	} else {
		delete(m.env, l.Cell)
	}
}

// LeasedEnv are the variables that every command in a cell finds, as its lease says.
func (m *Manager) LeasedEnv(id cell.ID) []string {
	l := m.cfg.Registry.Lease(id)
	if l == nil {
		return nil
	}
	m.envMu.Lock()
	defer m.envMu.Unlock()
	return append(slices.Clone(l.Env), m.env[id]...)
}

// Lease changes the lease of a cell, its labels and its variables, for a caller with the bounds of
// by, nil for none, unless check refuses that. Fields that the request does not have stay.
func (m *Manager) Lease(id cell.ID, by *state.Maker, req api.LeaseRequest, check func() error) error {
	asked, err := NewLease(req)
	if err != nil {
		return err
	}
	for _, kv := range req.Env {
		if _, err := policy.CheckEnv(kv); err != nil {
			return err
		}
	}
	return m.ChangeLease(id, func(l *state.Lease) error {
		if err := check(); err != nil {
			return err
		}
		if req.Env != nil {
			m.SetLeaseEnv(l, req.Env)
		}
		if req.For != "" && !(req.Extend && l.Until.After(asked.Until)) {
			l.Until = asked.Until
			by.Shorten(l, asked.Since)
		}
		if req.Then != "" || l.Then == "" {
			l.Then = asked.Then
		}
		if req.Labels != nil {
			l.Labels = maps.Clone(req.Labels)
		}
		return nil
	})
}

// ChangeLease changes a cell's lease, which begins now if it never had one.
func (m *Manager) ChangeLease(id cell.ID, f func(l *state.Lease) error) error {
	m.leasing.Lock()
	defer m.leasing.Unlock()
	l := m.cfg.Registry.Lease(id)
	if l == nil {
		l = &state.Lease{Cell: id, Since: time.Now().UTC(), Then: api.LeasePause}
	}
	if err := f(l); err != nil {
		return err
	}
	return m.cfg.Registry.Commit(l)
}

// LeaseLike gives cells the labels and variables of another, of which they are
// forks or branches, and a time of their own, "" for none: all in one record, so
// that many cost what one does. When it fails no cell has any of it.
func (m *Manager) LeaseLike(of cell.ID, by *state.Maker, period string, ids ...cell.ID) error {
	from := m.cfg.Registry.Lease(of)
	if from == nil {
		from = &state.Lease{Then: api.LeasePause}
	}
	asked, err := NewLease(api.LeaseRequest{For: period, Then: from.Then})
	if err != nil {
		return err
	}
	env := m.LeasedEnv(of)
	m.leasing.Lock()
	defer m.leasing.Unlock()
	var changed []any
	for _, id := range ids {
		l := m.cfg.Registry.Lease(id)
		if l == nil {
			l = &state.Lease{Cell: id, Since: asked.Since}
		}
		l.Labels, l.Then = maps.Clone(from.Labels), asked.Then
		if period != "" {
			l.Until = asked.Until
		}
		by.Label(l)
		by.Shorten(l, asked.Since)
		m.SetLeaseEnv(l, env)
		changed = append(changed, l)
	}
	return m.cfg.Registry.Commit(changed...)
}

// KeepLeases does what is to become of cells when their time is over, as long as
// the daemon lives.
func (m *Manager) KeepLeases() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-m.cfg.Life.Done():
			return
		case <-timer.C:
		case <-m.cfg.Registry.LeaseChanges():
		}
		over, next := m.cfg.Registry.LeasesOver(time.Now())
		for _, l := range over {
			m.endLease(l)
		}
		if len(over) > 0 { // what became of them is not known here
			next = time.Now()
		}
		if timer.Stop(); !next.IsZero() {
			timer.Reset(min(max(time.Until(next), leaseLeast), leaseMost))
		}
	}
}

// endLease does what is to become of a cell when its time is over. What fails is
// tried again when its time, a little longer now, is over once more.
func (m *Manager) endLease(l state.Lease) {
	life := m.cfg.Life
	release, err := m.pauses.Acquire(life, l.Cell, "end of its lease", nil)
	if err != nil {
		return
	}
	defer release()
	now := m.cfg.Registry.Lease(l.Cell) // it may have been extended meanwhile, or the cell resumed
	switch {
	case now == nil:
		return
	case m.cfg.Registry.Overkept(now, time.Now()):
		m.cfg.EndKept(*now)
		return
	case !now.Ends() || time.Now().Before(now.Until):
		return
	}
	switch now.Then {
	case api.LeaseRemove:
		err = m.cfg.RemoveCell(life, l.Cell)
	case api.LeaseStop:
		if err = m.cfg.Stop(life, l.Cell); err == nil {
			_, err = m.park(life, l.Cell)
		}
	default:
		_, err = m.park(life, l.Cell)
	}
	if err == nil || life.Err() != nil {
		return
	}
	m.cfg.Log.Warn("cannot end a lease", "cell", l.Cell, "then", l.Then, "error", err)
	m.ChangeLease(l.Cell, func(l *state.Lease) error { l.Until = time.Now().UTC().Add(leaseRetry); return nil })
}
