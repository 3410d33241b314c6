package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/pando-dev/pando/internal/cell"
)

// Decider is the gateway's view of a policy. Many goroutines call it at once.
//
// A Decider may also have these methods: Egress() int64, the number of bytes that may
// leave the cell in all (0: no limit), and AskFor() time.Duration, how long a request
// waits for a person.
type Decider interface {
	Decide(cell.Access) cell.Decision
	Digest() cell.Digest
}

// Config configures a gateway.
type Config struct {
	Cell cell.ID
	Link cell.NetworkLink
	// File is the gateway's end of the link: for "tun" a TUN descriptor
	// without packet information, for "veth" a packet socket that is bound to
	// the other end, for "socket" one of two connected datagram sockets. The
	// gateway closes it.
	File *os.File
	// Endpoint is the link in tests; File is nil then.
	Endpoint   stack.LinkEndpoint
	Governance cell.Governance
	// Compile makes a policy from its canonical form.
	Compile func(cell.Governance) (Decider, error)
	// Emit receives events: "decision" with a cell.Decided, "flow" with a cell.Flow, "budget" with a
	// cell.BudgetNote. Many
	// goroutines call it, and wait for it.
	Emit func(kind string, fields any)
	// Dial opens connections to the outside, by address. nil: a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Service opens connections to the services that run beside the cell, by name. nil: there are none.
	Service func(ctx context.Context, name string, port uint16) (net.Conn, error)
	Log     *slog.Logger
}

// Gateway is the network of one cell.
type Gateway struct {
	cfg       Config
	stack     *stack.Stack
	filter    *packetFilter
	names     *names
	refused   *refusals
	denials   denials
	refuseFor time.Duration // the longest life of a connection to a refused name
	refusing  conns         // to refused names
	conns     conns
	events    *events
	asks      *asks
	turns     turns
	web       *web
	wire      atomic.Pointer[taping]
	dns       nameServer

	inForce atomic.Pointer[compiledPolicy] // the policy in force
	govMu   sync.Mutex                     // serialises Govern

	sent atomic.Int64 // bytes that left the cell, for the budget

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	close  sync.Once

	endMu sync.Mutex // guards the fields below
	ended bool
}

// enter counts a goroutine that the gateway didn't start. It is false when the gateway is
// closing.
func (g *Gateway) enter() bool {
	g.endMu.Lock()
	defer g.endMu.Unlock()
	if !g.ended {
		g.wg.Add(1)
	}
	return !g.ended
}

// Open starts the gateway of a cell. When it fails, nothing of it remains.
func Open(cfg Config) (*Gateway, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Emit == nil {
		cfg.Emit = func(string, any) {}
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	g := &Gateway{cfg: cfg, names: newNames(cfg.Link)}
	g.refused = newRefusals(cfg.Link)
	g.refusing.max, g.refuseFor = maxRefusing, refusalLife
	g.conns.max = share(maxConns, 2)
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.events = newEvents(cfg.Emit, g.denials.note)
	g.asks = newAsks(g)
	g.turns.g, g.turns.coded = g, make(chan struct{}, maxCoded)
	fail := func(err error) (*Gateway, error) {
		g.cancel()
		g.events.close()
		if cfg.File != nil {
			cfg.File.Close()
		}
		return nil, err
	}
	l, err := g.compile(cfg.Governance)
	if err != nil {
		return fail(err)
	}
	g.inForce.Store(l)
	g.asks.restore(cfg.Governance.Answers)
	g.web = newWeb(g)
	if err := g.startStack(); err != nil {
		g.web.close()
		return fail(cell.Errorf(cell.Unsupported, "gateway.Open", "run pando doctor to see what this host lacks", "cannot open the network of cell %s: %w", cfg.Cell, err))
	}
	return g, nil
}

// share returns n, or a fraction of this process's limit of open files if that is less: a cell
// must leave descriptors for the connection to the daemon.
func share(n int, parts uint64) int {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err == nil && lim.Cur/parts < uint64(n) {
		return int(lim.Cur / parts)
	}
	return n
}

// Close ends the cell's network: it resets connections, and denies what waits for a person. It
// returns when all goroutines have ended.
func (g *Gateway) Close() error {
	g.close.Do(func() {
		g.endMu.Lock()
		g.ended = true
		g.endMu.Unlock()
		g.cancel()
		g.asks.close()
		g.conns.resetAll()
		g.refusing.resetAll()
		g.web.close()
		g.stopStack()
		g.wg.Wait()
		g.inForce.Load().retire()
		g.events.close()
		g.denials.close()
	})
	return nil
}

// survive is deferred where bytes of the cell are handled; it recovers from panics.
func (g *Gateway) survive(what string) {
	if r := recover(); r != nil {
		g.cfg.Log.Error("cannot handle what came from the cell", "in", what, "panic", fmt.Sprint(r))
	}
}

const (
	dialTimeout  = 20 * time.Second
	firstTimeout = 30 * time.Second // for the first bytes of a connection that must have some
)
