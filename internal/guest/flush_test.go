package guest

import (
	"os"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/testenv"
)

// The end of a process waits for its output while there is room for it, however late the copying
// runs, but not for a reader that does not read.
func TestFlushWaitsForACopyThatIsLate(t *testing.T) {
	for name, full := range map[string]bool{"room": false, "no room": true} {
		t.Run(name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			for full && roomIn(w) {
				if _, err := w.Write(make([]byte, 4096)); err != nil {
					t.Fatal(err)
				}
			}
			s := &stream{}
			s.moved.L = &s.mu
			o := &out{s: s, f: w}
			if err := s.push([]byte("late")); err != nil {
				t.Fatal(err)
			}
			flushed := make(chan struct{})
			go func() { defer close(flushed); o.flush(flushStill) }()
			if full {
				testenv.Receive(t, flushed, "the end of a flush whose output nobody takes")
				return
			}
			select {
			case <-flushed:
				t.Error("output that there is room for is not waited for")
			case <-time.After(10 * flushStill):
			}
			go o.copy()
			testenv.Receive(t, flushed, "the end of a flush whose output is taken")
			b := make([]byte, 10)
			if n, err := r.Read(b); string(b[:n]) != "late" || err != nil {
				t.Errorf("%q, %v", b[:n], err)
			}
			s.mu.Lock()
			s.ended = true
			s.moved.Broadcast()
			s.mu.Unlock()
		})
	}
}
