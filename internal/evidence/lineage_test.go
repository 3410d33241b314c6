package evidence

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// The receipt of a run names what its cell's state comes from, and its patch is a subject.
func TestParents(t *testing.T) {
	b := newBed(t)
	c := b.cell()
	one := b.runIn(&c)
	b.ended(&one, &c)
	two := b.runIn(&c)
	b.must(os.WriteFile(filepath.Join(two.Folder, "patch"), []byte("--- a\n"), 0o600))
	b.ended(&two, &c)
	if got := b.runParents(one.Receipts[0]); len(got) != 0 {
		t.Errorf("the first run comes from %v", got)
	}
	if got := b.runParents(two.Receipts[0]); !slices.Equal(got, []string{one.Receipts[0]}) {
		t.Errorf("the second run comes from %v, want the first one's receipt %s", got, one.Receipts[0])
	}
	entry, err := b.ledger.Find(two.Receipts[0])
	b.must(err)
	s, err := entry.Statement()
	b.must(err)
	want := receipt.Subject{Name: "patch", Digest: cell.Sum([]byte("--- a\n"))}
	if !slices.Contains(s.Subject, want) {
		t.Errorf("subjects %+v have no %+v", s.Subject, want)
	}

	b.must(two.Decide(cell.Forked, "forked", "user"))
	fork, err := b.Seal(b.ctx, string(c.ID)+"/fork/1", state.Act{Act: "fork", Cell: string(c.ID), Run: two.ID, Backend: c.Backend}, &two)
	b.must(err)
	entry, err = b.ledger.Find(fork.String())
	b.must(err)
	if a, err := predicate[state.Act](entry); err != nil || !slices.Equal(a.Parents, []string{two.Receipts[0]}) {
		t.Errorf("the fork comes from %v, %v; want the second run's receipt", a.Parents, err)
	}
	early, err := b.Seal(b.ctx, string(c.ID)+"/fork/2", state.Act{Act: "fork", Cell: string(c.ID), Run: one.ID, Backend: c.Backend})
	b.must(err)
	entry, err = b.ledger.Find(early.String())
	b.must(err)
	if a, err := predicate[state.Act](entry); err != nil || !slices.Equal(a.Parents, []string{one.Receipts[0]}) {
		t.Errorf("the fork of what the first run left comes from %v, %v; want its receipt", a.Parents, err)
	}
	child := b.cell()
	child.Batch = string(c.ID) + "/fork/1"
	b.must(b.reg.Commit(&child))
	three := b.runIn(&child)
	b.ended(&three, &child)
	if got := b.runParents(three.Receipts[0]); !slices.Equal(got, []string{fork.String()}) {
		t.Errorf("the run in a fork comes from %v, want the receipt of the fork %s", got, fork)
	}

	seal, err := b.CommitBatch(context.WithoutCancel(b.ctx), "branch", &child, state.Batch{Act: state.BatchBranch})
	b.must(err)
	entry, err = b.ledger.Find(seal())
	b.must(err)
	if p, err := predicate[Batch](entry); err != nil || !slices.Equal(p.Parents, []string{three.Receipts[0]}) {
		t.Errorf("the branch comes from %v, %v; want the receipt of the run in its source", p.Parents, err)
	}
	b.verified()
}

func (b *bed) runParents(id string) []string {
	b.Helper()
	entry, err := b.ledger.Find(id)
	b.must(err)
	p, err := predicate[runPredicate](entry)
	b.must(err)
	return p.Parents
}

// runIn is a run of a cell with a command that has ended.
func (b *bed) runIn(c *state.Cell) state.Run {
	b.Helper()
	r, s := b.begun(c)
	s.begin()
	s.end()
	return r
}
