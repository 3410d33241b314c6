package state

import (
	"encoding/base64"
	"encoding/json"
	"iter"
	"maps"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// A Query says which cells are listed.
type Query struct {
	Labels map[string]string // that they carry, all of them
	Label  string            // that they have, with whatever value; "" for any cells
	States []string          // QueryRunning, QueryPaused; none for all, also those that are being made
	After  string            // go on behind what an earlier answer said was next
	Since  time.Time         // that were made after it
	Oldest bool              // the oldest first
	Limit  int               // at most so many; 0 for all
}

// What Query.States can hold.
const (
	QueryRunning = "running"
	QueryPaused  = "paused"
)

// classesOf are the classes of a query.
func (q *Query) classesOf() (list []int) {
	if len(q.States) == 0 {
		return []int{ClassRunning, classPaused, classMaking}
	}
	for i, name := range []string{QueryRunning, QueryPaused} {
		for _, s := range q.States {
			if s == name {
				list = append(list, i)
				break
			}
		}
	}
	return list
}

// shelfOf is the smallest shelf that has all cells with all these labels; nil when there
// is no cell with one of them. The caller holds r.mu.
func (r *Registry) shelfOf(labels map[string]string, named string) *shelf {
	best := r.x.listed
	look := func(l label) bool {
		s := r.x.labels[l]
		if s == nil {
			return false
		}
		if s.size() < best.size() {
			best = s
		}
		return true
	}
	if named != "" && !look(label{name: named, any: true}) {
		return nil
	}
	for k, v := range labels {
		if !look(label{name: k, value: v}) {
			return nil
		}
	}
	return best
}

// carries reports whether labels have all of want, and named.
func carries(labels, want map[string]string, named string) bool {
	if _, ok := labels[named]; named != "" && !ok {
		return false
	}
	for k, v := range want {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Find lists the cells of a query that also carry the labels in want, and says where the
// rest begins.
func (r *Registry) Find(q Query, want map[string]string) (out []Cell, next string, err error) {
	all := maps.Clone(q.Labels)
	if all == nil {
		all = map[string]string{}
	}
	for k, v := range want {
		if got, ok := all[k]; ok && got != v {
			return nil, "", nil
		}
		all[k] = v
	}
	var after *cellKey
	if q.After != "" {
		if after, err = parseCursor(q.After); err != nil {
			return nil, "", err
		}
	}
	if q.Oldest && after == nil && !q.Since.IsZero() {
		after = &cellKey{made: q.Since}
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := r.shelfOf(all, q.Label)
	if s == nil {
		return nil, "", nil
	}
	var seqs []iter.Seq[cellKey]
	for _, i := range q.classesOf() {
		seqs = append(seqs, s[i].behind(after, q.Oldest))
	}
	compare := cellKey.Compare
	if q.Oldest {
		compare = func(a, b cellKey) int { return b.Compare(a) }
	}
	for k := range merged(compare, seqs...) {
		if !q.Since.IsZero() && !k.made.After(q.Since) { // with Oldest there is none
			break
		}
		c := r.cells.at(k.id)
		if c == nil || !carries(r.x.places[k.id].labels, all, q.Label) {
			continue
		}
		if q.Limit > 0 && len(out) == q.Limit {
			last := &out[len(out)-1]
			return out, cursorOf(cellKey{last.Created, last.Name, last.ID}), nil
		}
		out = append(out, *c)
	}
	return out, "", nil
}

// Count counts the cells of a class with labels.
func (r *Registry) Count(class int, want map[string]string, named string) (n int) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s := r.shelfOf(want, named)
	if s == nil {
		return 0
	}
	if len(want) == 0 || len(want) == 1 && named == "" {
		return s[class].Len()
	}
	for k := range s[class].each() {
		if carries(r.x.places[k.id].labels, want, named) {
			n++
		}
	}
	return n
}

// cursorOf writes a place in a list, for callers to hand back.
func cursorOf(k cellKey) string {
	b, err := json.Marshal(cursor{k.made, k.name, k.id})
	if err != nil { // a time that JSON has no form for, which no clock tells
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

type cursor struct {
	Made time.Time `json:"t"`
	Name string    `json:"n,omitempty"`
	ID   cell.ID   `json:"c"`
}

// parseCursor reads what cursorOf wrote. The cell may be gone.
func parseCursor(s string) (*cellKey, error) {
	var c cursor
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil || c.ID == "" {
		return nil, cell.Errorf(cell.Invalid, "engine.list", "use the cursor of an answer as it is", "%.80q is no cursor", s)
	}
	return &cellKey{c.Made, c.Name, c.ID}, nil
}
