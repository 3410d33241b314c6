package vmmtest

import (
	"context"
	"os"
	"path/filepath"

	"github.com/pando-dev/pando/internal/vmm"
)

// whole is a machine of a driver that can move all of it at once, memory included.
type whole interface {
	SaveAll(ctx context.Context, to *os.File) error
	LoadAll(ctx context.Context, from *os.File) error
}

// testMovesWhole: a machine that was moved continues counting from the instant at which it was
// stopped, in its own memory, and so does its source.
func testMovesWhole(k *bench) {
	parent := k.start(k.spec(nil))
	w, ok := parent.m.(whole)
	if !ok {
		return // optional for drivers
	}
	parent.ask("count", "counting")
	before := parent.counts()
	f, err := os.Create(filepath.Join(k.TempDir(), "all"))
	k.must(err)
	defer f.Close()
	if w.SaveAll(k.ctx, f) == nil {
		k.Fatal("a machine that runs was moved")
	}
	k.must(parent.m.Stop(k.ctx))
	k.must(w.SaveAll(k.ctx, f))
	k.must(parent.m.Continue(k.ctx))
	parent.counts()
	if st, err := f.Stat(); err != nil || st.Size() < 2*pagesCounted {
		k.Fatalf("what was moved has %d bytes, %v", st.Size(), err)
	}
	parent.kill()
	from, err := os.Open(f.Name())
	k.must(err)
	defer from.Close()
	s := k.spec(nil)
	s.Incoming = true
	c := k.start(s)
	k.must(c.m.(whole).LoadAll(k.ctx, from))
	c.state(vmm.Stopped)
	k.must(c.m.Continue(k.ctx))
	if n := c.counts(); n < before {
		k.Errorf("the copy counts from %d, the source was at %d", n, before)
	}
}

// pagesCounted is half of the memory that the guest counts on, in bytes.
const pagesCounted = 32 << 20
