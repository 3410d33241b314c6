package keeper

import (
	"maps"
	"slices"
)

// MissingOthers stands for the calls of a cell that are not told apart any more.
const MissingOthers = "others"

// missing is how often processes of a cell called what its kernel does not have.
func (s *Server) missing(p *Proc) map[string]int64 {
	if l, ok := s.Driver.(Lacking); ok && p.events != nil {
		return l.MissingCalls(p.cell)
	}
	return nil
}

// tellMissing writes into a process's stream what it, or others of its cell while
// it ran, called in vain.
func (s *Server) tellMissing(p *Proc) {
	now := s.missing(p)
	var calls []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if now[name] > p.missing[name] && name != MissingOthers {
			calls = append(calls, name)
		}
	}
	if others := now[MissingOthers] - p.missing[MissingOthers]; others > 0 || len(calls) > 0 {
		p.emit("kernel.missing", Missing{calls, others})
	}
}

// Missing is what was called and is not there.
type Missing struct {
	Calls  []string `json:"calls"`
	Others int64    `json:"others"`
}
