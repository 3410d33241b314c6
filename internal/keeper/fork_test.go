package keeper

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/interp"
)

// Seal implements Forker.
func (d *fakeDriver) Seal(cell.ID) error { return nil }

// Fork implements Forker: when it may, it makes a cell whose interpreter says
// nothing.
func (d *fakeDriver) Fork(trunk, id cell.ID, spec json.RawMessage, i *Interpreter, files []*os.File) (json.RawMessage, error) {
	closeAll(files)
	<-d.mayFork
	conn, theirs, err := interp.Pair()
	if err != nil {
		return nil, err
	}
	theirs.Close()
	var out [2]*os.File
	for n := range out {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		w.Close()
		out[n] = r
	}
	*i = Interpreter{Process: &fakeProcess{killed: make(chan struct{}), over: make(chan struct{})}, Conn: conn, Stdout: out[0], Stderr: out[1], IsCell: true}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cells[id] = nil
	d.note("fork %s", id)
	return nil, nil
}

// Adopt implements Forker.
func (d *fakeDriver) Adopt(cell.ID, cell.Adoption) (cell.Certificate, error) {
	return cell.Certificate{}, nil
}

// A fork that is complete only when the daemon has died that asked for it is
// nobody's: it goes.
func TestF19AForkThatNobodyHearsOf(t *testing.T) {
	const two = cell.ID("c-0000000000000002")
	k := newKit(t)
	k.d.mayFork = make(chan struct{})
	k.s.mu.Lock()
	k.s.cells[one].warm = &warm{}
	k.s.mu.Unlock()
	forks := func() bool {
		k.d.mu.Lock()
		defer k.d.mu.Unlock()
		_, there := k.d.cells[two]
		return there
	}
	for _, dies := range []bool{true, false} {
		c := k.raw()
		if err := c.Send(Request{Op: "fork", Trunk: one, Cell: two}); err != nil {
			t.Fatal(err)
		}
		if dies {
			c.Close()
		}
		k.d.mayFork <- struct{}{}
		if dies {
			k.until("nobody has it", func() bool {
				return k.d.was("fork "+string(two)) && !forks() && len(k.ok(Request{Op: "hello", Version: Version}).Cells) == 1
			})
			continue
		}
		var resp Response
		if _, err := c.Recv(&resp); err != nil || resp.Error != nil || !forks() {
			t.Errorf("somebody waits, and gets %+v, %v", resp, err)
		}
	}
}
