package server

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/client"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/repl"
)

// Seal implements Forker.
func (d *fakeDriver) Seal(cell.ID) error { return nil }

// Fork implements Forker: when it may, it makes a cell with an interpreter that says
// nothing.
func (d *fakeDriver) Fork(trunk, id cell.ID, spec json.RawMessage, i *Interpreter, files []*os.File) (json.RawMessage, error) {
	proto.CloseAll(files)
	<-d.mayFork
	return nil, d.forked(id, i)
}

// forked makes a cell with such an interpreter.
func (d *fakeDriver) forked(id cell.ID, i *Interpreter) error {
	conn, theirs, err := repl.Pair()
	if err != nil {
		return err
	}
	theirs.Close()
	var out [2]*os.File
	for n := range out {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		w.Close()
		out[n] = r
	}
	*i = Interpreter{Process: &fakeProcess{killed: make(chan struct{}), over: make(chan struct{})}, Conn: conn, Stdout: out[0], Stderr: out[1], IsCell: true}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cells[id] = nil
	d.note("fork %s", id)
	return nil
}

// Adopt implements Forker.
func (d *fakeDriver) Adopt(id cell.ID, _ cell.Adoption, first func() error) (cell.Certificate, error) {
	if first != nil {
		if err := first(); err != nil {
			return cell.Certificate{}, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("adopted %s", id)
	return cell.Certificate{}, nil
}

// A copy's command runs inside its adoption. One that fails, or can't be started, whatever
// the kind of error, leaves no copy, and is told with the end of what it wrote.
func TestX09ACopyBeginsWithItsCommand(t *testing.T) {
	const two = cell.ID("c-0000000000000002")
	k := newKit(t)
	k.d.mayFork = make(chan struct{}, 8)
	k.s.mu.Lock()
	k.s.cells[one].warm = &warm{}
	k.s.mu.Unlock()
	k.d.programs["seed"] = func(p *fakeProcess) cell.Exit {
		if k.d.was("adopted " + string(two)) {
			return cell.Exit{Code: 1}
		}
		return cell.Exit{}
	}
	k.d.programs["fail"] = func(p *fakeProcess) cell.Exit {
		fmt.Fprint(p.stdout, "began ", strings.Repeat("x", 3*atForkTail), "\xff end\n")
		fmt.Fprintln(p.stder, "no seed")
		return cell.Exit{Code: 3}
	}
	adopt := func(program string) (cell.Certificate, error) {
		k.d.mayFork <- struct{}{}
		ok(k, proto.Fork, proto.NewFork{Of: one, NewCell: proto.NewCell{Cell: two}})
		return client.Ask(k.ctx, k.c, proto.Adopt, proto.Adoption{Cell: two, Adopt: cell.Adoption{First: &cell.Start{Process: cell.Process{Args: []string{program}}, LogLimit: 1 << 20}}})
	}
	resp, err := adopt("seed")
	if err != nil {
		t.Fatal(err)
	}
	if h := resp.Hazards; len(h) != 1 || h[0].Name != cell.AtFork || h[0].Seen != "outside" || !strings.HasPrefix(h[0].Value, "exit code 0,") {
		t.Errorf("the certificate says %+v", h)
	}
	ok(k, proto.Remove, proto.Ending{Cell: two})
	for program, want := range map[string][]string{"fail": {"exit code 3", "xx\ufffd end", "no seed"}, "gone": {"cannot find gone"}} {
		_, err := adopt(program)
		if cell.KindOf(err) != cell.Invalid {
			t.Fatalf("%s: %v", program, err)
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %.200q has no %q", program, err, w)
			}
		}
		if strings.Contains(err.Error(), "began") {
			t.Errorf("%s: all of its output is told", program)
		}
		if cells := ok(k, proto.Hello, proto.Greeting{Version: proto.Version}).Cells; len(cells) != 1 {
			t.Errorf("%s: the copy is left: %v", program, cells)
		}
	}
}

// fakeBranch forks the source and its branches as Fork does.
type fakeBranch struct {
	d     *fakeDriver
	trunk cell.ID
}

func (d *fakeDriver) Branch(id cell.ID) (Branch, error) { return &fakeBranch{d, id}, nil }

func (b *fakeBranch) Source(_ json.RawMessage, f []*os.File) error { proto.CloseAll(f); return nil }
func (b *fakeBranch) Add(_ cell.ID, _ json.RawMessage, f []*os.File) error {
	proto.CloseAll(f)
	return nil
}
func (b *fakeBranch) Hold() ([]string, error) { return nil, nil }
func (b *fakeBranch) Settle() error           { return nil }
func (b *fakeBranch) End() error              { return nil }

func (b *fakeBranch) GoOn(i *Interpreter) error {
	return b.d.forked(b.trunk, i)
}

func (b *fakeBranch) Complete(id cell.ID, i *Interpreter) (json.RawMessage, error) {
	<-b.d.mayFork // each takes one
	return nil, b.d.forked(id, i)
}

// Branches that become complete after the daemon that asked for them has died are removed:
// the next daemon looked for them too early.
func TestF19BranchesThatNobodyHearsOf(t *testing.T) {
	const two = cell.ID("c-0000000000000002")
	for _, dies := range []bool{true, false} {
		k := newKit(t)
		k.d.mayFork = make(chan struct{})
		k.s.mu.Lock()
		k.s.cells[one].warm = &warm{in: Interpreter{Process: &fakeProcess{}}}
		k.s.mu.Unlock()
		c := k.raw()
		for _, r := range []struct {
			op   string
			body any
		}{{"branch", proto.OfCell{Cell: one}}, {"branch to", proto.NewCell{Cell: two}}, {"hold", proto.None{}}, {"go on", proto.None{}}} {
			if resp := k.says(c, r.op, r.body); resp.Error != nil {
				t.Fatalf("%s: %+v", r.op, resp)
			}
		}
		if err := proto.Complete.Ask(c, proto.None{}); err != nil {
			t.Fatal(err)
		}
		if dies {
			c.Close()
		}
		k.d.mayFork <- struct{}{}
		cells := func() int { return len(ok(k, proto.Hello, proto.Greeting{Version: proto.Version}).Cells) }
		if dies {
			k.until("the fork is removed", func() bool { return k.d.was("fork "+string(two)) && cells() == 1 })
		} else if _, err := c.Recv(&proto.Response[json.RawMessage]{}); err != nil || cells() != 2 {
			t.Errorf("a daemon waits, and there are %d cells: %v", cells(), err)
		}
	}
}

// A fork that becomes complete after the daemon that asked for it has died is removed.
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
		if err := proto.Fork.Ask(c, proto.NewFork{Of: one, NewCell: proto.NewCell{Cell: two}}); err != nil {
			t.Fatal(err)
		}
		if dies {
			c.Close()
		}
		k.d.mayFork <- struct{}{}
		if dies {
			k.until("the fork is removed", func() bool {
				return k.d.was("fork "+string(two)) && !forks() && len(ok(k, proto.Hello, proto.Greeting{Version: proto.Version}).Cells) == 1
			})
			continue
		}
		var resp proto.Response[json.RawMessage]
		if _, err := c.Recv(&resp); err != nil || resp.Error != nil || !forks() {
			t.Errorf("a daemon waits, and gets %+v, %v", resp, err)
		}
	}
}
