package operation

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
)

// redos is a journal in memory, of a daemon that ends after a number of writes.
type redos struct {
	log  []Redo
	left int // writes before its end; -1: it does not end
}

var errEnded = errors.New("the daemon ended")

func (j *redos) Write(r Redo) error {
	if j.left == 0 {
		panic(errEnded)
	}
	j.left--
	j.log = append(j.log, r)
	return nil
}

// ends reports whether the daemon ended in f.
func ends(f func() error) (err error, ended bool) {
	defer func() {
		if p := recover(); p != nil {
			if p != errEnded {
				panic(p)
			}
			ended = true
		}
	}()
	return f(), false
}

// Whenever a daemon ends, work is not begun, or it is brought to its end with the arguments
// that it was begun with; its caller is told of a failure.
func TestWorkIsBroughtToItsEnd(t *testing.T) {
	type args struct{ N int }
	for _, fails := range []bool{false, true} {
		for n := range 4 {
			done := 0
			do := func(_ context.Context, a args) error {
				if done += a.N; fails {
					return errors.New("no space")
				}
				return nil
			}
			j := &redos{left: n}
			err, ended := ends(func() error {
				return Do(t.Context(), j, "o-1", "seal", args{7}, func(ctx context.Context) error { return do(ctx, args{7}) })
			})
			if ended != (n < 2) {
				t.Fatalf("after %d writes: ended %v", n, ended)
			}
			if n == 0 {
				if done != 0 {
					t.Error("it was done without a record")
				}
				continue
			}
			want := 7
			if ended {
				if last := j.log[len(j.log)-1]; last.Over() {
					t.Errorf("after %d writes it seems over: %+v", n, last)
				}
				j.left, want = -1, 14
				err = DoAgain(t.Context(), j, j.log[0], do)
			}
			last := j.log[len(j.log)-1]
			if done != want || (err != nil) != fails || !last.Over() || (last.Phase == GivenUp) != fails || (last.Error != "") != fails || last.ID != "o-1" {
				t.Errorf("after %d writes, fails %v: done %d, %v, %+v", n, fails, done, err, last)
			}
		}
	}
	if err := DoAgain(t.Context(), &redos{left: -1}, Redo{Args: json.RawMessage("[]")}, func(context.Context, args) error { return nil }); err == nil {
		t.Error("arguments that can't be read are done")
	}
}
