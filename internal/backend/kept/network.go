package kept

import (
	"log/slog"
	"os"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gateway"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/policy"
)

// Networks opens gateways in a keeper: it joins what they go by with who
// decides.
type Networks struct{ Log *slog.Logger }

// Open implements keeper.Networks.
func (n Networks) Open(id cell.ID, link cell.NetworkLink, file *os.File, g cell.Governance, emit func(kind string, fields any)) (keeper.Network, error) {
	gw, err := gateway.Open(gateway.Config{
		Cell: id, Link: link, File: file, Governance: g, Emit: emit, Log: n.Log,
		Compile: func(g cell.Governance) (gateway.Decider, error) { return policy.Govern(g) },
	})
	if err != nil {
		return nil, err
	}
	return network{gw}, nil
}

// network is a gateway as the keeper sees it.
type network struct{ *gateway.Gateway }

// Try implements keeper.Network.
func (n network) Try(list []cell.Access) (keeper.Trial, error) {
	t, err := n.Gateway.Try(list)
	if err != nil {
		return nil, err
	}
	return t, nil
}
