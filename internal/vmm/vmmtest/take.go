package vmmtest

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"github.com/pando-dev/pando/internal/vmm/ram"
)

// boots starts a machine with memory that can be taken, and returns the base of that.
func (k *bench) boots() (*box, *os.File) {
	k.Helper()
	zero, err := os.Open("/dev/zero")
	k.must(err)
	k.Cleanup(func() { zero.Close() })
	s := k.spec(zero)
	s.Private = true
	return k.start(s), zero
}

// taken is the state of a machine at the moment at which it was stopped.
type taken struct {
	ram.Stats
	image   *os.File
	devices []byte
	before  time.Duration // the guest's longest gap while the memory was taken and the machine ran
	pause   time.Duration // time from stop to continue
}

// take takes a running machine's memory and devices, and continues it.
func (b *box) take(base, to *os.File) taken {
	b.Helper()
	b.gap()
	k, err := ram.Begin(b.ctx, b.cmd.Process.Pid, base, b.size, to, ram.Options{})
	b.must(err)
	defer k.Close()
	x := taken{image: to, before: b.gap()}
	b.longest = x.before
	began := time.Now()
	b.must(b.m.Stop(b.ctx))
	var devices bytes.Buffer
	b.must(b.m.Save(b.ctx, &devices))
	x.Stats, err = k.Finish(b.ctx)
	b.must(err)
	b.must(b.m.Continue(b.ctx))
	x.pause, x.devices = time.Since(began), devices.Bytes()
	return x
}

// gap returns the guest's longest gap since the last call.
func (b *box) gap() time.Duration {
	b.Helper()
	var us int64
	_, err := fmt.Sscan(b.say("gap"), &us)
	b.must(err)
	return time.Duration(us) * time.Microsecond
}

// testTakes takes the memory of machines that count: of one that has booted, of its copy, and
// of a copy of that. The image would mix instants (D37) if a page counted as taken before its
// bytes were saved, or if a page that is written meanwhile was not taken again.
func testTakes(k *bench) {
	b, base := k.boots()
	b.ask("count", "counting")
	b.counts()
	for range 3 {
		var last *box
		var image *os.File
		for range 4 {
			x := b.take(base, k.ram())
			if last != nil {
				last.kill()
			}
			last, image = k.child(x.image), x.image
			last.load(x.devices)
			last.counts()
			b.counts()
		}
		b.kill()
		b, base = last, image
	}
}

// beating starts a machine that has written mib MiB, and writes a page per millisecond.
func (k *bench) beating(mib int) (*box, *os.File) {
	k.Helper()
	b, base := k.boots()
	b.ask(fmt.Sprintf("dirty %d", mib), "dirty")
	b.ask("beat", "beating")
	for b.gap() == 0 { // it has not started
		time.Sleep(time.Millisecond)
	}
	return b, base
}

// testWrites: a write of the guest during the copy waits for one page, not for all. On a busy
// host it also waits for other reasons, so one success in five is enough.
func testWrites(k *bench) {
	mib := 128
	if os.Getenv("E2E_SOAK") != "" {
		mib, k.size = 1<<10, 1280<<20
	}
	b, base := k.beating(mib)
	var last taken
	for range 5 {
		last = b.take(base, k.ram())
		if last.Before < int64(mib)<<20 {
			k.Skipf("needs a kernel that records writes: %s", last.Why)
		}
		if last.before < last.Began/5 {
			return
		}
	}
	k.Errorf("while its memory was taken, for %v, the guest once waited for %v", last.Began, last.before)
}

// testTakesAgain: the tenth time is like the second.
func testTakesAgain(k *bench) {
	b, base := k.beating(64)
	var all []taken
	for range 11 {
		all = append(all, b.take(base, k.ram()))
	}
	second, tenth, after := all[1], all[9], all[10]
	if limit := 2*second.Paused + 1<<20; second.Recorded && min(tenth.Paused, after.Paused) > limit {
		k.Errorf("the tenth pause holds %d bytes, the second held %d", tenth.Paused, second.Paused)
	}
	// A leak per capture would have grown for each one after the tenth.
	limit := 2 * max(second.pause, 10*time.Millisecond)
	least := min(tenth.pause, after.pause)
	for range 10 {
		if least <= limit {
			break
		}
		after = b.take(base, k.ram())
		least = min(least, after.pause)
	}
	if least > limit {
		k.Errorf("from the tenth on a pause takes at least %v, the second took %v", least, second.pause)
	}
	c := k.child(after.image)
	c.load(after.devices)
	c.ask("ping c", "pong c")
}
