package server

import (
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/wire"
)

// Networks opens the gateways of cells that may talk.
type Networks interface {
	// Open begins to serve a cell's link by the governance. It owns file. emit
	// takes events ("decision", "flow") and may be called from any goroutine.
	Open(id cell.ID, link cell.NetworkLink, file *os.File, g cell.Governance, emit func(kind string, fields any)) (Network, error)
}

// Network is the gateway of one cell. It is safe for concurrent use.
type Network interface {
	// Govern replaces what it goes by at once, also for open connections. When
	// it fails, what was in force before still is.
	Govern(cell.Governance) error
	// Asked returns what waits for a person, and a channel that is closed when
	// that has changed.
	Asked() (list []cell.Asked, changed <-chan struct{})
	Answer(cell.Answered) error
	// Try announces what the canaries of a command are about to try, and says
	// of each whether it is denied now: what is not must not be tried.
	Try([]cell.Access) (Trial, error)
	// Settle ends the connections of processes that are gone, and
	// emits all that is still to be told of them. It takes no longer than d.
	Settle(d time.Duration)
	// Tell waits as Settle does and emits the same; it ends no connection.
	Tell(d time.Duration)
	// Lend stands between the cell and the caller's SSH agent. It owns both, and
	// replaces what was lent by earlier ones.
	Lend(listener net.Listener, upstream *os.File) error
	// Link has connections to a service go over a link, in the place of an earlier one. It owns file.
	Link(name string, file *os.File) error
	// ShowDenials has what the cell was refused last written to files that the cell
	// sees. It owns both, and replaces earlier ones.
	ShowDenials(text, lines *os.File)
	// Wire has HTTP exchanges recorded, or answered from a recording, until it is called with neither.
	Wire(record *wire.Recorder, play *wire.Player)
	Close() error
}

// Trial follows announced tries. Their denials are no events of the cell's: they
// are what it was proven with.
type Trial interface {
	// Denied says, for each of them, whether the policy denies it.
	Denied() []bool
	// Seen says, for each of them, whether it has come to the gateway and was
	// denied there since it was announced.
	Seen() []bool
	// End forgets them.
	End()
}

// A Linker is a driver that can give a cell an interface. Link is called once
// for a cell that may talk; the caller then owns file.
type Linker interface {
	Link(id cell.ID) (link cell.NetworkLink, file *os.File, err error)
	// Witness hands the cell's gateway to the driver, which asks it whether what
	// canaries tried really came to it.
	Witness(id cell.ID, n Network)
}

const (
	// askedWait is how long "asked" waits for news.
	askedWait = 30 * time.Second
	// flushGrace is how long the end of a run waits for the last of its
	// connections.
	flushGrace = 100 * time.Millisecond
	// keptEarlier is how many denials are kept while no stream records them.
	keptEarlier = 64
)

// Earlier is the event "network.earlier": what the cell's processes did on the
// network while no run was there to record it, told to the run that came next.
type Earlier struct {
	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"`
	Asked   int64 `json:"asked"`
	Flows   int64 `json:"flows"`
	// Denials are the first of those that were denied; Denied counts all.
	Denials []cell.Decided `json:"denials,omitempty"`
}

// talk is a cell's gateway with the streams that record its events. Its methods do
// nothing on a nil talk: that of a cell that has loopback alone.
type talk struct {
	n Network

	mu      sync.Mutex // guards what follows
	procs   map[*Proc]bool
	earlier *Earlier
	refused map[cell.Refusal]int64
	asked   []cell.Asked
	version int64
	news    chan struct{} // closed and replaced with each version
	over    chan struct{}
	ended   bool
	lent    []string // values of credentials
}

// secrets are the values of the credentials that are lent to the cell.
func (t *talk) secrets() []string {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.lent)
}

// keepOut keeps the credentials of g out of the events about processes.
func (t *talk) keepOut(g cell.Governance) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lent = nil
	for _, l := range g.Credentials {
		t.lent = append(t.lent, l.Secret)
	}
	for p := range t.procs {
		if p.starts != nil {
			p.starts.knows(t.lent)
		}
	}
}

// open makes the gateway of a cell that the driver has made.
func (s *Server) open(id cell.ID, g cell.Governance) (*talk, error) {
	linker, ok := s.Driver.(Linker)
	if !ok || s.Networks == nil {
		return nil, cell.Errorf(cell.Unsupported, "keeper.create", "choose another backend, or no network", "cannot let the cell talk: this keeper has no gateway")
	}
	link, file, err := linker.Link(id)
	if err != nil {
		return nil, err
	}
	t := &talk{procs: map[*Proc]bool{}, refused: map[cell.Refusal]int64{}, news: make(chan struct{}), over: make(chan struct{})}
	if t.n, err = s.Networks.Open(id, link, file, g, t.emit); err != nil {
		if cell.KindOf(err) == cell.Internal {
			err = cell.Errorf(cell.Unsupported, "keeper.create", "run `pando doctor`", "cannot open the cell's gateway: %w", err)
		}
		return nil, err
	}
	t.keepOut(g)
	linker.Witness(id, t.n)
	list, changed := t.n.Asked()
	t.publish(list)
	go t.follow(changed)
	return t, nil
}

// talk is that of a cell, nil if it has none.
func (s *Server) talk(id cell.ID) *talk {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.cells[id]; k != nil {
		return k.talk
	}
	return nil
}

// follow numbers the versions of what waits for a person.
func (t *talk) follow(changed <-chan struct{}) {
	for {
		select {
		case <-t.over:
			return
		case <-changed:
		}
		var list []cell.Asked
		list, changed = t.n.Asked()
		t.publish(list)
	}
}

func (t *talk) publish(list []cell.Asked) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Connections have no run; where there is one alone, it is its.
	var run cell.RunID
	n := 0
	for p := range t.procs {
		if p.start.Run != "" {
			run = p.start.Run
			n++
		}
	}
	for i := range list {
		if list[i].Run == "" && n == 1 {
			list[i].Run = run
		}
	}
	t.asked = list
	t.version++
	close(t.news)
	t.news = make(chan struct{})
}

// wait returns what waits for a person once it is newer than since, or what
// there is after a while.
func (t *talk) wait(since int64) ([]cell.Asked, int64) {
	late := time.NewTimer(askedWait)
	defer late.Stop()
	for {
		t.mu.Lock()
		list, version, news := t.asked, t.version, t.news
		t.mu.Unlock()
		if version > since {
			return list, version
		}
		select {
		case <-news:
		case <-late.C:
			return list, version
		case <-t.over:
			return list, version
		}
	}
}

// join lets the events of a process that has a stream tell of the gateway, and
// begins with what no stream has recorded.
func (t *talk) join(p *Proc) {
	if t == nil || p.events == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.procs[p] = true
	if t.earlier != nil {
		p.emit("network.earlier", t.earlier)
		t.earlier = nil
	}
}

// leave ends that; afterwards the stream can be sealed.
func (t *talk) leave(p *Proc) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.procs, p)
}

// flush has the gateway emit all events of a command before its end. In a cell that lives
// on, connections stay: other commands may have them.
func (t *talk) flush(endsCell bool) {
	switch {
	case t == nil:
	case endsCell:
		t.n.Settle(flushGrace)
	default:
		t.n.Tell(flushGrace)
	}
}

func (t *talk) close() {
	if t == nil {
		return
	}
	t.n.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.ended = true
		close(t.over)
	}
}

// emit tells all streams of the cell, or counts what none is there to record.
func (t *talk) emit(kind string, fields any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d, ok := fields.(cell.Decided); ok && d.Decision.Effect == cell.Deny {
		t.refused[d.Refusal()] += max(d.Count, 1)
	}
	for p := range t.procs {
		p.emit(kind, fields)
	}
	if len(t.procs) > 0 {
		return
	}
	if t.earlier == nil {
		t.earlier = &Earlier{}
	}
	e := t.earlier
	switch f := fields.(type) {
	case cell.Decided:
		n := max(f.Count, 1)
		switch f.Decision.Effect {
		case cell.Allow:
			e.Allowed += n
		case cell.Ask:
			e.Asked += n
		default:
			e.Denied += n
			if len(e.Denials) < keptEarlier {
				e.Denials = append(e.Denials, f)
			}
		}
	case cell.Flow:
		e.Flows++
	}
}

// counted is what the cell was refused since its gateway was opened.
func (t *talk) counted() []cell.Refused {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]cell.Refused, 0, len(t.refused))
	for r, n := range t.refused {
		list = append(list, cell.Refused{Refusal: r, Count: n})
	}
	return list
}

// gateway is that of a cell, or the reason why there is none.
func (s *Server) gateway(op string, id cell.ID) (*talk, error) {
	s.mu.Lock()
	k := s.cells[id]
	s.mu.Unlock()
	switch {
	case k == nil:
		return nil, cell.Errorf(cell.NotFound, "keeper."+op, "", "no cell %s", id)
	case k.talk == nil:
		return nil, cell.Errorf(cell.Unsupported, "keeper."+op, "start a cell with a network rule: --allow HOST", "cell %s has loopback alone: it has no gateway", id)
	}
	return k.talk, nil
}

func (s *Server) asked(q proto.Since) (a proto.Questions, err error) {
	t, err := s.gateway("asked", q.Cell)
	if err == nil {
		a.Asked, a.At = t.wait(q.Since)
	}
	return a, err
}

func (s *Server) refused(q proto.OfCell) ([]cell.Refused, error) {
	t, err := s.gateway("refused", q.Cell)
	if err != nil {
		return nil, err
	}
	return t.counted(), nil
}

func (s *Server) govern(q proto.Governance) (proto.None, error) {
	t, err := s.gateway("govern", q.Cell)
	if err == nil {
		t.keepOut(q.Network)
		err = t.n.Govern(q.Network)
	}
	return proto.None{}, err
}

func (s *Server) decide(q proto.Decision) (proto.None, error) {
	t, err := s.gateway("decide", q.Cell)
	if err == nil {
		err = t.n.Answer(q.Answer)
	}
	return proto.None{}, err
}

// agent hands the sockets of an SSH agent to a cell's network.
func (s *Server) agent(q proto.Lent, files []*os.File) (n proto.None, err error) {
	t := s.talk(q.Cell)
	if t == nil || len(files) != 2 {
		proto.CloseAll(files)
		return n, proto.Malformed("agent")
	}
	l, err := s.listen(q, files[0])
	if err != nil {
		proto.CloseAll(files)
		return n, err
	}
	files[0].Close() // l is another one
	return n, t.n.Lend(l, files[1])
}

// listen listens at the socket of the host's that a cell sees, or at one of its own
// kernel's in the same place.
func (s *Server) listen(q proto.Lent, file *os.File) (net.Listener, error) {
	if d, ok := s.Driver.(Listener); ok {
		return d.Listen(q.Cell, q.Path)
	}
	l, err := net.FileListener(file)
	if err != nil {
		return nil, cell.Errorf(cell.Internal, "keeper.agent", "", "cannot serve an SSH agent: %w", err)
	}
	return l, nil
}

// showDenials hands the files in which a cell sees its last refusals to its
// network.
func (s *Server) showDenials(q proto.OfCell, files []*os.File) (proto.None, error) {
	t := s.talk(q.Cell)
	if t == nil || len(files) != 2 {
		proto.CloseAll(files)
		return proto.None{}, proto.Malformed("denials")
	}
	t.n.ShowDenials(files[0], files[1])
	return proto.None{}, nil
}
