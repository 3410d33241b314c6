package engine

import (
	"errors"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

func (b *bed) branch(name string, req api.BranchRequest) api.BranchResult {
	b.Helper()
	r, err := b.Branch(b.ctx, b.id(name), req)
	b.must(err)
	return r
}

// eval evaluates in a cell and expects nothing of the value.
func (b *bed) eval(name, code string) {
	b.Helper()
	_, err := b.Eval(b.ctx, b.id(name), api.EvalRequest{Code: code}, nil)
	b.must(err)
}

func TestBranchOfALivingCell(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("web", "echo 1 > f")
	b.eval("web", "x = 41\nwrite g 1\nwrite ~/dot 2")
	r := b.branch("web", api.BranchRequest{Count: 2})
	if len(r.Cells) != 2 || r.Cells[0].Name != "web-b1" || r.Cells[1].Name != "web-b2" || r.Receipt == "" || r.Depth != 1 {
		t.Fatalf("branch %+v", r)
	}
	b.eval("web", "x = 7\nwrite g 9")
	b.eval("web-b1", "x = x + 1")
	for name, want := range map[string][3]string{"web": {"7", "9", "2"}, "web-b1": {"42", "1", "2"}, "web-b2": {"41", "1", "2"}} {
		b.says(name, "x + 0", want[0])
		b.says(name, "read g", want[1])
		b.says(name, "read ~/dot", want[2])
	}
	// A branch of a branch, and one of the source again.
	b.branch("web-b1", api.BranchRequest{Name: "deep"})
	b.says("deep", "x + 0", "42")
	b.branch("web", api.BranchRequest{})
	b.says("web-b3", "x + 0", "7")
	if _, err := b.Remove(b.ctx, b.id("web"), false); err != nil {
		t.Fatal(err)
	}
	b.says("web-b1", "read g", "1")
	b.reopen()
	b.says("web-b1", "x + 0", "42")
	b.says("deep", "read g", "1")
	b.verified()
}

// D38: a branch that fails leaves the source where it was, and nothing else.
func TestD38FailedBranch(t *testing.T) {
	t.Parallel()
	for _, act := range []string{"branch", "second branch", "complete a branch", "adopt web-b2"} {
		b := newBed(t, "f: 0")
		b.run("web", "true")
		b.eval("web", "x = 41\nwrite g 1")
		b.toys.fail(act, errors.New("no space left on device"))
		_, err := b.Branch(b.ctx, b.id("web"), api.BranchRequest{Count: 2})
		b.wantKind(act, err, cell.Internal, "no space")
		b.says("web", "x + 0", "41")
		b.eval("web", "write h 2") // wherever it goes on
		b.says("web", "read g", "1")
		if n := len(listOf(b.All())); n != 1 {
			t.Errorf("%s: %d cells", act, n)
		}
		b.toys.fail(act, nil)
		b.branch("web", api.BranchRequest{Count: 2})
		b.says("web-b2", "read g", "1")
		b.says("web-b2", "read h", "2")
		b.verified()
	}
}
