package state

import (
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// Lease is what the registry keeps of how long a cell lives, and of what its
// maker says of it: labels and variables. It is a record of its own, and not a
// part of the cell's: it changes while other work holds the cell's lock.
type Lease struct {
	Cell   cell.ID           `json:"cell"`
	Labels map[string]string `json:"labels,omitempty"`
	Env    []string          `json:"env,omitempty"`    // of every command; values that look like secrets are not here
	Unkept []string          `json:"unkept,omitempty"` // names of those
	Since  time.Time         `json:"since,omitzero"`   // when it began
	Until  time.Time         `json:"until,omitzero"`   // zero: for ever
	Then   string            `json:"then,omitempty"`   // what becomes of the cell then: api.LeasePause, …
	Parked bool              `json:"parked,omitempty"` // the cell is paused, also when nothing runs in it
	Idle   bool              `json:"idle,omitempty"`   // the cell is paused because nothing happened in it
	Owner  string            `json:"owner,omitempty"`  // the token with which the cell was made
	Door   string            `json:"door,omitempty"`   // by which it was asked for
	// OwnerName is the token's name. ParkedAt is since when the cell is paused.
	OwnerName string    `json:"owner_name,omitempty"`
	ParkedAt  time.Time `json:"parked_at,omitzero"`
}

// Lease returns the lease of a cell; nil if it has none.
func (r *Registry) Lease(id cell.ID) *Lease {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if l := r.leases.of[id]; l != nil {
		c := *l
		return &c
	}
	return nil
}

// LeasesOver lists the leases of cells that live longer than they should, and says
// when the next one ends; zero when none does.
func (r *Registry) LeasesOver(now time.Time) (over []Lease, next time.Time) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for k := range r.x.due.each() {
		if now.Before(k.until) {
			return over, k.until
		}
		over = append(over, *r.leases.at(k.id))
	}
	return over, next
}

// Ends reports whether something is to become of the cell at some time.
func (l *Lease) Ends() bool {
	return !l.Until.IsZero() && (!l.Parked || l.Then == api.LeaseRemove)
}

// Overkept reports whether a paused cell has been kept for as long as it may.
func (r *Registry) Overkept(l *Lease, now time.Time) bool {
	at := r.KeptUntil(l)
	return !at.IsZero() && !now.Before(at)
}

// KeptUntil is when a paused cell is removed; zero: never.
func (r *Registry) KeptUntil(l *Lease) time.Time {
	if l.ParkedAt.IsZero() || r.keeps == nil {
		return time.Time{}
	}
	d := r.keeps(l)
	if d == 0 {
		return time.Time{}
	}
	return l.ParkedAt.Add(d)
}

// Built reports whether a door builds a template in a cell, or has built one.
func (r *Registry) Built(id cell.ID) bool {
	l := r.Lease(id)
	return l != nil && l.Labels[LabelBuild] != ""
}
