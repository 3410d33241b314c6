package guestkernel

import (
	"context"
	"net"

	"github.com/pando-dev/pando/internal/cell"
)

// Dial implements server.Dialer. The guest connects over its kernel's loopback.
func (d *Driver) Dial(ctx context.Context, id cell.ID, port int) (net.Conn, error) {
	s, err := d.sandbox(id)
	if err != nil {
		return nil, err
	}
	g := s.now.Load()
	if g == nil {
		return nil, cell.Errorf(cell.Unavailable, d.kind.Name+".Dial", "", "cannot reach port %d in the cell: its kernel has ended", port)
	}
	return g.Dial(ctx, port)
}

// ListenInside makes the guest listen at a path in the cell. Sockets of the host are not
// reachable there.
func (d *Driver) ListenInside(id cell.ID, path string) (net.Listener, error) {
	s, err := d.sandbox(id)
	if err != nil {
		return nil, err
	}
	if err := s.kernel.Refresh(); err != nil { // the directory may be new
		return nil, err
	}
	l := &inside{s: s, path: path}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil
}

// inside is a listener in a cell.
type inside struct {
	s      *sandbox
	path   string
	ctx    context.Context // cancelled by Close
	cancel context.CancelFunc
}

// Accept implements net.Listener.
func (l *inside) Accept() (net.Conn, error) {
	g := l.s.guest()
	if g == nil {
		return nil, net.ErrClosed
	}
	return g.Accept(l.ctx, l.path)
}

// Close implements net.Listener.
func (l *inside) Close() error {
	l.cancel()
	return nil
}

// Addr implements net.Listener.
func (l *inside) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Ports implements server.Dialer. The guest lists the ports of its kernel.
func (d *Driver) Ports(ctx context.Context, id cell.ID) ([]cell.Listening, error) {
	s, err := d.sandbox(id)
	if err != nil {
		return nil, err
	}
	g := s.now.Load()
	if g == nil {
		return nil, cell.Errorf(cell.Unavailable, d.kind.Name+".Ports", "", "the cell's kernel has ended")
	}
	if _, still := s.stops(); still {
		return nil, cell.Errorf(cell.Conflict, d.kind.Name+".Ports", "pando resume CELL", "cannot list the ports of the cell: its kernel stands still")
	}
	return g.Ports(ctx)
}
