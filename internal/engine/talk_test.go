package engine

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

func TestWantSaysWhatAnAccessIs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a    cell.Access
		want string
	}{
		{cell.Access{Act: cell.Resolve, Host: "x.example"}, "resolve x.example"},
		{cell.Access{Act: cell.Connect, Host: "x.example", Port: 443, Transport: "tcp"}, "connect x.example:443"},
		{cell.Access{Act: cell.Connect, Addr: netip.MustParseAddr("2001:db8::1"), Port: 22}, "connect [2001:db8::1]:22"},
		{cell.Access{Act: cell.Connect, Addr: netip.MustParseAddr("192.0.2.1"), Port: 443, Transport: "udp"}, "udp 192.0.2.1:443"},
		{cell.Access{Act: cell.Connect, Addr: netip.MustParseAddr("192.0.2.1"), Transport: "icmp"}, "icmp 192.0.2.1"},
		{cell.Access{Act: cell.Request, Host: "x.example", Port: 443, Scheme: "https", Method: "POST", Path: "/a"}, "POST https://x.example/a"},
		{cell.Access{Act: cell.Request, Host: "x.example", Port: 8080, Scheme: "http", Method: "GET", Path: "/"}, "GET http://x.example:8080/"},
		{cell.Access{Act: cell.Execute, Program: "/usr/bin/ssh"}, "execute /usr/bin/ssh"},
		{cell.Access{Act: cell.Sign, Host: "git.example", Key: "SHA256:abc"}, "sign for git.example with SHA256:abc"},
	} {
		if got := c.a.Want(); got != c.want {
			t.Errorf("%+v is %q, want %q", c.a, got, c.want)
		}
	}
}

func TestTalkCountsWhatAStreamTells(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "events.jsonl"))
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
	emit("decision", cell.Decided{Access: no, Decision: cell.Decision{}}) // nobody decided: that is a denial
	emit("flow", cell.Flow{Host: "a.example", Port: 443, Method: "GET", Opened: true, Secret: "key", Sent: 10, Received: 20})
	emit("flow", cell.Flow{Host: "c.example", Port: 22, Sent: 100, Received: 200})
	emit("flow", cell.Flow{Host: "a.example", Port: 443, Method: "GET", Opened: true, Secret: "key", Sent: 1, Received: 2})
	emit("network.none", map[string]int{"tries": 4})
	emit("kernel.missing", missingFields{[]string{"mseal", "prctl 0x3b"}, 2})
	f.Close()

	got, missing, err := talk(dir, run)
	if err != nil {
		t.Fatal(err)
	}
	expect := &state.Network{
		Decisions: 8, Denied: 5, Approved: 1, Requests: 2, Sent: 111, Received: 222, Tried: 4,
		Peers: []state.Peer{{Host: "c.example", Port: 22, Flows: 1, Sent: 100, Received: 200},
			{Host: "a.example", Port: 443, Requests: 2, Flows: 2, Sent: 11, Received: 22, Opened: true, Credential: []string{"key"}}},
		Denials: []state.Denial{{Want: "resolve b.example", Times: 4, Rule: "default", Origin: "default", Reason: deny.Reason, Permit: deny.Permit, By: "policy"},
			{Want: "resolve b.example", Times: 1}},
	}
	if d := cmp.Diff(expect, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"mseal", "prctl 0x3b", "and others"}, missing); d != "" {
		t.Error(d)
	}
	if n, _, err := talk(dir, "r-ffffffffffffffff"); err == nil {
		t.Errorf("another run's stream was taken: %+v", n)
	}
	if n, missing, err := talk(t.TempDir(), run); n != nil || missing != nil || err != nil {
		t.Errorf("%+v %v from no stream", n, err)
	}
}
