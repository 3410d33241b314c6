package server

import (
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/client"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/wire"
)

// fakeNetworks opens gateways that do nothing but remember.
type fakeNetworks struct {
	mu     sync.Mutex // guards what follows
	broken error
	last   *fakeNetwork
}

type fakeNetwork struct {
	file *os.File
	lent net.Listener
	emit func(string, any)

	mu      sync.Mutex // guards what follows
	did     []string
	asked   []cell.Asked
	changed chan struct{}
}

func (n *fakeNetworks) Open(id cell.ID, l cell.NetworkLink, f *os.File, g cell.Governance, emit func(string, any)) (Network, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.broken != nil {
		f.Close()
		return nil, n.broken
	}
	n.last = &fakeNetwork{file: f, emit: emit, changed: make(chan struct{}), did: []string{"open " + l.Kind + " " + string(g.Policy)}}
	return n.last, nil
}

func (n *fakeNetworks) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.broken = err
}

func (n *fakeNetworks) get() *fakeNetwork {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last
}

func (n *fakeNetwork) note(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.did = append(n.did, what)
}

func (n *fakeNetwork) Govern(g cell.Governance) error {
	if string(g.Policy) == `"wrong"` {
		return cell.Errorf(cell.Invalid, "fake", "", "cannot read the policy")
	}
	n.note("govern " + string(g.Policy))
	return nil
}

func (n *fakeNetwork) Asked() ([]cell.Asked, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]cell.Asked(nil), n.asked...), n.changed
}

func (n *fakeNetwork) ask(list ...cell.Asked) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = list
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *fakeNetwork) Answer(a cell.Answered) error {
	n.note("answer " + a.Ask.ID)
	n.ask()
	return nil
}

func (n *fakeNetwork) Try([]cell.Access) (Trial, error) { return nil, errors.New("not here") }

func (n *fakeNetwork) Tell(time.Duration) {
	n.emit("flow", cell.Flow{Host: "told"})
	n.note("tell")
}

func (n *fakeNetwork) Settle(time.Duration) {
	n.emit("flow", cell.Flow{Host: "settled"})
	n.note("settle")
}

func (n *fakeNetwork) Lend(at net.Listener, upstream *os.File) error {
	n.lent = at
	return upstream.Close()
}

func (n *fakeNetwork) Link(_ string, file *os.File) error { return file.Close() }

func (n *fakeNetwork) Wire(*wire.Recorder, *wire.Player) {}

func (n *fakeNetwork) ShowDenials(text, lines *os.File) { proto.CloseAll([]*os.File{text, lines}) }

func (n *fakeNetwork) Close() error {
	n.note("close")
	return n.file.Close()
}

// Link implements Linker.
func (d *fakeDriver) Link(id cell.ID) (cell.NetworkLink, *os.File, error) {
	l := cell.DefaultLink()
	l.Kind = "fake"
	r, w, err := os.Pipe()
	if err == nil {
		r.Close()
	}
	return l, w, err
}

// Witness implements Linker.
func (d *fakeDriver) Witness(id cell.ID, n Network) {}

const two = cell.ID("c-0000000000000002")

func governed(words string) *cell.Governance {
	return &cell.Governance{Policy: []byte(`"` + words + `"`)}
}

// talks makes a cell with a gateway.
func (k *kit) talks() *fakeNetwork {
	k.Helper()
	ok(k, proto.Create, proto.NewCell{Cell: two, Network: governed("first")})
	return k.nets.get()
}

func (k *kit) startTwo(name, prog string, change ...func(*cell.Start)) {
	k.Helper()
	s := cell.Start{Process: cell.Process{Args: []string{prog}}, LogLimit: 1 << 20, Run: "r-1"}
	for _, c := range change {
		c(&s)
	}
	ok(k, proto.Start, proto.NewProcess{Cell: two, Proc: name, Start: s, NoLogs: []int{0, 1}}, k.null(), k.null(), k.null())
}

// Without its gateway there is no cell.
func TestF65NoCellWithoutItsGateway(t *testing.T) {
	k := newKit(t)
	k.nets.fail(errors.New("cannot open the device"))
	fails(k, proto.Create, proto.NewCell{Cell: two, Network: governed("x")}, cell.Unsupported)
	fails(k, proto.List, proto.OfCell{Cell: two}, cell.NotFound)
	k.nets.fail(cell.Errorf(cell.Invalid, "fake", "write better", "cannot read the policy"))
	fails(k, proto.Create, proto.NewCell{Cell: two, Network: governed("x")}, cell.Invalid)
	k.s.mu.Lock()
	if len(k.s.cells) != 1 {
		t.Errorf("cells: %v", k.s.cells)
	}
	k.s.mu.Unlock()
}

func TestGovern(t *testing.T) {
	k := newKit(t)
	n := k.talks()
	ok(k, proto.Govern, proto.Governance{Cell: two, Network: *governed("second")})
	fails(k, proto.Govern, proto.Governance{Cell: two, Network: *governed("wrong")}, cell.Invalid)
	ok(k, proto.Remove, proto.Ending{Cell: two})
	fails(k, proto.Govern, proto.Governance{Cell: two, Network: *governed("third")}, cell.NotFound)
	k.s.closing.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if diff := cmp.Diff([]string{`open fake "first"`, `govern "second"`, "close"}, n.did); diff != "" {
		t.Error(diff)
	}
	if _, err := n.file.Write(nil); !errors.Is(err, os.ErrClosed) && err == nil {
		t.Error("the link is still open")
	}
}

// A request that waits is told of each change, also of one that came between two
// requests, and nothing else delays the answers.
func TestAsked(t *testing.T) {
	k := newKit(t)
	n := k.talks()
	first := ok(k, proto.Asked, proto.Since{Cell: two})
	if first.At < 1 || len(first.Asked) != 0 {
		t.Fatalf("at first: %+v", first)
	}
	heard := make(chan proto.Questions, 1)
	go func() {
		resp, err := client.Ask(k.ctx, k.c, proto.Asked, proto.Since{Cell: two, Since: first.At})
		if err != nil {
			t.Error(err)
		}
		heard <- resp
	}()
	k.startTwo("run", "sleep")
	select {
	case r := <-heard:
		t.Fatalf("told of nothing: %+v", r)
	case <-time.After(50 * time.Millisecond):
	}
	n.ask(cell.Asked{ID: "q-1"})
	r := <-heard
	if len(r.Asked) != 1 || r.Asked[0].ID != "q-1" || r.Asked[0].Run != "r-1" || r.At <= first.At {
		t.Fatalf("then: %+v", r)
	}
	ok(k, proto.Decide, proto.Decision{Cell: two, Answer: cell.Answered{Ask: r.Asked[0]}})
	last := ok(k, proto.Asked, proto.Since{Cell: two, Since: r.At})
	if len(last.Asked) != 0 || last.At <= r.At {
		t.Errorf("after the answer: %+v", last)
	}
	go func() {
		_, err := client.Ask(k.ctx, k.c, proto.Asked, proto.Since{Cell: two, Since: last.At + 7})
		if err != nil && !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		heard <- proto.Questions{}
	}()
	time.Sleep(20 * time.Millisecond)
	ok(k, proto.Remove, proto.Ending{Cell: two})
	<-heard // and doesn't wait for a cell that is gone
}

// The gateway's events go to the streams of all that runs in its cell, up to
// their end and never after; what no run records is told to the next.
func TestNetworkEvents(t *testing.T) {
	k := newKit(t)
	n := k.talks()
	denied := cell.Decided{ID: "q-1", Decision: cell.Decision{Effect: cell.Deny}, Count: 3}
	n.emit("decision", denied)
	n.emit("decision", cell.Decided{Decision: cell.Decision{Effect: cell.Allow}})
	n.emit("flow", cell.Flow{})
	for range keptEarlier {
		n.emit("decision", cell.Decided{Decision: cell.Decision{Effect: cell.Deny}})
	}
	k.startTwo("run", "sleep", func(s *cell.Start) { s.EndsCell = true })
	n.emit("decision", denied)
	ok(k, proto.Signal, proto.ToProcess{Proc: "run", Signal: "SIGTERM"})
	k.wait("run")
	n.emit("decision", denied)
	kinds, sealed := k.events.all()
	want := "network.earlier process.start process.running decision process.signal flow process.exit"
	if kinds != want || !sealed {
		t.Errorf("events %q, want %q; sealed: %v", kinds, want, sealed)
	}
	e, ok := k.events.fields[0].(*Earlier)
	if !ok {
		t.Fatalf("%T", k.events.fields[0])
	}
	if diff := cmp.Diff(&Earlier{Allowed: 1, Denied: 3 + keptEarlier, Flows: 1}, e, cmpopts.IgnoreFields(Earlier{}, "Denials")); diff != "" || len(e.Denials) != keptEarlier {
		t.Errorf("%s; %d denials", diff, len(e.Denials))
	}
}

// What a cell is refused is counted by class, whether a run records it or not.
func TestRefusalsAreCounted(t *testing.T) {
	k := newKit(t)
	n := k.talks()
	deny := func(act cell.Act, by, rule string, count int64) {
		n.emit("decision", cell.Decided{Access: cell.Access{Act: act}, Decision: cell.Decision{Effect: cell.Deny, By: by, Rule: rule}, Count: count})
	}
	deny(cell.Resolve, "policy", "default", 3)
	k.startTwo("run", "sleep")
	deny(cell.Resolve, "policy", "default", 0)
	deny(cell.Connect, "policy", "deny 2", 0)
	deny(cell.Request, "person", "allow 1", 0)
	n.emit("decision", cell.Decided{Decision: cell.Decision{Effect: cell.Allow}})
	n.emit("decision", cell.Decided{Decision: cell.Decision{Effect: cell.Ask}})
	got := map[cell.Refusal]int64{}
	for _, r := range ok(k, proto.Refused, proto.OfCell{Cell: two}) {
		got[r.Refusal] = r.Count
	}
	want := map[cell.Refusal]int64{{Act: cell.Resolve, Reason: "default"}: 4, {Act: cell.Connect, Reason: "rule"}: 1, {Act: cell.Request, Reason: "person"}: 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// At the end of a run in a cell that lives on, all that is to be told is told
// too, and no connection is ended.
func TestNetworkEventsOfACellThatLivesOn(t *testing.T) {
	k := newKit(t)
	n := k.talks()
	k.startTwo("run", "sleep")
	ok(k, proto.Signal, proto.ToProcess{Proc: "run", Signal: "SIGTERM"})
	k.wait("run")
	if kinds, sealed := k.events.all(); !sealed || !strings.HasSuffix(kinds, "process.signal flow process.exit") {
		t.Errorf("events %q; sealed: %v", kinds, sealed)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Contains(n.did, "tell") || slices.Contains(n.did, "settle") {
		t.Errorf("the network was told to %q", n.did)
	}
}

// apart is a driver of cells with a kernel that does not know the host's sockets.
type apart struct {
	*fakeDriver
	at string
}

func (d *apart) Listen(_ cell.ID, path string) (net.Listener, error) {
	d.at = path
	return net.Listen("tcp", "127.0.0.1:0")
}

// Keys are lent over a socket that the cell reaches: the host's, or one of its own
// kernel's.
func TestKeysAreLentWhereTheCellReachesThem(t *testing.T) {
	for _, there := range []bool{true, false} {
		l := &fakeNetwork{}
		d := &apart{fakeDriver: &fakeDriver{}}
		s := &Server{Driver: d, cells: map[cell.ID]*kept{two: {talk: &talk{n: l}}}}
		if !there {
			s.Driver = d.fakeDriver
		}
		host, err := net.Listen("unix", t.TempDir()+"/socket")
		if err != nil {
			t.Fatal(err)
		}
		defer host.Close()
		file, err := host.(*net.UnixListener).File()
		if err != nil {
			t.Fatal(err)
		}
		upstream, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.agent(proto.Lent{Cell: two, Path: "/run/a/socket"}, []*os.File{file, upstream}); err != nil {
			t.Fatal(err)
		}
		defer l.lent.Close()
		if inside := l.lent.Addr().Network() == "tcp"; inside != there || there != (d.at == "/run/a/socket") {
			t.Errorf("the cell's kernel listens: %v; it is reached at %v (%q)", there, l.lent.Addr(), d.at)
		}
		if file.Close() == nil || upstream.Close() == nil {
			t.Error("a file that came is still open")
		}
	}
}
