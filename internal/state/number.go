package state

import (
	"cmp"
	"iter"
	"sort"
	"strconv"
	"strings"
)

// numbering is which numbers behind the beginning of a name are free: those in free, and
// those above high.
type numbering struct {
	high int
	free ordered[int]
}

// maxNumber bounds the numbers that are looked after.
const maxNumber = 1 << 30

// cutNumber cuts a name before its number; 0 for a name without one.
func cutNumber(name string) (stem string, n int) {
	stem = strings.TrimRight(name, "0123456789")
	digits := name[len(stem):]
	if digits == "" || digits[0] == '0' || len(digits) > 9 {
		return stem, 0
	}
	for _, d := range digits {
		n = n*10 + int(d-'0')
	}
	return stem, n
}

// renumber notes that a name is taken, or free. The caller holds r.mu.
func (r *Registry) renumber(name string, taken bool) {
	stem, n := cutNumber(name)
	of := r.x.numbers[stem]
	if of == nil || n == 0 {
		return
	}
	switch {
	case taken && n == of.high+1:
		of.high++
	case taken:
		of.free.Delete(n)
	case n <= of.high:
		if of.free.ReplaceOrInsert(n); of.free.Len() == of.high {
			delete(r.x.numbers, stem)
		}
	}
}

// lastTaken is a number from high on that is taken or 0, with a free successor. It is
// found in steps that double: what is free between them is left out. The caller holds r.mu.
func (r *Registry) lastTaken(stem string, high int) int {
	taken := func(n int) bool {
		r.walked.Add(1)
		return r.names[stem+strconv.Itoa(n)] != ""
	}
	step := 1
	for ; taken(high + step); step *= 2 {
		high += step
	}
	return high + sort.Search(step-1, func(i int) bool { return !taken(high + i + 1) })
}

// NumbersOf yields the numbers with which names that begin with stem may be free,
// lowest first. stem does not end in a digit. The caller does not hold r.mu.
func (r *Registry) NumbersOf(stem string) iter.Seq[int] {
	return func(yield func(int) bool) {
		r.mu.Lock()
		of := r.x.numbers[stem]
		if of == nil {
			of = &numbering{free: newOrdered(r.walked, cmp.Compare[int])}
			r.x.numbers[stem] = of
		}
		of.high = r.lastTaken(stem, of.high)
		high, free := of.high, of.free.Clone()
		r.mu.Unlock()
		more := true
		free.Ascend(func(n int) bool {
			r.walked.Add(1)
			more = yield(n)
			return more
		})
		for n := high + 1; more && n < maxNumber; n++ {
			r.walked.Add(1)
			more = yield(n)
		}
	}
}
