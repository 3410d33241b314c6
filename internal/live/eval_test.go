package live

import (
	"context"
	"errors"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

func (f *fake) Eval(context.Context, cell.Eval, func(cell.Output)) (cell.Evaluated, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answer, f.silent
}

// An evaluation that ends its interpreter, or finds that the keeper is gone, says so; the next
// one is refused, since the variables are gone.
func TestEvalEndsItsInterpreter(t *testing.T) {
	for name, x := range map[string]struct {
		answer cell.Evaluated
		err    error
		cause  string
	}{
		"exit":      {cell.Evaluated{Cause: "ended"}, nil, "it ended in an evaluation"},
		"with text": {cell.Evaluated{Cause: "ended", Error: &cell.EvalError{Message: "exit 3"}}, nil, "exit 3"},
		"keeper":    {cell.Evaluated{}, cell.Errorf(cell.Unavailable, "fake", "", "no answer"), state.KeeperLost},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bed) {
				ctx := context.Background()
				f := b.alive("c-1", true)
				if _, err := b.Eval(ctx, "c-1", api.EvalRequest{Code: "1"}, nil); err != nil {
					t.Fatal(err)
				}
				b.pass(moment)
				if !b.HasInterp("c-1") || f.cause() != "" {
					t.Fatal("it ended without a reason")
				}
				f.change(func() { f.answer, f.silent = x.answer, x.err })
				_, err := b.Eval(ctx, "c-1", api.EvalRequest{Code: "1"}, nil)
				if (err != nil) != (x.err != nil) {
					t.Errorf("got %v", err)
				}
				f.change(func() { f.silent = nil })
				b.pass(moment)
				if i := b.reg.Interp("c-1"); i.Ended != x.cause || !b.AtRest("c-1") {
					t.Errorf("its end is recorded as %q; the cell is %s", i.Ended, b.state("c-1").State)
				}
				if _, err := b.Eval(ctx, "c-1", api.EvalRequest{Code: "1"}, nil); !errors.Is(err, ErrInterpreterGone) || cell.KindOf(err) != cell.Conflict {
					t.Errorf("the next one: %v", err)
				}
			})
		})
	}
}

// Code is refused that no interpreter, or another than the cell's, is for.
func TestEvalRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.alive("c-1", true)
		for _, req := range []api.EvalRequest{{}, {Code: "1", Kind: "cobol"}, {Code: "1", Timeout: "0"}} {
			if _, err := b.Eval(context.Background(), "c-1", req, nil); cell.KindOf(err) != cell.Invalid {
				t.Errorf("%+v: %v", req, err)
			}
		}
		if _, err := b.Eval(context.Background(), "c-1", api.EvalRequest{Code: "1", Kind: "java"}, nil); !errors.Is(err, ErrOtherKind) {
			t.Errorf("another language: %v", err)
		}
		if err := b.MayEval("c-1", "java"); !errors.Is(err, ErrOtherKind) {
			t.Errorf("asked before: %v", err)
		}
		if err := b.MayEval("c-1", "python"); err != nil {
			t.Errorf("its own language: %v", err)
		}
	})
}

// The keeper of a cell has died, and that is not recorded yet: an evaluation that comes in this
// moment does not begin with a new interpreter, where the variables would be missing without a
// word. One that asks for a new one gets it.
func TestEvalWhileAKeepersDeathIsNoted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		ctx := context.Background()
		f := b.alive("c-1", true)
		f.change(func() { f.dead = true })
		b.takeInterp("c-1")
		if _, err := b.Eval(ctx, "c-1", api.EvalRequest{Code: "x"}, nil); !errors.Is(err, ErrInterpreterGone) {
			t.Errorf("got %v", err)
		}
		if i := b.reg.Interp("c-1"); i.Ended != state.KeeperLost {
			t.Errorf("its end is recorded as %q", i.Ended)
		}
		if _, err := b.Eval(ctx, "c-1", api.EvalRequest{Code: "x", Fresh: true}, nil); err != nil || !b.HasInterp("c-1") {
			t.Errorf("a new one: %v, it lives: %v", err, b.HasInterp("c-1"))
		}
		if i := b.reg.Interp("c-1"); i.Ended != "" || i.Kind != "python" {
			t.Errorf("it is recorded as %+v", i)
		}
	})
}
