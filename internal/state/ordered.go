package state

import (
	"iter"
	"sync/atomic"

	"github.com/google/btree"
)

// ordered is a set in an order. Its walks are counted.
type ordered[T any] struct {
	*btree.BTreeG[T]
	compare func(a, b T) int
	walked  *atomic.Int64
}

func newOrdered[T any](walked *atomic.Int64, compare func(a, b T) int) ordered[T] {
	return ordered[T]{btree.NewG(16, func(a, b T) bool { return compare(a, b) < 0 }), compare, walked}
}

// from yields what is not before at, in order.
func (o ordered[T]) from(at T) iter.Seq[T] {
	return func(yield func(T) bool) {
		o.AscendGreaterOrEqual(at, func(x T) bool {
			o.walked.Add(1)
			return yield(x)
		})
	}
}

// each yields everything, in order.
func (o ordered[T]) each() iter.Seq[T] {
	return func(yield func(T) bool) {
		o.Ascend(func(x T) bool {
			o.walked.Add(1)
			return yield(x)
		})
	}
}

// merged yields what several sequences have, each in order, in order.
func merged[T any](compare func(a, b T) int, seqs ...iter.Seq[T]) iter.Seq[T] {
	if len(seqs) == 1 {
		return seqs[0]
	}
	return func(yield func(T) bool) {
		type head struct {
			next func() (T, bool)
			v    T
		}
		var heads []*head
		for _, s := range seqs {
			next, stop := iter.Pull(s)
			defer stop()
			if v, ok := next(); ok {
				heads = append(heads, &head{next, v})
			}
		}
		for len(heads) > 0 {
			least := 0
			for i := range heads {
				if compare(heads[i].v, heads[least].v) < 0 {
					least = i
				}
			}
			if !yield(heads[least].v) {
				return
			}
			var ok bool
			if heads[least].v, ok = heads[least].next(); !ok {
				heads = append(heads[:least], heads[least+1:]...)
			}
		}
	}
}

// A table holds records by their ids. Its walks are counted.
type table[K comparable, V any] struct {
	of     map[K]*V
	walked *atomic.Int64
}

func newTable[K comparable, V any](walked *atomic.Int64) table[K, V] {
	return table[K, V]{map[K]*V{}, walked}
}

// at is the record of an id; nil for none.
func (t table[K, V]) at(k K) *V { return t.of[k] }

// each yields all records.
func (t table[K, V]) each() iter.Seq2[K, *V] {
	return func(yield func(K, *V) bool) {
		for k, v := range t.of {
			t.walked.Add(1)
			if !yield(k, v) {
				return
			}
		}
	}
}

// behind yields what comes after a key; everything for nil.
func (o ordered[T]) behind(after *T, back bool) iter.Seq[T] {
	return func(yield func(T) bool) {
		visit := func(x T) bool {
			o.walked.Add(1)
			return after != nil && o.compare(x, *after) == 0 || yield(x)
		}
		switch {
		case back && after == nil:
			o.Descend(visit)
		case back:
			o.DescendLessOrEqual(*after, visit)
		case after == nil:
			o.Ascend(visit)
		default:
			o.AscendGreaterOrEqual(*after, visit)
		}
	}
}
