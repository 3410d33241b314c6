package namespace

import (
	"os"
	"strconv"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/hazard"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux"
)

// Driver is the keeper's half: cells with interpreters that can be forked. A cell with a sealed
// interpreter runs nothing else.
type Driver struct {
	*isolation.Driver
	namer  *linux.Thread // in the UTS namespace of some fork
	tracer *linux.Thread // ptraces stopped processes

	scan hazard.Scanner

	mu    sync.Mutex // guards limit, and fields of cells and fork parents
	limit *limit     // nil until a cell is sealed
}

// The keeper's server finds each of these by a type assertion.
var (
	_ server.Counter      = (*Driver)(nil)
	_ server.Dialer       = (*Driver)(nil)
	_ server.Forker       = (*Driver)(nil)
	_ server.Interpreting = (*Driver)(nil)
	_ server.Linker       = (*Driver)(nil)
	_ server.MountKeeper  = (*Driver)(nil)
	_ server.Observer     = (*Driver)(nil)
	_ server.StartWatcher = (*Driver)(nil)
)

// NewDriver prepares what all cells of a keeper share.
func NewDriver() (server.Driver, error) {
	d := &Driver{namer: linux.NewThread(), tracer: linux.NewThread()}
	var err error
	if d.Driver, err = isolation.NewDriver(func(c *isolation.Cell) any { return &liveCell{Cell: c, d: d} }); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Driver) cell(id cell.ID) (*liveCell, error) {
	c, err := d.Cell(id)
	if err != nil {
		return nil, err
	}
	return c.Kin.(*liveCell), nil
}

// Start implements server.Driver.
func (d *Driver) Start(id cell.ID, p cell.Process, stdio [3]*os.File, begins func()) (server.Started, error) {
	return d.StartWatched(id, p, stdio, begins, nil)
}

// StartWatched implements server.StartWatcher.
func (d *Driver) StartWatched(id cell.ID, p cell.Process, stdio [3]*os.File, begins func(), starts *server.Starts) (server.Started, error) {
	c, err := d.cell(id)
	if err == nil {
		err = c.startable()
	}
	if err != nil {
		return server.Started{}, err
	}
	return d.Driver.StartWatched(id, p, stdio, begins, starts)
}

// startable returns an error if nothing can be started in the cell now.
func (c *liveCell) startable() error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	switch {
	case c.sealed != nil:
		return cell.Errorf(cell.Conflict, "namespace.Start", "fork it, and run the command in the fork", "cannot start anything in cell %s: it is only forked", c.Spec().ID)
	case c.beingBranched:
		return cell.Errorf(cell.Conflict, "namespace.Start", "try again when it was branched", "cannot start anything in cell %s: it is being branched", c.Spec().ID)
	}
	return nil
}

// isSealed returns a cell, and whether its interpreter is only forked.
func (d *Driver) isSealed(id cell.ID) (*liveCell, bool) {
	c, err := d.cell(id)
	if err != nil {
		return nil, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return c, c.sealed != nil
}

// KillAll implements server.Driver. The processes of a sealed cell belong to its forks, too.
func (d *Driver) KillAll(id cell.ID) (int, error) {
	if _, sealed := d.isSealed(id); sealed {
		return 0, nil
	}
	return d.Driver.KillAll(id)
}

// Freeze implements server.Driver. A sealed cell is stopped already.
func (d *Driver) Freeze(id cell.ID) error {
	if _, sealed := d.isSealed(id); sealed {
		return nil
	}
	return d.Driver.Freeze(id)
}

// Thaw implements server.Driver.
func (d *Driver) Thaw(id cell.ID) error {
	if _, sealed := d.isSealed(id); sealed {
		return nil
	}
	return d.Driver.Thaw(id)
}

// List implements server.Driver. A sealed cell has only its interpreter; forks of that are not
// listed. Its /proc is covered.
func (d *Driver) List(id cell.ID) ([]cell.ProcessInfo, error) {
	c, sealed := d.isSealed(id)
	if !sealed {
		return d.Driver.List(id)
	}
	p, err := linux.ReadProcess(c.prog.proc.PID)
	switch {
	case linux.IsGone(err) || err == nil && (p.State == "Z" || p.State == "X"):
		return nil, nil
	case err != nil:
		return nil, err
	}
	p.PID = c.innerPID()
	return []cell.ProcessInfo{p}, nil
}

// Stats implements server.Driver. The memory that a sealed cell shares with its forks counts as
// its own, too.
func (d *Driver) Stats(id cell.ID) (cell.Stats, error) {
	c, sealed := d.isSealed(id)
	if !sealed {
		return d.Driver.Stats(id)
	}
	list, err := d.List(id)
	if err != nil {
		return cell.Stats{}, err
	}
	return c.Measure(list, func(p cell.ProcessInfo) int64 { return p.RSS }), nil
}

// Remove implements server.Driver. The fork parent of a sealed cell lives until its last fork
// ends.
func (d *Driver) Remove(id cell.ID) error {
	c, err := d.cell(id)
	if err != nil || !d.Forget(c.Cell) {
		return err
	}
	d.mu.Lock()
	t := c.sealed
	d.mu.Unlock()
	if t != nil {
		t.unref()
		return nil
	}
	c.End()
	if c.fork != nil {
		c.destroy()
		return nil
	}
	c.Release()
	return nil
}

func procPath(pid int, rest string) string { return "/proc/" + strconv.Itoa(pid) + "/" + rest }
