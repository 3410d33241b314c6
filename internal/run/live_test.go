package run

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// A daemon that ends waits for the runs that are being prepared, and for no others.
func TestAwaitStarts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		is   func(*Live) // what it is at first
		then func(*Live) // what becomes of it after a second
		want time.Duration
	}{
		{"waits for its cell", func(*Live) {}, func(*Live) {}, 0},
		{"prepares", func(l *Live) { l.working.Store(true) }, func(l *Live) { l.Started(nil) }, time.Second},
		{"prepares and fails", func(l *Live) { l.working.Store(true) }, func(l *Live) { close(l.done) }, time.Second},
		{"prepares for long", func(l *Live) { l.working.Store(true) }, func(*Live) {}, 3 * time.Second},
		{"goes on", func(l *Live) { l.working.Store(true); l.Started(nil) }, func(*Live) {}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &Manager{live: map[cell.RunID]*Live{}}
				l := newLive("r-1")
				m.add(l)
				c.is(l)
				time.AfterFunc(time.Second, func() { c.then(l) })
				began := time.Now()
				m.AwaitStarts(3 * time.Second)
				if d := time.Since(began); d != c.want {
					t.Errorf("waited %v, want %v", d, c.want)
				}
				time.Sleep(time.Second) // for what comes after a second
			})
		})
	}
}
