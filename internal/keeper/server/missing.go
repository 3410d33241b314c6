package server

import (
	"maps"
	"slices"

	"github.com/pando-dev/pando/internal/cell"
)

// MissingOthers stands for the calls of a cell that are not told apart any more.
const MissingOthers = "others"

// missing is how often processes of a process's cell called what its kernel does not
// have. Processes without a stream of events are not told.
func (s *Server) missing(p *Proc) map[string]int64 {
	if p.events == nil {
		return nil
	}
	return s.missingIn(p.cell)
}

func (s *Server) missingIn(id cell.ID) map[string]int64 {
	if l, ok := s.Driver.(Observer); ok {
		return l.MissingCalls(id)
	}
	return nil
}

// missed are the calls in now that came since before, in order, and how many others.
func missed(before, now map[string]int64) (calls []string, others int64) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if now[name] > before[name] && name != MissingOthers {
			calls = append(calls, name)
		}
	}
	return calls, now[MissingOthers] - before[MissingOthers]
}

// tellMissing writes into a process's stream what it, or others of its cell while
// it ran, called in vain.
func (s *Server) tellMissing(p *Proc) {
	calls, others := missed(p.missing, s.missing(p))
	if others > 0 || len(calls) > 0 {
		p.emit("kernel.missing", Missing{calls, others})
	}
}

// Missing is what was called and is not there.
type Missing struct {
	Calls  []string `json:"calls"`
	Others int64    `json:"others"`
}
