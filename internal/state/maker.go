package state

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/cell"
)

// MadeBy counts the cells that are not removed of a token.
func (r *Registry) MadeBy(token string) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.x.owners[token]
}

// A Maker is a request that makes cells: what of it is in their records and leases.
type Maker struct {
	Token, TokenName string
	Door             string            // by which it came
	Labels           map[string]string // that its cells carry
	TTL              time.Duration     // for which they live at most; 0 for any time
	Bounds           ceiling.Bounds    // what holds for them
	Race             cell.RaceID       // for which it makes them; "": for none

	Claim *Claim // of the cells that it may make; nil for any
}

// Sign has a lease say which request made the cell. m may be nil.
func (m *Maker) Sign(l *Lease, template bool) {
	m.Label(l)
	if m != nil {
		l.Owner, l.OwnerName, l.Door = m.Token, m.TokenName, m.Door
	}
	if !template {
		m.Shorten(l, l.Since)
	}
}

// Label adds to a lease the labels of m's cells. m may be nil.
func (m *Maker) Label(l *Lease) {
	if m == nil || len(m.Labels) == 0 {
		return
	}
	labels := maps.Clone(l.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, m.Labels)
	l.Labels = labels
}

// Shorten has a lease end in the time that m may give from now on. m may be nil.
func (m *Maker) Shorten(l *Lease, now time.Time) {
	if m == nil || m.TTL == 0 {
		return
	}
	if end := now.Add(m.TTL); l.Until.IsZero() || l.Until.After(end) {
		l.Until = end
	}
}

// Most are the limits that no cell of m's is above; nil when there are none.
func (m *Maker) Most() *cell.Limits {
	if m == nil || m.Bounds.Max == (ceiling.Limits{}) {
		return nil
	}
	most := m.Bounds.Max
	return &cell.Limits{CPUs: most.CPUs, Memory: most.Memory, PIDs: most.PIDs, Disk: most.Disk}
}

// Limits are what a cell may use: what its policy says, and no more than the ceilings
// that held for its maker.
func (c *Cell) Limits() cell.Limits {
	l, most := c.Setup.Limits, c.Ceiling
	if most == nil && c.Maker != nil {
		most = c.Maker.Most()
	}
	if most == nil {
		return l
	}
	l.CPUs, l.Memory, l.PIDs, l.Disk = least(l.CPUs, most.CPUs), least(l.Memory, most.Memory), least(l.PIDs, most.PIDs), least(l.Disk, most.Disk)
	return l
}

// KeepsMachine refuses to copy a cell with its memory when what was asked for it is above the
// ceilings of the copy's maker: an image of memory goes on in what it was made in.
func (c *Cell) KeepsMachine() error {
	now, was := c.Limits(), c.Setup.Limits
	for _, x := range []struct {
		name     string
		now, was float64
	}{{"memory", float64(now.Memory), float64(was.Memory)}, {"cpus", now.CPUs, was.CPUs}} {
		if x.now == x.was || !slices.Contains(c.Setup.Asked, x.name) {
			continue
		}
		by := ""
		if c.Maker != nil {
			by = " (" + c.Maker.Bounds.By[x.name] + ")"
		}
		return cell.Errorf(cell.Denied, "engine.ceiling", "make it anew with less, or raise the ceiling", "cannot copy a cell that was given %s of %s: the ceiling is %s%s",
			ceiling.Text(x.name, x.was), x.name, ceiling.Text(x.name, x.now), by)
	}
	return nil
}

// least is the lower of two limits, of which 0 is none.
func least[T cmp.Ordered](a, b T) T {
	var none T
	if a == none || b != none && b < a {
		return b
	}
	return a
}

// WithLeases adds to objects that are committed the leases of cells among them
// that are new: with what they have of their parents and their makers.
func (r *Registry) WithLeases(objects []any) []any {
	var more []any
	for _, o := range objects {
		c, ok := o.(*Cell)
		if !ok || c.Maker == nil && c.Parent == nil && c.Replaces == "" {
			continue
		}
		if c.Ceiling == nil {
			c.Ceiling = c.Maker.Most()
		}
		if c.Maker != nil {
			c.Race = c.Maker.Race
		}
		if slices.ContainsFunc(objects, func(o any) bool { l, ok := o.(*Lease); return ok && l.Cell == c.ID }) {
			continue
		}
		labels, known := r.inherited(c)
		if known || (c.Maker == nil || c.Maker.Token == "" && c.Maker.Door == "") && len(labels) == 0 {
			continue
		}
		l := &Lease{Cell: c.ID, Since: time.Now().UTC(), Then: api.LeasePause, Labels: labels}
		c.Maker.Sign(l, c.Template != "")
		more = append(more, l)
	}
	return slices.Concat(objects, more)
}

// inherited are the labels that a new cell has of the one that it replaces or was forked
// from, but for those of other doors. known: it is not new.
func (r *Registry) inherited(c *Cell) (labels map[string]string, known bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.cells.of[c.ID] != nil {
		return nil, true
	}
	from := r.leases.of[c.Replaces]
	if from == nil {
		from = r.leases.of[c.parent()]
	}
	if from == nil {
		return nil, false
	}
	return Inheritable(from.Labels), false
}

// Inheritable are labels without those of other doors.
func Inheritable(labels map[string]string) map[string]string {
	labels = maps.Clone(labels)
	maps.DeleteFunc(labels, func(k, _ string) bool { return strings.Contains(k, ":") })
	return labels
}

// parent is the cell that c was forked from; "" for none.
func (c *Cell) parent() cell.ID {
	if c.Parent == nil {
		return ""
	}
	return c.Parent.Cell
}
