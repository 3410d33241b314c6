package engine

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
)

// told reads a run's events to their end.
func (b *bed) told(r api.Run, q evidence.EventQuery, each func(api.Event)) (kinds string) {
	b.Helper()
	events, err := b.All().Events(b.ctx, cell.RunID(r.ID), q)
	b.must(err)
	var list []string
	for line, err := range events {
		b.must(err)
		var ev api.Event
		b.must(json.Unmarshal(line, &ev))
		list = append(list, ev.Kind)
		each(ev)
	}
	return strings.Join(list, " ")
}

// A keeper records of a command what the list of kinds says, no more and no less.
func TestEventsAreAsListed(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: x")
	listed := map[string][]string{}
	for _, k := range evidence.EventKinds() {
		for _, f := range k.Fields {
			listed[k.Kind] = append(listed[k.Kind], f.Name)
		}
		slices.Sort(listed[k.Kind])
	}
	check := func(ev api.Event) {
		var f map[string]json.RawMessage
		b.must(json.Unmarshal(ev.Fields, &f))
		if has := slices.Sorted(maps.Keys(f)); !slices.Equal(has, listed[ev.Kind]) {
			t.Errorf("%s has %v, listed are %v", ev.Kind, has, listed[ev.Kind])
		}
	}
	if kinds := b.told(b.run("c", "exit 3"), evidence.EventQuery{}, check); kinds != "process.start process.running process.exit" {
		t.Errorf("events %q", kinds)
	}
	req := b.request("", "")
	req.Command = []string{"./no-such-program"}
	if kinds := b.told(b.do(req), evidence.EventQuery{}, check); !strings.HasSuffix(kinds, "process.failed") {
		t.Errorf("a run that never started: %q", kinds)
	}
}

func TestEventsAreFollowed(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: x")
	r, err := b.StartRun(b.ctx, b.request("c", "while [ ! -e go ]; do sleep 0.01; done"))
	b.must(err)
	kinds := b.told(r, evidence.EventQuery{Follow: true}, func(ev api.Event) {
		if ev.Kind == "process.running" { // it is told while it goes on
			b.runs.Interrupt(cell.RunID(r.ID), "the test")
		}
	})
	if !strings.HasSuffix(kinds, "process.exit") {
		t.Errorf("followed %q", kinds)
	}
}
