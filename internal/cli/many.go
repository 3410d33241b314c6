package cli

import "sync/atomic"

// manyAtOnce is the number of cells that a command works on at a time. The daemon then commits
// their changes together.
const manyAtOnce = 16

// each calls do for every name, several at a time, and said for every result in the order of the
// names. After an error it starts no more; it returns the first error in the same order.
func each[T any](names []string, do func(name string) (T, error), said func(T)) error {
	type result struct {
		v     T
		err   error
		begun bool
	}
	results := make([]chan result, len(names))
	for i := range results {
		results[i] = make(chan result, 1)
	}
	var failed atomic.Bool
	go func() {
		turns := make(chan struct{}, manyAtOnce)
		for i, name := range names {
			turns <- struct{}{}
			if failed.Load() {
				close(results[i])
				<-turns
				continue
			}
			go func() {
				defer func() { <-turns }()
				v, err := do(name)
				if err != nil {
					failed.Store(true)
				}
				results[i] <- result{v, err, true}
			}()
		}
	}()
	var first error
	for _, c := range results {
		switch r := <-c; {
		case !r.begun:
		case r.err == nil:
			said(r.v)
		case first == nil:
			first = r.err
		}
	}
	return first
}
