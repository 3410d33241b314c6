package bench

import (
	"errors"
	"iter"
	"sync"
	"time"
)

// moment is when something began.
type moment time.Time

func now() moment { return moment(time.Now()) }

// ms is how long ago that is.
func (m moment) ms() float64 { return toMS(time.Since(time.Time(m))) }

// each does something for all of a list, k at a time, and goes on after errors.
func each[T any](k int, list iter.Seq[T], do func(T) error) error {
	work := make(chan T)
	errs := make([]error, k)
	var all sync.WaitGroup
	for i := range k {
		all.Go(func() {
			for x := range work {
				errs[i] = errors.Join(errs[i], do(x))
			}
		})
	}
	for x := range list {
		work <- x
	}
	close(work)
	all.Wait()
	return errors.Join(errs...)
}
