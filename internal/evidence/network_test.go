package evidence

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/agent/price"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

func TestNetworkCountsWhatAStreamTells(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, eventsFile))
	if err != nil {
		t.Fatal(err)
	}
	const run = "r-0123456789abcdef"
	w := receipt.NewEventWriter(f, receipt.StartChain(run))
	emit := func(kind string, v any) {
		t.Helper()
		if err := w.Emit(kind, v); err != nil {
			t.Fatal(err)
		}
	}
	emit("process.start", nil)
	ok := cell.Access{Act: cell.Connect, Host: "a.example", Port: 443}
	no := cell.Access{Act: cell.Resolve, Host: "b.example"}
	deny := cell.Decision{Effect: cell.Deny, Rule: "default", Origin: "default", Reason: "no rule allows b.example", Permit: "--allow b.example", By: "policy"}
	emit("decision", cell.Decided{Access: ok, Decision: cell.Decision{Effect: cell.Allow, By: "policy"}})
	emit("decision", cell.Decided{Access: ok, Decision: cell.Decision{Effect: cell.Allow, By: "person"}})
	emit("decision", cell.Decided{Access: no, Decision: deny})
	emit("decision", cell.Decided{Access: no, Decision: deny, Count: 3})
	emit("decision", cell.Decided{Access: no, Decision: cell.Decision{Effect: cell.Ask}})
	emit("decision", cell.Decided{Access: no, Decision: cell.Decision{}}) // an event without a decision is a denial
	emit("flow", cell.Flow{Host: "a.example", Port: 443, Method: "GET", Opened: true, Secret: "key", Sent: 10, Received: 20})
	emit("flow", cell.Flow{Host: "c.example", Port: 22, Sent: 100, Received: 200})
	emit("flow", cell.Flow{Host: "a.example", Port: 443, Method: "GET", Opened: true, Secret: "key", Sent: 1, Received: 2})
	emit("flow", cell.Flow{Host: "a.example", Port: 443, Method: "POST", Model: &cell.ModelUse{Model: "claude-sonnet-4-5", Requests: 1, Input: 10, Output: 20}})
	emit("flow", cell.Flow{Host: "a.example", Port: 443, Method: "POST", Model: &cell.ModelUse{Model: "claude-sonnet-4-5", Requests: 1, CacheRead: 100}})
	emit("flow", cell.Flow{Host: "a.example", Port: 443, Method: "POST", Model: &cell.ModelUse{Model: "new", Requests: 1, Output: 1}})
	emit("flow", cell.Flow{Host: "a.example", Port: 443, Method: "POST", Model: &cell.ModelUse{Model: "own", Requests: 1, Output: 2}})
	emit("budget", cell.BudgetNote{What: "near", Budget: "tokens", Text: "80 %"})
	emit("network.none", map[string]int{"tries": 4})
	emit("kernel.missing", missingFields{[]string{"mseal", "prctl 0x3b"}, 2})
	f.Close()

	got, missing, err := Network(dir, run, []price.Own{{Models: "ow*", Rate: price.Rate{Output: 3}}})
	if err != nil {
		t.Fatal(err)
	}
	expect := &state.Network{
		Decisions: 8, Denied: 5, Approved: 1, Requests: 6, Sent: 111, Received: 222, Tried: 4,
		Models: []state.ModelUse{{Model: "claude-sonnet-4-5", Requests: 2, Input: 10, Output: 20, CacheRead: 100, MicroUSD: 360}, {Model: "new", Requests: 1, Output: 1, Unpriced: true}, {Model: "own", Requests: 1, Output: 2, MicroUSD: 6, OwnPrice: true}},
		Prices: price.Date(), Budget: []state.BudgetNote{{What: "near", Budget: "tokens", Text: "80 %"}},
		Peers: []state.Peer{{Host: "c.example", Port: 22, Flows: 1, Sent: 100, Received: 200},
			{Host: "a.example", Port: 443, Requests: 6, Flows: 6, Sent: 11, Received: 22, Opened: true, Credential: []string{"key"}}},
		Denials: []state.Denial{{Want: "resolve b.example", Times: 4, Rule: "default", Origin: "default", Reason: deny.Reason, Permit: deny.Permit, By: "policy"},
			{Want: "resolve b.example", Times: 1}},
	}
	if d := cmp.Diff(expect, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"mseal", "prctl 0x3b", "and others"}, missing); d != "" {
		t.Error(d)
	}
	if n, _, err := Network(dir, "r-ffffffffffffffff", nil); err == nil {
		t.Errorf("another run's stream was taken: %+v", n)
	}
	if n, missing, err := Network(t.TempDir(), run, nil); n != nil || missing != nil || err != nil {
		t.Errorf("%+v %v from no stream", n, err)
	}
}

// A run's denials are told while it goes on, each thing once.
func TestDenialsAreFollowed(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.cell()
	r, s := b.begun(&c)
	s.begin()
	refused := func(host string, effect cell.Effect) {
		s.emit("decision", cell.Decided{Access: cell.Access{Act: cell.Resolve, Host: host}, Decision: cell.Decision{Effect: effect, Reason: "no rule allows it"}})
	}
	refused("a.example", cell.Deny)
	refused("a.example", cell.Deny)
	refused("b.example", cell.Ask)
	var told []string
	for d := range Denials(b.ctx, &r) {
		if told = append(told, d.Want); len(told) == 2 {
			break
		}
		refused("c.example", cell.Deny)
	}
	if diff := cmp.Diff([]string{"resolve a.example", "resolve c.example"}, told); diff != "" {
		t.Error(diff)
	}
}

// How a command ended is read from its stream, also when the stream's last line is torn.
func TestExitOfAStream(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.cell()
	r, s := b.begun(&c)
	s.begin()
	if st, err := ExitOf(&r); cell.KindOf(err) != cell.Unavailable {
		t.Errorf("%+v, %v before the end", st, err)
	}
	s.end()
	f, err := os.OpenFile(filepath.Join(r.Folder, eventsFile), os.O_APPEND|os.O_WRONLY, 0)
	b.must(err)
	f.WriteString(`{"seq":4,`)
	f.Close()
	st, err := ExitOf(&r)
	if err != nil || st.Exit == nil || st.Exit.Code != 3 || st.Exit.Cause != "daemon lost" || st.Stdout.Bytes != 3 || st.Ended.IsZero() || !st.Started.Equal(r.Started) {
		t.Errorf("%+v, %v", st, err)
	}
}
