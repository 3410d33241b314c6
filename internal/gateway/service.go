package gateway

import (
	"context"
	"net"

	"github.com/pando-dev/pando/internal/cell"
)

// dialService opens a connection to a service that runs beside the cell. The policy has decided on its
// name; there is no address to decide on.
func (g *Gateway) dialService(ctx context.Context, a cell.Access) (net.Conn, error) {
	if g.cfg.Service == nil {
		return nil, cell.Errorf(cell.Unavailable, "gateway.dial", "", "service %s is not connected to the cell", a.Host)
	}
	c, err := g.cfg.Service(ctx, a.Host, a.Port)
	if err != nil {
		return nil, err
	}
	return &serviceConn{c}, nil
}

// serviceConn is a connection to a service. That has no address: its remote address is none of TCP.
type serviceConn struct{ net.Conn }

func (c *serviceConn) RemoteAddr() net.Addr { return serviceAddr{} }

func (c *serviceConn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}

type serviceAddr struct{}

func (serviceAddr) Network() string { return "service" }
func (serviceAddr) String() string  { return "service" }
