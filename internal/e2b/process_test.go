package e2b

import (
	"context"
	"io/fs"
	"net/http/httptest"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/durable/durabletest"
)

// keeping calls removing when a file is removed.
type keeping struct {
	durable.FS
	removing func()
}

func (k keeping) Remove(name string) error {
	k.removing()
	return fs.ErrNotExist
}

// A client that is told of a process's end finds it in no list, neither in that of the
// sandbox's processes nor in what the next daemon reads.
func TestEndedProcessesAreInNoList(t *testing.T) {
	p := &proc{pid: 7, tag: "x", kept: true, subs: map[*subscriber]bool{}}
	sub := p.subscribe(t.Context())
	removed := 0
	f := New(Config{Kept: keeping{durabletest.New(), func() {
		removed++
		if len(sub.events) > 0 {
			t.Error("its end is told while it is in the sandbox's state")
		}
	}}})
	b := f.box("c-1")
	b.procs[p.pid] = p
	list := func() []processView {
		r := httptest.NewRequest("POST", "/process.Process/List", nil)
		got, err := f.listProcesses(r.WithContext(context.WithValue(r.Context(), cellKey{}, &api.Cell{ID: "c-1"})), nil)
		if err != nil {
			t.Fatal(err)
		}
		return got.(processList).Processes
	}
	if l := list(); len(l) != 1 || l[0].PID != 7 {
		t.Fatalf("before its end: %+v", l)
	}
	f.ended("c-1", b, p, endEvent{Status: "exit status 0", Exited: true})
	if e, ok := <-sub.events; !ok || e.End == nil || e.End.Status != "exit status 0" {
		t.Errorf("its client is told %+v", e)
	}
	if l := list(); len(l) != 0 || removed != 1 {
		t.Errorf("after its end: %+v; its record was removed %d times", l, removed)
	}
}
