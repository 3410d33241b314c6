package fuseproxy

import (
	"context"
	"encoding/binary"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/cell"
)

// A server that is driven from another process reports its results: how often the guest's
// kernel opened for executing what is asked about, its state, and a refusal.
func TestRemote(t *testing.T) {
	tree := t.TempDir()
	write(t, tree+"/watched", "")
	write(t, tree+"/other", "")
	s, err := New(openDir(t, tree), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ours, theirs := net.Pipe()
	obeyed := make(chan error)
	go func() { obeyed <- s.Obey(theirs) }()
	r := NewRemote(ours)
	executed := func(want map[string]int64) {
		t.Helper()
		got, err := r.Executed(context.Background(), []string{"/watched", "/nowhere"})
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Error(err, d)
		}
	}
	executed(map[string]int64{"/watched": 0})
	for _, name := range []string{"watched", "other"} {
		var a answer
		out := s.handle(message(opLookup, rootNode, name), &a)
		node := binary.NativeEndian.Uint64(out[outSize:])
		for _, flags := range []uint32{0, forExec, forExec} {
			s.handle(message(opOpen, node, flags, uint32(0)), &a)
		}
	}
	executed(map[string]int64{"/watched": 2})
	if state, err := r.Save(context.Background()); err != nil || len(state) == 0 {
		t.Errorf("a state of %d bytes: %v", len(state), err)
	}
	if _, err := r.ask(context.Background(), 'z', nil); cell.KindOf(err) != cell.Unsupported {
		t.Errorf("what no server knows: %v", err)
	}
	late, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := r.Executed(late, []string{"/watched"}); cell.KindOf(err) != cell.Unavailable {
		t.Errorf("asked too late: %v", err)
	}
	executed(map[string]int64{"/watched": 2}) // a cancelled request has no effect
	r.Close()
	if err := <-obeyed; err != nil {
		t.Error(err)
	}
}
