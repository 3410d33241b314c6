package govern

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// answering is a living cell that is answered.
type answering struct {
	backend.Instance
	answer func(cell.Answered) error
}

func (g *answering) Answer(_ context.Context, a cell.Answered) error { return g.answer(a) }

// asks records that a cell waits for an answer.
func (b *bed) asks(id string, c *state.Cell, run cell.RunID) {
	b.Helper()
	now := time.Now()
	b.must(b.reg.Commit(&state.Approval{Ask: cell.Asked{ID: id, Cell: c.ID, Run: run, At: now, Expires: now.Add(time.Minute)}, State: state.ApprovalWaiting}))
}

func (b *bed) wantState(id, want string) {
	b.Helper()
	if a, ok := b.reg.Approval(id); !ok || a.State != want {
		b.Errorf("%s is %q (%v), want %q", id, a.State, ok, want)
	}
}

// An answer is recorded before the gateway has it, decides once, and is good for no more than
// what was said.
func TestAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		c := b.cell("a", nil)
		var got []cell.Answered
		b.alive[c.ID] = &answering{answer: func(a cell.Answered) error {
			b.wantState(a.Ask.ID, map[cell.Effect]string{cell.Allow: state.Approved, cell.Deny: state.Denied}[a.Effect])
			got = append(got, a)
			return nil
		}}
		for _, id := range []string{"q-once", "q-no", "q-time"} {
			b.asks(id, c, "")
		}
		b.asks("q-run", c, "r-1")

		_, hidden := b.Answer(b.ctx, "q-once", true, "", func(cell.ID) bool { return false })
		_, none := b.Answer(b.ctx, "q-none", true, "", seesAll)
		if b.wantKind("another caller's", hidden, cell.NotFound); strings.ReplaceAll(hidden.Error(), "q-once", "q-none") != none.Error() {
			t.Errorf("%v; of what there is not: %v", hidden, none)
		}
		for _, scope := range []string{"run", "25h", "0s", "forever"} {
			_, err := b.Answer(b.ctx, "q-once", true, scope, seesAll)
			b.wantKind("scope "+scope, err, cell.Invalid)
		}
		b.wantState("q-once", state.ApprovalWaiting)
		if len(got) > 0 {
			t.Errorf("the gateway was told %+v", got)
		}

		for _, x := range []struct {
			id, scope string
			allow     bool
		}{{"q-once", "", true}, {"q-no", "", false}, {"q-time", "10m", true}, {"q-run", "run", true}} {
			_, err := b.Answer(b.ctx, x.id, x.allow, x.scope, seesAll)
			b.must(err)
			_, err = b.Answer(b.ctx, x.id, !x.allow, "", seesAll)
			b.wantKind("a second answer to "+x.id, err, cell.Conflict, x.id)
		}
		if len(got) != 4 || !got[2].Expires.Equal(time.Now().Add(10*time.Minute)) {
			t.Errorf("the gateway was told %+v", got)
		}
		standing := func(run cell.RunID) (ids string) {
			for _, a := range b.standing(c.ID, run) {
				ids += " " + a.Ask.ID
			}
			return ids
		}
		if in, after := standing("r-1"), standing(""); len(strings.Fields(in)) != 2 || after != " q-time" {
			t.Errorf("in the run%s are good, after it%s", in, after)
		}
		time.Sleep(11 * time.Minute)
		if now := standing("r-1"); now != " q-run" {
			t.Errorf("after the time%s are good", now)
		}
		b.must(b.reg.Commit(&state.Run{ID: "r-1", Cell: string(c.ID), Phase: cell.Finishing}))
		if now := standing("r-1"); now != "" {
			t.Errorf("after the run's command%s are good", now)
		}
	})
}

// What the gateway does not take, and what nothing waits for, is no approval.
func TestAnswerInVain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		c, resting := b.cell("a", nil), b.cell("b", nil)
		lost := errors.New("no answer")
		b.alive[c.ID] = &answering{answer: func(cell.Answered) error { return lost }}
		b.asks("q-lost", c, "")
		b.asks("q-late", c, "")
		b.asks("q-rest", resting, "")
		if _, err := b.Answer(b.ctx, "q-lost", true, "", seesAll); !errors.Is(err, lost) {
			t.Error(err)
		}
		_, err := b.Answer(b.ctx, "q-rest", true, "", seesAll)
		b.wantKind("of a cell at rest", err, cell.Conflict, "q-rest")
		time.Sleep(2 * time.Minute)
		_, err = b.Answer(b.ctx, "q-late", true, "", seesAll)
		b.wantKind("too late", err, cell.Conflict, "q-late")
		for _, id := range []string{"q-lost", "q-late", "q-rest"} {
			b.wantState(id, state.Expired)
		}
		if len(b.standing(c.ID, "")) > 0 {
			t.Error("something is good")
		}
	})
}
