package operation

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// Operations are bounded: how many go on, how many are known, what is kept of what
// they say and of what comes of them. A defect in one ends nothing else.
func TestOperationsAreBounded(t *testing.T) {
	ops, err := Open(durable.Disk(t.TempDir()), "operations.log", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer ops.Close()
	p := access.Principal{Name: "a", Token: "t-1", Level: access.Run}
	begin := func(do Work) (api.Operation, error) {
		return ops.Begin(t.Context(), p, api.Operation{Kind: "eval"}, t.Context(), do, func(api.Operation, bool) {})
	}
	end := func(do Work) api.Operation {
		t.Helper()
		v, err := begin(do)
		if err != nil {
			t.Fatal(err)
		}
		op, err := ops.Get(p, v.ID)
		if err != nil {
			t.Fatal(err)
		}
		<-op.done
		return ops.Look(op)
	}
	chatty := end(func(_ context.Context, out func(api.StreamLine)) (any, error) {
		for range 100 {
			out(api.StreamLine{Stdout: make([]byte, 100<<10)})
		}
		out(api.StreamLine{Stdout: make([]byte, 1<<20)})
		return strings.Repeat("x", opsTold), nil
	})
	op, _ := ops.Get(p, chatty.ID)
	lines, first, _ := ops.After(op, 0)
	if chatty.State != api.OperationDone || chatty.Result != nil || chatty.Note == "" || op.size > opsSaid || len(lines) < 4 || first != int64(101-len(lines)+1) || !strings.Contains(string(lines[len(lines)-1]), "too long") {
		t.Errorf("%+v: %d bytes, lines %d from %d", chatty, op.size, len(lines), first)
	}
	if v := end(func(context.Context, func(api.StreamLine)) (any, error) { panic("a defect") }); v.State != api.OperationFailed || v.Error.Kind != "internal" {
		t.Errorf("%+v", v)
	}
	var last string
	for range 20 {
		last = end(func(context.Context, func(api.StreamLine)) (any, error) { return strings.Repeat("x", opsTold-10), nil }).ID
	}
	if op, _ := ops.Get(p, last); op.view.Result == nil || ops.bytes > opsBytes {
		t.Errorf("%d bytes are kept, the last result: %v", ops.bytes, op.view.Result != nil)
	}
	for range opsKept {
		end(func(context.Context, func(api.StreamLine)) (any, error) { return nil, nil })
	}
	if n := len(ops.List(p)); n > opsKept {
		t.Errorf("%d are known", n)
	}
	hold := make(chan bool)
	n := 0
	for ; err == nil && n <= opsOwn; n++ {
		_, err = begin(func(context.Context, func(api.StreamLine)) (any, error) { <-hold; return nil, nil })
	}
	if n != opsOwn+1 || cell.KindOf(err) != cell.Limited || cell.HintOf(err) == "" {
		t.Errorf("after %d: %v", n, err)
	}
	close(hold)
	ops.Wait()
	if ops.Busy() {
		t.Error("it counts what has ended")
	}
}

// What an operation that was broken off did is found out by the next daemon, once; what can't be
// stays lost. A daemon that hands over an operation is none that ended it.
func TestBrokenOffOperationsAreResumed(t *testing.T) {
	dir := durable.Disk(t.TempDir())
	discard := slog.New(slog.DiscardHandler)
	open := func() *Store {
		o, err := Open(dir, "operations.log", discard)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	o := open()
	ids := map[string]string{} // by kind
	for _, c := range []struct {
		kind string
		p    access.Principal
	}{{"run", access.Local}, {"create", access.Local}, {"gone", access.Local}, {"eval", access.Local},
		{"fork", access.Principal{Name: "a", Token: "t-1", Level: access.Run, Bounds: &access.Bounds{Labels: map[string]string{"a": "b"}}}}} {
		ctx := WithRequest(t.Context(), NewID())
		v, err := o.Begin(ctx, c.p, api.Operation{Kind: c.kind}, t.Context(), func(ctx context.Context, _ func(api.StreamLine)) (any, error) {
			if c.kind == "run" {
				return nil, cell.Errorf(cell.Unavailable, "", "", "it goes on: %w", ErrContinues)
			}
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}, func(api.Operation, bool) {})
		if err != nil || v.ID != RequestOf(ctx) {
			t.Fatal(v, err)
		}
		ids[c.kind] = v.ID
	}
	op, _ := o.Get(access.Local, ids["run"])
	<-op.done
	next := open() // the first is not closed: it was killed
	if n := len(next.Open()); n != len(ids) {
		t.Errorf("%d are open", n)
	}
	ended := make(chan string, len(ids))
	err := next.Resume(t.Context(), func(v api.Operation, token string) Work {
		if want := map[bool]string{true: "t-1"}[v.Kind == "fork"]; token != want {
			t.Errorf("%s was begun with token %q", v.Kind, token)
		}
		if v.Kind == "eval" {
			return nil
		}
		return func(context.Context, func(api.StreamLine)) (any, error) {
			if v.Kind == "gone" {
				return nil, cell.Errorf(cell.Unavailable, "", "", "it was not done")
			}
			return v.ID, nil
		}
	}, func(v api.Operation, _ string, _ bool) { ended <- v.Kind })
	if err != nil {
		t.Fatal(err)
	}
	next.Wait()
	if n := len(ended); n != len(ids)-1 { // an evaluation stays lost
		t.Errorf("%d have ended", n)
	}
	check := func(o *Store, results bool) {
		t.Helper()
		for kind, want := range map[string]string{"run": api.OperationDone, "create": api.OperationDone, "fork": api.OperationDone, "gone": api.OperationFailed, "eval": api.OperationLost} {
			op, err := o.Get(access.Local, ids[kind])
			if err != nil {
				t.Fatal(err)
			}
			if kind == "gone" && (op.view.Error == nil || !strings.Contains(op.view.Error.Message, "it was not done")) {
				t.Errorf("what was not done says %+v", op.view.Error)
			}
			v := o.Look(op)
			told := results && (kind == "run" || kind == "create")
			if v.State != want || (v.Result != nil) != told || (v.Note != "") != (want == api.OperationDone && !told) || v.Ended.IsZero() {
				t.Errorf("%s: %+v", kind, v)
			}
		}
	}
	check(next, true)
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	last := open()
	defer last.Close()
	if left := last.Open(); len(left) > 0 {
		t.Errorf("%v are open", left)
	}
	check(last, false)
}
