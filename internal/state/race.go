package state

import (
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// Race is what the registry keeps of a race: what was asked, and how it ended. What became of its attempts is in records of
// their own.
type Race struct {
	ID       cell.RaceID       `json:"id"`
	Name     string            `json:"name"`
	State    string            `json:"state"` // of api.Race
	Created  time.Time         `json:"created"`
	Ended    time.Time         `json:"ended,omitzero"`
	From     string            `json:"from"`             // in words
	Spec     api.RaceRequest   `json:"spec"`             // without the caller's environment, and what looks like a secret
	Unkept   []string          `json:"unkept,omitempty"` // what that was, by name
	Count    int               `json:"count"`            // number of attempts
	Parallel int               `json:"parallel"`
	Base     cell.ID           `json:"base,omitempty"`     // the cell that its source was imported into, and that the attempts' cells were forked from
	Labels   map[string]string `json:"labels,omitempty"`   // of what the caller sees, for one that is restricted
	Confined string            `json:"confined,omitempty"` // why the caller may not name files of the host; "": it may
	Asked    *Asked            `json:"asked,omitempty"`    // the caller
	Winner   int               `json:"winner,omitempty"`   // number of the best attempt; 0: none
	Why      string            `json:"why,omitempty"`
	Notes    []string          `json:"notes,omitempty"`
	Cause    string            `json:"cause,omitempty"` // of api.Race
	Error    *Error            `json:"error,omitempty"`
}

// Attempt is what the registry keeps of an attempt of a race, beside its run.
type Attempt struct {
	Race    cell.RaceID `json:"race"`
	Number  int         `json:"number"` // from 1
	Cell    cell.ID     `json:"cell"`
	Run     cell.RunID  `json:"run,omitempty"`
	Starts  int         `json:"starts,omitempty"`
	Before  cell.RunID  `json:"before,omitempty"` // its run before that, which was lost
	Over    string      `json:"over,omitempty"`   // its state at its end, of api.RaceAttempt; "": it has not ended
	Check   *Check      `json:"check,omitempty"`  // of a check that its run could not make
	Score   *float64    `json:"score,omitempty"`
	Scored  string      `json:"scored,omitempty"`
	Added   int         `json:"added,omitempty"`   // lines
	Deleted int         `json:"deleted,omitempty"` // lines
	High    []string    `json:"high,omitempty"`
	Rank    int         `json:"rank,omitempty"`
	Problem string      `json:"problem,omitempty"`
}

// NoRace is the error for a race that there is not.
func NoRace(id cell.RaceID) error {
	return cell.Errorf(cell.NotFound, "engine.race", "run `pando race ls` to see the races there are", "no race %s", cell.Clip(string(id)))
}

// Race returns the race of an id, with its attempts by number.
func (r *Registry) Race(id cell.RaceID) (Race, []Attempt, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	x := r.races[id]
	if x == nil {
		return Race{}, nil, NoRace(id)
	}
	var list []Attempt
	for _, a := range r.attempts[id] {
		list = append(list, *a)
	}
	slices.SortFunc(list, func(a, b Attempt) int { return a.Number - b.Number })
	return *x, list, nil
}

// Races returns all races, newest first.
func (r *Registry) Races() []Race {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]Race, 0, len(r.races))
	for _, x := range r.races {
		out = append(out, *x)
	}
	slices.SortFunc(out, func(a, b Race) int {
		if n := b.Created.Compare(a.Created); n != 0 {
			return n
		}
		return strings.Compare(string(a.ID), string(b.ID))
	})
	return out
}
