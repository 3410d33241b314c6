package kept

import (
	"context"
	"io"
	"net"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper"
)

// Manage implements backend.Filer.
func (i *Instance) Manage(ctx context.Context, a cell.FileAct, in io.Reader, out io.Writer) error {
	return i.Client.Manage(ctx, i.Cell, a, in, out)
}

// Dial implements backend.Dialer.
func (i *Instance) Dial(ctx context.Context, port int) (net.Conn, error) {
	return i.Client.Dial(ctx, i.Cell, port)
}

// Ports implements backend.Dialer.
func (i *Instance) Ports(ctx context.Context) ([]cell.Listening, error) {
	resp, err := i.do(ctx, keeper.Request{Op: "ports"})
	if err != nil {
		return nil, err
	}
	return resp.Ports, nil
}
