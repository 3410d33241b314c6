// Package storetest is the conformance suite of stores.
package storetest

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/store"
)

// Run checks the contract on a store that open makes, empty.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	t.Run("what was put is got", func(t *testing.T) {
		s := open(t)
		for _, n := range []int{0, 1, 100, 1 << 20} {
			b := bytes.Repeat([]byte{byte(n)}, n)
			d := cell.Sum(b)
			if s.Has(d) {
				t.Fatal("has what was never put")
			}
			if _, err := s.Get(d); cell.KindOf(err) != cell.NotFound {
				t.Fatalf("Get of nothing: %v", err)
			}
			for range 2 {
				if err := s.Put(d, b); err != nil {
					t.Fatal(err)
				}
			}
			got, err := s.Get(d)
			if err != nil || !bytes.Equal(got, b) || !s.Has(d) {
				t.Fatalf("%d bytes: %v", n, err)
			}
		}
	})
	t.Run("wrong digests are refused", func(t *testing.T) {
		s := open(t)
		if err := s.Put(cell.Sum([]byte("a")), []byte("b")); err == nil {
			t.Fatal("accepted")
		}
		if s.Has(cell.Sum([]byte("a"))) {
			t.Fatal("kept")
		}
	})
	t.Run("keep drops the rest", func(t *testing.T) {
		s := open(t)
		var ds []cell.Digest
		for i := range 100 {
			b := []byte(fmt.Sprint("object ", i))
			d := cell.Sum(b)
			ds = append(ds, d)
			if err := s.Put(d, b); err != nil {
				t.Fatal(err)
			}
		}
		want := map[cell.Digest]bool{}
		for i, d := range ds {
			want[d] = i%3 == 0
		}
		freed, err := s.Keep(func(d cell.Digest) bool { return want[d] })
		if err != nil || freed <= 0 {
			t.Fatalf("freed %d, %v", freed, err)
		}
		for i, d := range ds {
			b, err := s.Get(d)
			if want[d] != (err == nil) {
				t.Fatalf("object %d: %v", i, err)
			}
			if want[d] && string(b) != fmt.Sprint("object ", i) {
				t.Fatalf("object %d is %q", i, b)
			}
		}
	})
	t.Run("many at once", func(t *testing.T) {
		s := open(t)
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := range 200 {
					b := []byte(fmt.Sprint(i % 50 * (w%2 + 1)))
					d := cell.Sum(b)
					if err := s.Put(d, b); err != nil {
						t.Error(err)
						return
					}
					if got, err := s.Get(d); err != nil || !bytes.Equal(got, b) {
						t.Errorf("%q %v", got, err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}
