package backend

import (
	"context"
	"io"
	"net"

	"github.com/pando-dev/pando/internal/cell"
)

// A Filer is an instance whose files can be looked at and changed one by one.
// in has the bytes of cell.FileWrite, out gets those of cell.FileRead, else JSON:
// a cell.FileInfo, or lines of them, or of cell.FileEvents. No symlink of the cell
// leads out of it.
type Filer interface {
	Manage(ctx context.Context, a cell.FileAct, in io.Reader, out io.Writer) error
}

// A Dialer is an instance whose own loopback can be connected to from outside.
// Unavailable: nothing listens there. Ports lists those on which something does.
type Dialer interface {
	Dial(ctx context.Context, port int) (net.Conn, error)
	Ports(ctx context.Context) ([]cell.Listening, error)
}

// A Numbered is a process whose number in its cell is known; 0 if it is not.
type Numbered interface{ InnerPID() int }
