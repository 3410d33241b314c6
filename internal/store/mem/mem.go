// Package mem is a store in memory: the contract in its shortest form, and the
// fake in other packages' tests.
package mem

import (
	"sync"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/store"
)

// Store implements store.Store.
type Store struct {
	mu sync.Mutex // guards m
	m  map[cell.Digest][]byte
}

// New returns an empty store.
func New() *Store { return &Store{m: map[cell.Digest][]byte{}} }

// Put implements store.Store.
func (s *Store) Put(d cell.Digest, b []byte) error {
	if err := store.Check(d, b); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[d] = append([]byte(nil), b...)
	return nil
}

// Get implements store.Store.
func (s *Store) Get(d cell.Digest) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.m[d]
	if !ok {
		return nil, store.NotFound(d)
	}
	return b, nil
}

// Has implements store.Store.
func (s *Store) Has(d cell.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.m[d]
	return ok
}

// Keep implements store.Store.
func (s *Store) Keep(keep func(cell.Digest) bool) (freed int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, b := range s.m {
		if !keep(d) {
			freed += int64(len(b))
			delete(s.m, d)
		}
	}
	return freed, nil
}
