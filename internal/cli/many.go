package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/pando-dev/pando/api"
)

// manyAtOnce is the number of cells that a command works on at a time. The daemon then commits
// their changes together.
const manyAtOnce = 16

// each calls do for every name, several at a time, and said for every result in the order of the
// names. What is refused for one name is done for the others; it returns all refusals in the same
// order. After an interruption it starts no more.
func each[T any](names []string, do func(name string) (T, error), said func(T)) error {
	return every(manyAtOnce, names, do, said)
}

// inTurn is each, one name after the other.
func inTurn[T any](names []string, do func(name string) (T, error), said func(T)) error {
	return every(1, names, do, said)
}

func every[T any](atOnce int, names []string, do func(name string) (T, error), said func(T)) error {
	type result struct {
		v     T
		err   error
		begun bool
	}
	results := make([]chan result, len(names))
	for i := range results {
		results[i] = make(chan result, 1)
	}
	var interrupted atomic.Bool
	go func() {
		turns := make(chan struct{}, atOnce)
		for i, name := range names {
			turns <- struct{}{}
			if interrupted.Load() {
				close(results[i])
				<-turns
				continue
			}
			go func() {
				defer func() { <-turns }()
				v, err := do(name)
				if e, ok := err.(*api.Error); ok && e.Kind == "interrupted" {
					interrupted.Store(true)
				}
				results[i] <- result{v, err, true}
			}()
		}
	}()
	r := &refusals{of: len(names)}
	for _, c := range results {
		switch got := <-c; {
		case !got.begun:
		case got.err == nil:
			said(got.v)
		default:
			r.errs = append(r.errs, got.err)
		}
	}
	switch {
	case len(r.errs) == 0:
		return nil
	case len(names) == 1 || interrupted.Load():
		return r.errs[0]
	}
	return r
}

// refusals are what a command could not do for some of several names.
type refusals struct {
	errs []error
	of   int
}

// and adds what was refused later on. r may be nil, for nothing before.
func (r *refusals) and(err error) error {
	if r == nil {
		return err
	}
	if more, ok := err.(*refusals); ok {
		r.errs = append(r.errs, more.errs...)
	} else if err != nil {
		r.errs = append(r.errs, err)
	}
	return r
}

// printWith prints what was done, unless it is JSON and something was refused: that has one
// document. It returns err.
func (a *app) printWith(err error, done any, people func(w io.Writer)) error {
	if err != nil && a.json {
		return err
	}
	return cmp.Or(a.print(done, people), err)
}

// Error is all of them, each once: a daemon that does not answer says the same for each name.
func (r *refusals) Error() string {
	var texts []string
	for _, err := range r.errs {
		if text := err.Error(); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return fmt.Sprintf("cannot do it for %d of %d: %s", len(r.errs), r.of, strings.Join(texts, "; "))
}

// exitRefused is the exit code when some of several names were refused.
const exitRefused = 1
