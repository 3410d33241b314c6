package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// idleCells is how many cells are idle in the tests of X44.
const idleCells = 20_000

// idled is a bed with idleCells cells beside those that a test makes: a third was made for
// E2B, a third was forked from the template warm, and a third has a result that waits.
type idled struct {
	*bed
	View  *View
	token *View // that has made the first third
}

func newIdled(t testing.TB) *idled {
	t.Helper()
	b := &idled{bed: newBed(t, "f: 0")}
	b.View = b.All()
	b.must(second(b.Disk(b.ctx, false))) // else the first thing that is made measures it
	b.token = b.caller("t-1", access.Bounds{MaxCells: 2 * idleCells})
	tm := b.template("warm", "x = 1")
	one, err := b.Create(b.ctx, api.CreateRequest{Name: "model", From: b.src, CallerDir: b.src, CallerEnv: []string{"PATH=/usr/bin:/bin"}})
	b.must(err)
	c, err := b.reg.Cell(cell.ID(one.ID))
	b.must(err)
	head, err := b.reg.Checkpoint(c.Head)
	b.must(err)
	shared := &state.Shared{Digest: cell.Sum([]byte("idle")), Setup: c.Setup}
	objects := []any{shared}
	began := time.Now().UTC().Add(-time.Hour)
	for i := range idleCells {
		n := c
		n.ID, n.Name, n.Created, n.State, n.Shared, n.Gen = cell.NewID(), fmt.Sprintf("idle-%d", i+1), began.Add(time.Duration(i)*time.Millisecond), cell.Idle, shared.Digest, nil
		k := head
		k.ID, k.Cell = cell.NewCheckpointID(), n.ID
		n.Head = k.ID
		l := &state.Lease{Cell: n.ID, Since: n.Created, Then: api.LeasePause, Until: time.Now().Add(time.Hour + time.Duration(i)*time.Second)}
		var more []any
		switch i % 3 {
		case 0:
			l.Owner, l.Labels = "t-1", map[string]string{"e2b:template": "base", "user": fmt.Sprint(i % 1000), "all": "yes"}
		case 1:
			n.Name, n.Of, n.Family, n.Parent = fmt.Sprintf("warm-%d", i/3+1), "warm", cell.ID(tm.Cell), &state.Origin{Cell: cell.ID(tm.Cell)}
		default:
			r := &state.Run{}
			r.ID, r.Cell, r.Source, r.Created, r.Phase, r.Verdict = string(cell.NewRunID()), string(n.ID), b.src+"/of/others", n.Created, cell.Ended, cell.Pending
			n.LastRun = r.RunID()
			more = append(more, r)
		}
		objects = append(append(objects, &n, &k, l), more...)
		if len(objects) > 2000 {
			b.must(b.reg.Commit(objects...))
			objects = nil
		}
	}
	b.must(b.reg.Commit(objects...))
	t.Cleanup(func() { // one by one would take minutes
		for _, c := range b.reg.AllCells() {
			if strings.HasPrefix(c.Name, "idle-") || c.Of == "warm" {
				objects = append(objects, state.Forget(c.ID), state.Forget(c.Head), state.Forget(c.LastRun))
			}
		}
		b.must(b.reg.Commit(objects...))
	})
	return b
}

// visits counts the records and entries of the index that do walks over.
func (b *bed) visits(do func()) int64 {
	before := b.reg.Visited()
	do()
	return b.reg.Visited() - before
}

// X44: what a request costs does not depend on how many cells there are.
func TestX44RequestsVisitWhatTheyFind(t *testing.T) {
	t.Parallel()
	b := newIdled(t)
	mine, err := b.Create(b.ctx, api.CreateRequest{Name: "mine", From: b.src, CallerDir: b.src, CallerEnv: []string{"PATH=/usr/bin:/bin"}})
	b.must(err)
	id := cell.ID(mine.ID)
	b.run("kept", "echo 1 > f")
	must := func(err error) {
		t.Helper()
		b.must(err)
	}
	for _, x := range []struct {
		what string
		most int64
		do   func()
	}{
		{"create", 20, func() {
			_, err := b.View.Create(b.ctx, api.CreateRequest{Name: "new", From: b.src, CallerDir: b.src, CallerEnv: []string{"PATH=/usr/bin:/bin"}})
			must(err)
		}},
		{"create with a bounded token", 20, func() {
			_, err := b.token.Create(b.ctx, api.CreateRequest{Name: "new2", Labels: map[string]string{"e2b:template": "base"}, CallerEnv: []string{"PATH=/usr/bin:/bin"}})
			must(err)
		}},
		{"run", 40, func() { b.run("", "write f 1") }},
		{"run in a cell", 40, func() { b.run("mine", "write f 2") }},
		{"get by name", 5, func() {
			got, err := b.View.SelectCell("idle-7", b.src)
			must(err)
			_, err = b.View.Cell(got)
			must(err)
		}},
		{"get by the beginning of an id", 5, func() {
			_, err := b.View.SelectCell(string(id)[:14], b.src)
			must(err)
		}},
		{"get the latest from a directory", 20, func() {
			_, err := b.View.SelectCell("", b.src)
			must(err)
		}},
		{"get a checkpoint by its digest", 20, func() {
			c, err := b.reg.Cell(id)
			must(err)
			_, err = b.View.SelectCheckpoint(strings.TrimPrefix(string(c.Head), "k-"), b.src)
			must(err)
		}},
		{"exec", 20, func() {
			_, err := b.View.StartExec(b.ctx, id, api.ExecRequest{Command: []string{"true"}, Wait: true})
			must(err)
		}},
		{"fork a template", 40, func() { b.fork("warm", api.WarmForkRequest{Count: 2}) }},
		{"fork a cell", 40, func() {
			_, err := b.View.Fork(b.ctx, id, api.ForkRequest{Number: 1, Count: 2})
			must(err)
		}},
		{"list a page", 60, func() {
			list, next, err := b.View.Cells(state.Query{Limit: 20})
			must(err)
			if len(list) != 20 || next == "" {
				t.Errorf("%d cells, next %q", len(list), next)
			}
			list, _, err = b.View.Cells(state.Query{Limit: 20, After: next})
			must(err)
			if len(list) != 20 {
				t.Errorf("%d cells on the second page", len(list))
			}
		}},
		{"list by a label", 60, func() {
			list, next, err := b.View.Cells(state.Query{Limit: 50, Labels: map[string]string{"user": "3", "all": "yes"}})
			must(err)
			if len(list) != 7 || next != "" {
				t.Errorf("%d cells, next %q", len(list), next)
			}
		}},
		{"list as E2B does, by metadata, in pages", 60, func() {
			ask := state.Query{Label: "e2b:template", Labels: map[string]string{"all": "yes"}, States: []string{state.QueryRunning}, Limit: 10}
			list, next, err := b.View.Records(ask)
			must(err)
			ask.After = next
			more, _, err := b.View.Records(ask)
			must(err)
			if len(list) != 10 || len(more) != 10 || list[9].ID == more[0].ID || list[9].Created.Before(more[0].Created) {
				t.Errorf("%d and %d sandboxes", len(list), len(more))
			}
			if n := b.View.Running("e2b:template"); n < idleCells/3 {
				t.Errorf("%d sandboxes", n)
			}
		}},
		{"find a snapshot and a template as E2B does", 5, func() {
			if list := b.View.Marked("e2b snapshot "); len(list) != 0 || b.View.HasTemplate("base") || !b.View.HasTemplate("warm") {
				t.Errorf("%d snapshots", len(list))
			}
			list, _, err := b.View.Records(state.Query{Label: "e2b:build", Labels: map[string]string{"e2b:alias": "x"}, Limit: 1})
			must(err)
			if len(list) != 0 {
				t.Errorf("built: %v", list)
			}
		}},
		{"pause, go on, and change a lease", 10, func() {
			_, err := b.View.Park(b.ctx, id)
			must(err)
			_, err = b.View.Unpark(b.ctx, id)
			must(err)
			_, err = b.View.Lease(b.ctx, id, api.LeaseRequest{For: "2h"})
			must(err)
		}},
		{"eval", 20, func() { b.says("warm-"+strconv.Itoa(idleCells/3+2), "x", "1") }},
		{"count", 5, func() { b.View.Count(); b.View.Made("t-1"); b.View.Standing() }},
		{"stats of everything", 60, func() {
			_, err := b.View.AllStats(b.ctx)
			must(err)
		}},
		{"leases", 5, func() { b.reg.LeasesOver(time.Now()) }},
		{"remove a fork", 20, func() { b.removes("warm-" + strconv.Itoa(idleCells/3+2)) }},
		{"remove a cell with checkpoints", 20, func() { b.removes("kept") }},
	} {
		if n := b.visits(x.do); n > x.most {
			t.Errorf("%s visits %d records among %d idle cells; want at most %d", x.what, n, idleCells, x.most)
		}
	}
}

// removes removes a cell, and waits until its layers are free.
func (b *bed) removes(name string) {
	b.Helper()
	c, ok := b.reg.Named(name)
	if !ok {
		b.Fatalf("no cell %s", name)
	}
	k, err := b.reg.Checkpoint(c.Head)
	b.must(err)
	layers := []string{}
	for _, g := range c.Gens() {
		layers = append(layers, g.Layer)
	}
	if k.Cell == c.ID && k.Number > 1 { // else it is the import, or of the template
		layers = append(layers, k.State.Layers...)
	}
	if len(layers) == 0 {
		b.Fatalf("cell %s has no layer of its own", name)
	}
	b.must(second(b.Remove(b.ctx, c.ID, false)))
	b.until("the layers of "+name+" are free", func() bool {
		return !slices.ContainsFunc(layers, func(l string) bool { return slices.Contains(b.layers(), l) })
	})
}

// forkOf asks for n forks.
func forkOf(n int) api.ForkRequest { return api.ForkRequest{Number: 1, Count: n} }
