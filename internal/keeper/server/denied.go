package server

import (
	"maps"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// denied is how often processes of a cell executed what its policy denies.
func (s *Server) denied(p *Proc) map[Denied]int64 {
	if d, ok := s.Driver.(Observer); ok && p.events != nil {
		return d.DeniedPrograms(p.cell)
	}
	return nil
}

// tellDenied writes into a process's stream what was denied to it, or to
// others of its cell while it ran. The mounts enforce it; this is their witness.
func (s *Server) tellDenied(p *Proc) {
	now := s.denied(p)
	for _, k := range slices.SortedFunc(maps.Keys(now), func(a, b Denied) int { return strings.Compare(a.Program, b.Program) }) {
		n := now[k] - p.denied[k]
		if n <= 0 {
			continue
		}
		p.emit("decision", cell.Decided{
			ID: cell.NewRequestID(), Count: n,
			Access:   cell.Access{Act: cell.Execute, Program: k.Program},
			Decision: cell.Decision{Effect: cell.Deny, Rule: k.Rule, Origin: k.Origin, Reason: k.Rule + " denies executing it", By: "policy"},
		})
	}
}
