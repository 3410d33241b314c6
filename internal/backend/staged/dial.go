package staged

import (
	"context"
	"net"

	"github.com/pando-dev/pando/internal/cell"
)

// Dial implements keeper.Dialer: the guest connects, over the loopback of the kernel.
func (d *Driver) Dial(ctx context.Context, id cell.ID, port int) (net.Conn, error) {
	s, err := d.sandbox(id)
	if err != nil {
		return nil, err
	}
	g := s.now.Load()
	if g == nil {
		return nil, cell.Errorf(cell.Unavailable, d.kind.Name+".Dial", "", "cannot reach port %d in the cell: its kernel is gone", port)
	}
	return g.Dial(ctx, port)
}

// Ports implements keeper.Dialer: the guest says what listens in its kernel.
func (d *Driver) Ports(ctx context.Context, id cell.ID) ([]cell.Listening, error) {
	s, err := d.sandbox(id)
	if err != nil {
		return nil, err
	}
	g := s.now.Load()
	if g == nil {
		return nil, cell.Errorf(cell.Unavailable, d.kind.Name+".Ports", "", "the cell's kernel is gone")
	}
	return g.Ports(ctx)
}
