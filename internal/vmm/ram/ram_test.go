package ram

import (
	"bytes"
	"testing"
	"time"
)

const mib = 1 << 20

// TestTakesWhatAProcessHas: base, own pages, and what is written meanwhile.
func TestTakesWhatAProcessHas(t *testing.T) {
	base := memfd(t, 64*mib)
	_, err := base.WriteAt(bytes.Repeat([]byte("base"), mib), 8*mib)
	must(t, err)
	c := newChild(t, base, "private")
	c.say("write %d %d 3", 4*mib, 8*mib)
	c.say("loop %d %d", 32*mib, 8*mib)
	for range 10 {
		to := memfd(t, 0)
		k, err := Begin(t.Context(), c.pid, base, c.size, to)
		must(t, err)
		c.say("write %d %d 9", 2*mib, 3*mib)
		c.say("stop")
		s, err := k.Finish(t.Context())
		must(t, err)
		c.same(to)
		c.say("go")
		must(t, k.Close())
		t.Logf("%+v", s)
		if !s.Recorded {
			t.Fatal(s.Why)
		}
		time.Sleep(time.Millisecond)
	}
}
