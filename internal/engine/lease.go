package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// It is looked whose time is over when the next one's is; at least so far from
// each other, and not so seldom that a clock which was set goes unnoticed.
const (
	leaseLeast = 50 * time.Millisecond
	leaseMost  = time.Minute
)

// newLease is the lease that is asked for, from now on.
func (e *Engine) newLease(req api.LeaseRequest) (*state.Lease, error) {
	l := &state.Lease{Since: time.Now().UTC(), Then: orElse(req.Then, api.LeasePause)}
	if !slices.Contains([]string{api.LeasePause, api.LeaseStop, api.LeaseRemove}, l.Then) {
		return nil, cell.Errorf(cell.Invalid, "engine.Lease", "use pause, stop or remove", "%q is nothing that can become of a cell", clip(l.Then))
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

// setLeaseEnv keeps the variables of a cell: those whose values look like
// secrets in memory alone, as no record may hold them.
func (e *Engine) setLeaseEnv(l *state.Lease, env []string) {
	l.Env, l.Unkept = nil, nil
	var secret []string
	for _, kv := range env {
		if redactor.String(kv) != kv {
			name, _ := policy.CheckEnv(kv)
			l.Unkept, secret = append(l.Unkept, name), append(secret, kv)
			continue
		}
		l.Env = append(l.Env, kv)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(secret) > 0 {
		e.leaseEnv[l.Cell] = secret
	} else {
		delete(e.leaseEnv, l.Cell)
	}
}

// leasedEnv is what a cell's maker wants every command in it to find.
func (e *Engine) leasedEnv(id cell.ID) []string {
	l := e.reg.Lease(id)
	if l == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return append(slices.Clone(l.Env), e.leaseEnv[id]...)
}

// Lease changes how long a cell lives and what is said of it. What the request
// does not speak of stays.
func (e *Engine) Lease(ctx context.Context, id cell.ID, req api.LeaseRequest, seen ...Seen) (api.Cell, error) {
	c, err := e.usable(id)
	if err != nil {
		return api.Cell{}, err
	}
	asked, err := e.newLease(req)
	if err == nil {
		err = checkLabels(req.Labels)
	}
	if err != nil {
		return api.Cell{}, err
	}
	for _, kv := range req.Env {
		if _, err := policy.CheckEnv(kv); err != nil {
			return api.Cell{}, err
		}
	}
	err = e.changeLease(id, func(l *state.Lease) error {
		now, err := e.reg.Cell(id)
		if err == nil {
			err = unless(func() string { return e.cellTag(&now) }, seen)
		}
		if err != nil {
			return err
		}
		if req.Env != nil {
			e.setLeaseEnv(l, req.Env)
		}
		if req.For != "" && !(req.Extend && l.Until.After(asked.Until)) {
			l.Until = asked.Until
			makerOf(ctx).Shorten(l, asked.Since)
		}
		if req.Then != "" || l.Then == "" {
			l.Then = asked.Then
		}
		if req.Labels != nil {
			l.Labels = maps.Clone(req.Labels)
		}
		return nil
	})
	if err != nil {
		return api.Cell{}, err
	}
	return e.cellView(&c), nil
}

// changeLease changes a cell's lease, which begins now if it never had one.
func (e *Engine) changeLease(id cell.ID, f func(l *state.Lease) error) error {
	e.leasing.Lock()
	defer e.leasing.Unlock()
	l := e.reg.Lease(id)
	if l == nil {
		l = &state.Lease{Cell: id, Since: time.Now().UTC(), Then: api.LeasePause}
	}
	if err := f(l); err != nil {
		return err
	}
	return e.reg.Commit(l)
}

// LeaseLike gives cells the labels and variables of another, of which they are
// forks or branches, and a time of their own, "" for none: all in one record, so
// that many cost what one does. When it fails no cell has any of it.
func (e *Engine) LeaseLike(ctx context.Context, of cell.ID, period string, ids ...cell.ID) error {
	from := e.reg.Lease(of)
	if from == nil {
		from = &state.Lease{Then: api.LeasePause}
	}
	asked, err := e.newLease(api.LeaseRequest{For: period, Then: from.Then})
	if err != nil {
		return err
	}
	env := e.leasedEnv(of)
	e.leasing.Lock()
	defer e.leasing.Unlock()
	var changed []any
	for _, id := range ids {
		l := e.reg.Lease(id)
		if l == nil {
			l = &state.Lease{Cell: id, Since: asked.Since}
		}
		l.Labels, l.Then = maps.Clone(from.Labels), asked.Then
		if period != "" {
			l.Until = asked.Until
		}
		makerOf(ctx).Label(l)
		makerOf(ctx).Shorten(l, asked.Since)
		e.setLeaseEnv(l, env)
		changed = append(changed, l)
	}
	return e.reg.Commit(changed...)
}

// Park pauses a cell until Unpark: its processes stand still, and nothing can be
// started in it, also when it has none. It reports whether it ran.
func (e *Engine) Park(ctx context.Context, id cell.ID) (bool, error) {
	if _, err := e.usable(id); err != nil {
		return false, err
	}
	release, err := e.pauses.Acquire(ctx, id, "pause", nil)
	if err != nil {
		return false, err
	}
	defer release()
	return e.park(ctx, id)
}

// park is Park for callers that hold the cell's lock of pauses.
func (e *Engine) park(ctx context.Context, id cell.ID) (bool, error) {
	did := false
	err := e.changeLease(id, func(l *state.Lease) error {
		if did = !l.Parked; did {
			l.Parked, l.ParkedAt = true, time.Now().UTC()
		}
		return nil
	})
	if err != nil || !did {
		return did, err
	}
	if e.alive.AtRest(id) {
		return did, nil
	}
	if _, err = e.freezeCell(ctx, id); err != nil && e.alive.AtRest(id) {
		err = nil // it came to rest meanwhile, maybe while it was asked
	}
	if err != nil {
		e.changeLease(id, func(l *state.Lease) error { l.Parked, l.ParkedAt = false, time.Time{}; return nil })
	}
	return did, err
}

// Unpark lets a cell go on. It reports whether it was paused.
func (e *Engine) Unpark(ctx context.Context, id cell.ID) (bool, error) {
	release, err := e.pauses.Acquire(ctx, id, "resume", nil)
	if err != nil {
		return false, err
	}
	defer release()
	c, err := e.usable(id)
	if err != nil {
		return false, err
	}
	was := c.State == cell.Paused
	if l := e.reg.Lease(id); l != nil && l.Parked {
		was = true
	}
	if c.State == cell.Paused {
		if _, err := e.thawCell(ctx, id); err != nil {
			return was, err
		}
	}
	return was, e.unpark(id)
}

// unpark notes that a cell may be worked in again.
func (e *Engine) unpark(id cell.ID) error {
	if l := e.reg.Lease(id); l == nil || !l.Parked {
		return nil
	}
	return e.changeLease(id, func(l *state.Lease) error { l.Parked, l.ParkedAt = false, time.Time{}; return nil })
}

// keepLeases does what is to become of cells whose time is over, as long as
// the daemon lives.
func (e *Engine) keepLeases() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-e.life.Done():
			return
		case <-timer.C:
		case <-e.reg.LeaseChanges():
		}
		over, next := e.reg.LeasesOver(time.Now())
		for _, l := range over {
			e.endLease(l)
		}
		if len(over) > 0 { // what became of them is not known here
			next = time.Now()
		}
		if timer.Stop(); !next.IsZero() {
			timer.Reset(min(max(time.Until(next), leaseLeast), leaseMost))
		}
	}
}

// endLease does what is to become of a cell whose time is over. What fails is
// tried again when its time, a little longer now, is over once more.
func (e *Engine) endLease(l state.Lease) {
	release, err := e.pauses.Acquire(e.life, l.Cell, "end of its lease", nil)
	if err != nil {
		return
	}
	defer release()
	now := e.reg.Lease(l.Cell) // it may have been extended meanwhile, or the cell resumed
	switch {
	case now == nil:
		return
	case e.overkept(now, time.Now()):
		e.endKept(*now)
		return
	case !now.Ends() || time.Now().Before(now.Until):
		return
	}
	switch now.Then {
	case api.LeaseRemove:
		_, err = e.Remove(e.life, l.Cell, false)
	case api.LeaseStop:
		if _, err = e.Stop(e.life, l.Cell); err == nil {
			_, err = e.park(e.life, l.Cell)
		}
	default:
		_, err = e.park(e.life, l.Cell)
	}
	if err == nil || e.life.Err() != nil {
		return
	}
	e.log.Warn("cannot end a lease", "cell", l.Cell, "then", l.Then, "error", err)
	e.changeLease(l.Cell, func(l *state.Lease) error { l.Until = time.Now().UTC().Add(30 * time.Second); return nil })
}

// leaseView is what is told of a cell's lease.
func (e *Engine) leaseView(id cell.ID) (labels map[string]string, v *api.Lease) {
	l := e.reg.Lease(id)
	if l == nil {
		return nil, nil
	}
	return l.Labels, &api.Lease{Since: l.Since, Until: l.Until, Then: l.Then, Paused: l.Parked, Kept: e.reg.KeptUntil(l), Unkept: l.Unkept}
}

// LeasedEnv is what a cell's maker wants every command in it to find.
func (e *Engine) LeasedEnv(id cell.ID) []string { return e.leasedEnv(id) }

// labelsOf are the labels that a fork of a cell has.
func (e *Engine) labelsOf(id cell.ID) map[string]string {
	l := e.reg.Lease(id)
	if l == nil {
		return nil
	}
	return state.Inheritable(l.Labels)
}

// labelsOfTemplate are the labels that a fork of a template has.
func (e *Engine) labelsOfTemplate(name string) map[string]string {
	t, err := e.reg.Template(name)
	if err != nil {
		return nil
	}
	return e.labelsOf(t.Cell)
}

// User is who works in cells.
func (e *Engine) User() cell.User { return e.cfg.User }

// Labelled lists the cells that have a label, newest first.
func (v *View) Labelled(label string) (out []cell.ID) {
	list, _, _ := v.e.reg.Find(state.Query{Label: label}, v.required())
	for _, c := range list {
		out = append(out, c.ID)
	}
	return out
}

// Limits are what a cell may use; zero where nothing bounds it.
func (e *Engine) Limits(id cell.ID) cell.Limits {
	c, err := e.reg.Cell(id)
	if err != nil {
		return cell.Limits{}
	}
	return c.Limits()
}
