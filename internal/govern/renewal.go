package govern

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	renewalTick = time.Second      // between two looks at the login files
	tellWithin  = 10 * time.Second // how long it may take to tell one cell
	tellAtOnce  = 32               // how many cells a request tells at a time
	maxBackoff  = time.Minute      // the longest backoff
)

// renewal is what a cell was not told yet. Its goroutine alone uses it while the cell is told.
type renewal struct {
	next    time.Time // not told again before
	backoff time.Duration
	err     error // of the last attempt
	done    bool
}

// KeepLogins tells the cells of each login file that says something new, until ctx ends. A cell
// that can't be told delays the others by no more than tellWithin, and is told again.
func (m *Manager) KeepLogins(ctx context.Context) {
	tick := time.NewTicker(renewalTick)
	defer tick.Stop()
	untold := map[cell.ID]*renewal{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			m.renewLogins(ctx, untold)
		}
	}
}

// renewLogins adds the cells of renewed logins to untold, tells all that it is time for, and takes
// out those that were told.
func (m *Manager) renewLogins(ctx context.Context, untold map[cell.ID]*renewal) {
	for _, name := range m.cfg.Credentials.Renewed(ctx) {
		if _, secret, err := m.cfg.Credentials.GetContext(ctx, name); err == nil {
			if err := m.know(secret); err != nil {
				m.cfg.Log.Warn("cannot keep a renewed login out of the records", "credential", name, "error", err)
			}
		}
		for _, l := range m.holders(name) {
			if untold[l.Cell] == nil {
				untold[l.Cell] = &renewal{backoff: renewalTick}
			}
		}
	}
	var wg sync.WaitGroup
	now := time.Now()
	for id, r := range untold {
		if !now.Before(r.next) {
			wg.Go(func() { m.tellRenewal(ctx, id, r) })
		}
	}
	wg.Wait()
	maps.DeleteFunc(untold, func(_ cell.ID, r *renewal) bool { return r.done })
}

// tellRenewal tells one cell. A cell without an instance is told when it comes to life, or when its
// keeper answers.
func (m *Manager) tellRenewal(ctx context.Context, id cell.ID, r *renewal) {
	if m.cfg.Instances().Instance(id) == nil {
		r.done = true
		return
	}
	err := m.refreshWithin(ctx, id)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		if r.done = true; r.err != nil {
			m.cfg.Log.Info("told a cell of a renewed login", "cell", id)
		}
	default:
		if r.err == nil || r.err.Error() != err.Error() {
			m.cfg.Log.Warn("cannot tell a cell of a renewed login", "cell", id, "error", err)
		}
		r.err, r.next, r.backoff = err, time.Now().Add(r.backoff), min(2*r.backoff, maxBackoff)
	}
}
