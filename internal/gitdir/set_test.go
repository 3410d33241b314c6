package gitdir

import (
	"iter"
	"strings"
)

// Len returns the number of paths.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	if s.prefix == "" {
		return s.n
	}
	n := 0
	for range s.All() {
		n++
	}
	return n
}

// All yields the paths in order.
func (s *Set) All() iter.Seq[string] {
	return func(yield func(string) bool) {
		if s == nil {
			return
		}
		s.from(s.prefix, func(name []byte) bool {
			return strings.HasPrefix(string(name), s.prefix) && yield(string(name[len(s.prefix):]))
		})
	}
}
