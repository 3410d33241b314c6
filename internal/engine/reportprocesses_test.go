package engine

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
)

// The list of processes is bounded, what failed is in it whatever came before, and all numbers are of all.
func TestReportOfProcesses(t *testing.T) {
	t.Parallel()
	var p processes
	at := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	add := func(kind, fields string, want bool) {
		t.Helper()
		at = at.Add(time.Millisecond)
		if got := p.add(api.Event{Kind: kind, Time: at, Fields: json.RawMessage(fields)}); got != want {
			t.Errorf("%s %s: %v", kind, fields, got)
		}
	}
	if p.listed() != nil {
		t.Error("there are processes")
	}
	for i := range 300 {
		add("process.exec", fmt.Sprintf(`{"pid":%d,"argv":["a"],"as":"asked"}`, i), true)
		add("process.ended", fmt.Sprintf(`{"pid":%d,"code":0,"as":"observed"}`, i), true)
	}
	add("process.exec", `{"pid":7,"argv":["first"],"as":"asked"}`, true)
	add("process.exec", `{"pid":7,"argv":["second"],"as":"asked","cut":3}`, true)
	add("process.ended", `{"pid":7,"code":3,"as":"observed"}`, true)
	add("process.ended", `{"pid":9999,"code":null,"as":"not seen"}`, true)
	add("process.lost", `{"starts":5,"ends":6,"why":"w"}`, false)
	add("process.lost", `{"starts":1,"ends":0,"why":"w"}`, false)
	add("process.unseen", `{"what":"x","why":"y"}`, false)
	add("process.exec", `17`, false)
	add("process.exit", `{}`, false)
	o := p.listed()
	if o.Starts != 302 || o.Ends != 302 || o.Failed != 1 || o.LostStarts != 6 || o.LostEnds != 6 || len(o.Why) != 1 || o.Unseen[0] != "x: y" || len(o.List) != reportProcesses || o.More != 102 {
		t.Errorf("%+v", *o)
	}
	if f := o.List[0]; f.Args[0] != "second" || !f.Cut || *f.ExitCode != 3 || f.MS != 1 || !f.Ended {
		t.Errorf("first is %+v", f)
	}
	if f := o.List[1]; f.PID != 0 || *f.ExitCode != 0 {
		t.Errorf("then %+v", f)
	}
}
