package server

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/client"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// A keeper makes no fork that it has no descriptors for, and keeps some back for the
// cells that there are.
func TestX16ForksAreForeseen(t *testing.T) {
	k := newKit(t)
	k.d.mayFork = make(chan struct{}, 1)
	k.s.mu.Lock()
	k.s.cells[one] = &kept{warm: &warm{in: Interpreter{Process: &fakeProcess{}}}}
	k.s.mu.Unlock()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	open, _, err := openFiles()
	if err != nil {
		t.Fatal(err)
	}
	limit := uint64(open) + 64 + 5*filesPerFork // and less than that, with what this test opens
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	n := ok(k, proto.Room, proto.Forks{}).Count
	if n < 3 || n > 5 {
		t.Errorf("room for %d forks", n)
	}
	if got := ok(k, proto.Room, proto.Forks{Talk: true}).Count; got >= n {
		t.Errorf("as many forks that talk: %d", got)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit - 5*filesPerFork, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	before := len(ok(k, proto.Hello, proto.Greeting{Version: proto.Version}).Cells)
	_, err = client.Ask(k.ctx, k.c, proto.Fork, proto.NewFork{Of: one, NewCell: proto.NewCell{Cell: "c-0000000000000002"}})
	if cell.KindOf(err) != cell.Unavailable || !strings.Contains(err.Error(), "file descriptors for 0 more") || !strings.Contains(cell.HintOf(err), "ulimit -n") {
		t.Errorf("a fork that there are no descriptors for: %v (%s)", err, cell.HintOf(err))
	}
	c := k.raw()
	k.says(c, "branch", proto.OfCell{Cell: one})
	resp := k.says(c, "branch to", proto.NewCell{Cell: "c-0000000000000002"})
	if resp.Error == nil || resp.Error.Kind != cell.Unavailable {
		t.Errorf("a branch that there are no descriptors for: %+v", resp)
	}
	if n := len(ok(k, proto.Hello, proto.Greeting{Version: proto.Version}).Cells); n != before {
		t.Errorf("%d cells, and %d before", n, before)
	}
}
