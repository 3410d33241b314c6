package cli

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/pando-dev/pando/internal/testenv"
)

// What a command does to many cells goes on for several at a time, and is told in the order
// of their names.
func TestX18ManyAtATime(t *testing.T) {
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprint("cell-", i))
	}
	var mu sync.Mutex
	now, most := 0, 0
	full := make(chan struct{}) // as many go on as may
	var said []string
	done := make(chan error, 1)
	start := func(do func(name string) (string, error)) {
		go func() { done <- each(names, do, func(name string) { said = append(said, name) }) }()
	}
	start(func(name string) (string, error) {
		mu.Lock()
		now++
		if most = max(most, now); now == manyAtOnce {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		mu.Unlock()
		<-full
		mu.Lock()
		defer mu.Unlock()
		now--
		return name, nil
	})
	testenv.Receive(t, full, "as many at a time as may be")
	err, _ := testenv.Receive(t, done, "the end")
	if err != nil || most != manyAtOnce || !slices.Equal(said, names) {
		t.Fatalf("%d at a time, %v; said %v", most, err, said)
	}
}

// After an error nothing new is begun, and the first one in the order of the names is told.
func TestX18ManyEndWithTheFirstError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var names []string
		for i := range 100 {
			names = append(names, fmt.Sprint("cell-", i))
		}
		var begun atomic.Int64
		first, second := errors.New("of cell-20"), errors.New("of cell-25")
		later, others := make(chan struct{}), make(chan struct{})
		var said []string
		done := make(chan error, 1)
		go func() {
			done <- each(names, func(name string) (string, error) {
				begun.Add(1)
				switch n := slices.Index(names, name); {
				case n == 20:
					<-later
					return "", first
				case n == 25:
					return "", second
				case n > 25:
					<-others
				}
				return name, nil
			}, func(name string) { said = append(said, name) })
		}()
		synctest.Wait() // cell-25 has failed, cell-20 goes on, and so do those that were begun before
		close(later)
		synctest.Wait()
		close(others)
		err := <-done
		if n := begun.Load(); err != first || n > 26+manyAtOnce || slices.Contains(said, "cell-20") || !slices.Contains(said, "cell-19") {
			t.Errorf("%v, after %d were begun; said %v", err, n, said)
		}
	})
}
