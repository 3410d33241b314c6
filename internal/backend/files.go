package backend

import (
	"context"
	"io"
	"net"

	"github.com/pando-dev/pando/internal/cell"
)

// A Filer is an instance with access to single files. in has the bytes of cell.FileWrite, out
// gets those of cell.FileRead, else JSON: a cell.FileInfo, or lines of them, or of
// cell.FileEvents. No symlink of the cell leads out of it.
type Filer interface {
	Manage(ctx context.Context, a cell.FileAct, in io.Reader, out io.Writer) error
}

// A Dialer is an instance with a loopback that can be connected to from outside. Unavailable:
// nothing listens there. Ports lists the listening ports.
type Dialer interface {
	Dial(ctx context.Context, port int) (net.Conn, error)
	Ports(ctx context.Context) ([]cell.Listening, error)
}

// A Numbered is a process with a known process id in its cell; 0 if unknown.
type Numbered interface{ InnerPID() int }
