package cli

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pando-dev/pando/internal/need"
)

// What a command does to many cells goes on for several at a time, is told in the order of
// their names, and ends with the first error.
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
	need.Receive(t, full, "as many at a time as may be")
	err, _ := need.Receive(t, done, "the end")
	if err != nil || most != manyAtOnce || !slices.Equal(said, names) {
		t.Fatalf("%d at a time, %v; said %v", most, err, said)
	}

	var begun atomic.Int64
	first, second := errors.New("of cell-20"), errors.New("of cell-25")
	both := make(chan struct{})
	said = nil
	start(func(name string) (string, error) {
		begun.Add(1)
		switch name {
		case "cell-20":
			<-both // the later one is there before
			return "", first
		case "cell-25":
			defer close(both)
			return "", second
		}
		return name, nil
	})
	err, _ = need.Receive(t, done, "the end with an error")
	if n := begun.Load(); err != first || n > 25+2*manyAtOnce || slices.Contains(said, "cell-20") || !slices.Contains(said, "cell-19") {
		t.Errorf("%v, after %d were begun; said %v", err, n, said)
	}
}
