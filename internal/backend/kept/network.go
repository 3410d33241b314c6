package kept

import (
	"context"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gateway"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/policy"
)

// Networks opens gateways in a keeper, with policies as their deciders.
type Networks struct {
	Log *slog.Logger // nil: the keeper's log
	// Dial opens connections to the outside, by address; nil: a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Open implements keeper.Networks.
func (n Networks) Open(id cell.ID, link cell.NetworkLink, file *os.File, g cell.Governance, emit func(kind string, fields any)) (keeper.Network, error) {
	if n.Log == nil {
		n.Log = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("cell", id)
	}
	w, err := gateway.Open(gateway.Config{
		Cell: id, Link: link, File: file, Governance: g, Compile: compile, Emit: emit, Dial: n.Dial, Log: n.Log,
	})
	if err != nil {
		return nil, err
	}
	return &network{Gateway: w, emit: emit, log: n.Log, governed: g}, nil
}

// compile makes a gateway's decider from a policy in canonical form.
func compile(g cell.Governance) (gateway.Decider, error) {
	r, err := policy.Govern(g)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// network is a keeper's gateway with the SSH agent beside it. No lock of network is held while
// the gateway's locks are taken.
type network struct {
	*gateway.Gateway
	emit func(kind string, fields any)
	log  *slog.Logger

	mu       sync.Mutex // guards the fields below
	governed cell.Governance
	agent    *lentAgent // nil: no agent is lent
}

// Try implements keeper.Network.
func (n *network) Try(accesses []cell.Access) (keeper.Trial, error) {
	t, err := n.Gateway.Try(accesses)
	if err != nil {
		return nil, err
	}
	return t, nil
}

var (
	_ keeper.Network = (*network)(nil)
	_ keeper.Agency  = (*network)(nil)
	_ keeper.Shower  = (*network)(nil)
	_ keeper.Trial   = (*gateway.Trial)(nil)
)
