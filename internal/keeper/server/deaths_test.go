package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/cell"
)

// A request that waits for deaths gets each once, those before it too, and
// none after a while.
func TestDeathsAreHeardOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d deaths
		quit := make(chan struct{})
		a, b, c := cell.Death{Cell: "c-a", Cause: "exit 3"}, cell.Death{Cell: "c-b", Cause: "memory limit"}, cell.Death{Cell: "c-c", Cause: "killed by SIGSEGV"}
		d.add(a)
		d.add(b)
		hear := func(since int64, want []cell.Death, last int64) {
			t.Helper()
			list, at := d.wait(since, quit)
			if diff := cmp.Diff(want, list); diff != "" || at != last {
				t.Errorf("since %d: version %d, want %d\n%s", since, at, last, diff)
			}
		}
		hear(0, []cell.Death{a, b}, 2)
		hear(1, []cell.Death{b}, 2)
		hear(9, []cell.Death{a, b}, 2) // it knew another keeper
		began := time.Now()
		hear(2, nil, 2)
		if took := time.Since(began); took != deathsWait {
			t.Errorf("it heard nothing after %s, not %s", took, deathsWait)
		}
		go func() {
			time.Sleep(time.Second)
			d.add(c)
		}()
		hear(2, []cell.Death{c}, 3)
		for range 3 * deathsKept {
			d.add(a)
		}
		if list, at := d.wait(0, quit); len(list) < deathsKept/2 || len(list) > deathsKept || at != 3+3*deathsKept {
			t.Errorf("%d are kept, version %d", len(list), at)
		}
		close(quit)
		hear(3+3*deathsKept, nil, 3+3*deathsKept)
	})
}
