package op

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// world is what steps change: a set of marks. It can crash after a number of
// journal writes.
type world struct {
	marks map[string]bool
	log   []Record
	left  int // journal writes before the crash; -1: none
}

var errCrash = errors.New("crash")

func (w *world) Write(r Record) error {
	if w.left == 0 {
		panic(errCrash)
	}
	w.left--
	w.log = append(w.log, r)
	return nil
}

func (w *world) steps(failAt int) []Step {
	var steps []Step
	for i := range 4 {
		name := fmt.Sprint("step ", i)
		steps = append(steps, Step{
			Name: name,
			Do: func(context.Context) error {
				w.marks[name] = true // also when it fails: half done
				if i == failAt {
					return errors.New("no space")
				}
				return nil
			},
			Undo: func(context.Context) error { delete(w.marks, name); return nil },
		})
	}
	return steps
}

func (w *world) run(f func() error) (err error, crashed bool) {
	defer func() {
		if r := recover(); r == errCrash {
			crashed = true
		} else if r != nil {
			panic(r)
		}
	}()
	return f(), false
}

func TestAllOrNothing(t *testing.T) {
	w := &world{marks: map[string]bool{}, left: -1}
	if err := Run(context.Background(), w, "o-1", "test", nil, w.steps(-1)...); err != nil {
		t.Fatal(err)
	}
	if len(w.marks) != 4 || !w.log[len(w.log)-1].Over() {
		t.Fatalf("marks %v", w.marks)
	}
	w = &world{marks: map[string]bool{}, left: -1}
	err := Run(context.Background(), w, "o-1", "test", nil, w.steps(2)...)
	if err == nil || !strings.Contains(err.Error(), "cannot step 2: no space") || len(w.marks) != 0 {
		t.Fatalf("err %v, marks %v", err, w.marks)
	}
}

// A crash before any journal write leaves an operation that Resume brings to
// one of its two ends.
func TestCrashAtEveryWrite(t *testing.T) {
	for _, failAt := range []int{-1, 0, 3} {
		for n := range 12 {
			w := &world{marks: map[string]bool{}, left: n}
			err, crashed := w.run(func() error {
				return Run(context.Background(), w, "o-1", "test", nil, w.steps(failAt)...)
			})
			w.left = -1
			if crashed && len(w.log) > 0 {
				last := w.log[len(w.log)-1]
				err = Resume(context.Background(), w, last, w.steps(failAt)...)
			}
			if crashed && len(w.log) == 0 {
				if len(w.marks) != 0 {
					t.Fatalf("fail at %d, crash at %d: worked without a journal", failAt, n)
				}
				continue
			}
			want := 4
			if failAt >= 0 {
				want = 0
				if err == nil {
					t.Errorf("fail at %d, crash at %d: no error", failAt, n)
				}
			}
			if len(w.marks) != want || !w.log[len(w.log)-1].Over() {
				t.Errorf("fail at %d, crash at %d: marks %v, log ends %+v", failAt, n, w.marks, w.log[len(w.log)-1])
			}
		}
	}
}
