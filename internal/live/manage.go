package live

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// Manage does something with single files of a cell, which is made live for it:
// see backend.Instance. Relative paths begin in the workspace.
func (m *Manager) Manage(ctx context.Context, id cell.ID, a cell.FileAct, in io.Reader, out io.Writer) error {
	inst, c, release, err := m.ensureLive(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	if err := NotPaused("live.Manage", &c); err != nil {
		return err
	}
	a.Path, a.UID, a.GID = inCell(&c, a.Path), c.Setup.User.UID, c.Setup.User.GID
	if a.Act == cell.FileMove {
		a.To = inCell(&c, a.To)
	}
	return inst.Manage(ctx, a, in, out)
}

// SFTP begins a session of the SSH File Transfer Protocol on the files of a cell, which is made live for it, and stays so until
// the connection is closed. Relative paths begin in the workspace.
func (m *Manager) SFTP(ctx context.Context, id cell.ID) (net.Conn, error) {
	inst, c, release, err := m.ensureLive(ctx, id)
	if err != nil {
		return nil, err
	}
	if err = NotPaused("live.SFTP", &c); err == nil {
		var conn net.Conn
		if conn, err = inst.SFTP(ctx, c.Source, c.Setup.User); err == nil {
			return &refConn{conn, sync.OnceFunc(release)}, nil
		}
	}
	release()
	return nil, err
}

// Files is Manage for the acts that answer with what files are.
func (m *Manager) Files(ctx context.Context, id cell.ID, a cell.FileAct, in io.Reader) ([]cell.FileInfo, error) {
	var b bytes.Buffer
	if err := m.Manage(ctx, id, a, in, &b); err != nil {
		return nil, err
	}
	list := []cell.FileInfo{}
	for dec := json.NewDecoder(&b); ; {
		var f cell.FileInfo
		err := dec.Decode(&f)
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		list = append(list, f)
	}
}

// Watch tells what changes in a directory of a cell until ctx ends or tell fails.
// The first event is empty: from there on nothing is missed. The cell stays live.
func (m *Manager) Watch(ctx context.Context, id cell.ID, path string, below bool, tell func(cell.FileEvent) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a := cell.FileAct{Act: cell.FileWatch, Path: path}
	if below {
		a.Depth = 1
	}
	r, w := io.Pipe()
	defer r.Close()
	go func() { w.CloseWithError(m.Manage(ctx, id, a, nil, w)) }()
	lines := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var ev cell.FileEvent
		if err := json.Unmarshal(line, &ev); err != nil {
			return err
		}
		if err := tell(ev); err != nil {
			return err
		}
	}
}

// Dial connects to a port of a living cell's own loopback. Nothing is started
// for it: Unavailable, when nothing listens there. The cell stays live as long as
// the connection is open.
func (m *Manager) Dial(ctx context.Context, id cell.ID, port int) (net.Conn, error) {
	c, err := m.Usable(id)
	if err != nil {
		return nil, err
	}
	if err := m.notParked(&c); err != nil {
		return nil, err
	}
	inst, release, err := m.RefOf(&c)
	if err != nil {
		return nil, err
	}
	if inst == nil {
		return nil, cell.Errorf(cell.Unavailable, "live.Dial", "", "cannot reach port %d: nothing runs in cell %s", port, c.Title())
	}
	if err = m.Rouse(ctx, id); err == nil {
		c, err = m.Usable(id)
	}
	if err == nil {
		err = NotPaused("live.Dial", &c)
	}
	if err != nil {
		release()
		return nil, err
	}
	conn, err := inst.Dial(ctx, port)
	if err != nil {
		release()
		return nil, err
	}
	return &refConn{conn, sync.OnceFunc(release)}, nil
}

// Ports lists the TCP ports on which something listens in a cell; none when nothing
// runs in it.
func (m *Manager) Ports(ctx context.Context, id cell.ID) ([]cell.Listening, error) {
	c, err := m.Usable(id)
	if err != nil {
		return nil, err
	}
	inst, release, err := m.RefOf(&c)
	if inst == nil {
		return nil, err
	}
	defer release()
	return inst.Ports(ctx)
}

// CountProcesses is how many processes a cell has.
func (m *Manager) CountProcesses(ctx context.Context, c *state.Cell) (int, error) {
	inst, err := m.InstanceOf(c)
	if inst == nil {
		return 0, err
	}
	list, err := inst.List(ctx)
	return len(list), err
}

// Processes lists what runs in a cell.
func (m *Manager) Processes(ctx context.Context, id cell.ID) ([]api.Process, error) {
	c, err := m.Usable(id)
	if err != nil {
		return nil, err
	}
	out := []api.Process{}
	inst, err := m.InstanceOf(&c)
	if inst == nil {
		return out, err
	}
	list, err := inst.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range list {
		out = append(out, api.Process(p))
	}
	return out, nil
}

// refConn keeps a cell live until it is closed.
type refConn struct {
	net.Conn
	release func()
}

func (c *refConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// CloseWrite says that no more is sent.
func (c *refConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}
