package namespace

import (
	"os"
	"strconv"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/keeper/server"
)

// StartInterpreter implements server.Interpreting. An interpreter has the namespaces and
// capabilities of a command. Its filter allows it to fork itself, which still fails while the
// limit of user namespaces is 0.
func (d *Driver) StartInterpreter(id cell.ID, p cell.Process, i *server.Interpreter, stdio [3]*os.File, control *os.File) error {
	c, err := d.cell(id)
	if err != nil {
		return err
	}
	if err := c.startable(); err != nil {
		return err
	}
	var given [4]string
	for i, f := range stdio {
		if f != nil {
			given[i], _ = os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
		}
	}
	started, err := c.Start(p, stdio, control, nil)
	if err != nil {
		return err
	}
	i.Process, i.Layer = started.Process, c.Spec().Layer
	c.prog = &forkChild{proc: started.Process.(*isolation.Process).Child, conn: i.Conn, given: given}
	return nil
}
