package server

import (
	"context"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gateway"
	"github.com/pando-dev/pando/internal/policy/decide"
)

// Gateways are Networks of package gateway, with policies as their deciders.
type Gateways struct {
	Log *slog.Logger // nil: the keeper's standard error
	// Dial opens connections to the outside, by address; nil: a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Open implements Networks.
func (n Gateways) Open(id cell.ID, link cell.NetworkLink, file *os.File, g cell.Governance, emit func(kind string, fields any)) (Network, error) {
	if n.Log == nil {
		n.Log = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("cell", id)
	}
	l := newLinks()
	w, err := gateway.Open(gateway.Config{
		Cell: id, Link: link, File: file, Governance: g, Compile: compile, Emit: emit, Dial: n.Dial, Service: l.dial, Log: n.Log,
	})
	if err != nil {
		return nil, err
	}
	return &cellNetwork{Gateway: w, emit: emit, log: n.Log, links: l, rules: g}, nil
}

// compile makes a gateway's decider from a policy in canonical form.
func compile(g cell.Governance) (gateway.Decider, error) {
	r, err := decide.Govern(g)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// cellNetwork is a keeper's gateway with the SSH agent beside it. No lock of cellNetwork is held while
// the gateway's locks are taken.
type cellNetwork struct {
	*gateway.Gateway
	emit  func(kind string, fields any)
	log   *slog.Logger
	links *links

	mu    sync.Mutex // guards the fields below
	rules cell.Governance
	agent *lentAgent // nil: no agent is lent
}

// Link implements Network.
func (n *cellNetwork) Link(name string, file *os.File) error { return n.links.put(name, file) }

// Try implements Network.
func (n *cellNetwork) Try(accesses []cell.Access) (Trial, error) {
	t, err := n.Gateway.Try(accesses)
	if err != nil {
		return nil, err
	}
	return t, nil
}

var (
	_ Network = (*cellNetwork)(nil)
	_ Trial   = (*gateway.Trial)(nil)
)
