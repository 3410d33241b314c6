package cli

import "sync/atomic"

// manyAtOnce is how many cells a command works on at a time: the daemon then writes down
// together what becomes of them.
const manyAtOnce = 16

// each calls do for every name, several at a time, and said for every result in the order
// of the names. After an error nothing new is begun; it returns the first one, in the same
// order.
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
