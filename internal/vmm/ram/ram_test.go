package ram

import (
	"bytes"
	"testing"
	"time"
)

const mib = 1 << 20

// TestTakesWhatAProcessHas: base, own pages, and what is written meanwhile.
func TestTakesWhatAProcessHas(t *testing.T) { testTakes(t, "private") }

// TestTakesWhatIsShared: a base that is itself what the process writes to.
func TestTakesWhatIsShared(t *testing.T) { testTakes(t, "shared") }

// TestTakesWhatTheTablesForgot: the kernel may take a shared page out of a process's
// tables, and nobody knows then that it was written.
func TestTakesWhatTheTablesForgot(t *testing.T) {
	c := newChild(t, memfd(t, 16*mib), "shared")
	c.say("write 0 %d 3", 8*mib)
	to := memfd(t, 0)
	k, err := Begin(t.Context(), c.pid, c.base, c.size, to)
	must(t, err)
	defer k.Close()
	c.say("write %d %d 9", mib, 10*mib)
	c.say("drop %d %d", mib, 10*mib)
	c.say("stop")
	_, err = k.Finish(t.Context())
	must(t, err)
	c.same(to)
}

func testTakes(t *testing.T, how string) {
	base := memfd(t, 64*mib)
	_, err := base.WriteAt(bytes.Repeat([]byte("base"), mib), 8*mib)
	must(t, err)
	c := newChild(t, base, how)
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
