package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

var evalAxis = Axis{
	Name:    "eval",
	About:   "an evaluation in a cell's interpreter, which lives from one to the next",
	measure: measureEval,
	cells:   measureEval,
}

// evalsInRow are timed together: one alone is short.
const evalsInRow = 100

func measureEval(ctx context.Context, l *lab, out *AxisResult) error {
	const once, row, name = "evaluate", "evaluate, in a row", "client"
	p, inst, err := l.warmed(ctx, out, name, "")
	if inst == nil || err != nil {
		return err
	}
	defer inst.close(ctx)
	f, err := inst.fork(ctx, templateName, 1, map[string]bool{})
	if err != nil {
		return err
	}
	cell := f.cells[0]
	// An answer to the last question is no answer to this one.
	asked := 0
	ask := func(ctx context.Context) error {
		asked++
		v, err := inst.eval(ctx, cell, fmt.Sprintf("%d+1", asked))
		if err == nil && v != float64(asked+1) {
			err = fmt.Errorf("%d+1 is %v", asked, v)
		}
		return err
	}
	dir, err := l.tree(1, 10)
	if err != nil {
		return err
	}
	typed := inst.pando(dir, "eval", cell, "1+1")
	cold := command{dir: dir, env: p.env, args: []string{p.path, "-c", "print(1+1)"}}
	says := func(c command) func(context.Context, *recorder) error {
		return func(ctx context.Context, r *recorder) error {
			return r.time(once, func() error {
				b, err := c.run(ctx)
				if err == nil && string(b) != "2\n" {
					err = fmt.Errorf("1+1 is %q", b)
				}
				return err
			})
		}
	}
	runs := l.runs
	if !l.quick {
		runs = max(runs, 30) // it is short
	}
	return l.hold(ctx, out, contest{runs: runs, contestants: []contestant{
		{name: name, ours: true, command: "client.Eval", round: func(ctx context.Context, r *recorder) error {
			if err := r.time(once, func() error { return ask(ctx) }); err != nil {
				return err
			}
			began := time.Now()
			for range evalsInRow {
				if err := ask(ctx); err != nil {
					return err
				}
			}
			r.put(row, toMS(time.Since(began))/evalsInRow)
			inside := 0.0
			for range evalsInRow {
				x, err := inst.took(ctx, cell)
				if err != nil {
					return err
				}
				inside += x
			}
			r.part(row, "in the interpreter", round(inside/evalsInRow))
			return nil
		}},
		{name: "pando eval", ours: true, command: typed.words(), round: says(typed)},
		{name: coldStart, command: cold.words(), against: "pando eval", round: says(cold),
			lacks: []string{"any isolation; variables and modules that last: each is a new interpreter"}},
	}, cases: []Case{
		{Name: once, What: fmt.Sprintf("n+1 after %v of rest: client from the request to the result, others from starting the program to its end", l.pause)},
		{Name: row, What: fmt.Sprintf("the same %d times without rest, a hundredth of all", evalsInRow), Goals: []Goal{{Series: name, AtMost: 0.4}}},
	}})
}

// took is how long 1+1 takes in the interpreter itself, in ms.
func (i *installation) took(ctx context.Context, cell string) (float64, error) {
	r, err := i.client.Eval(ctx, cell, api.EvalRequest{Code: "1+1"}, client.Listener{})
	if err != nil {
		return 0, err
	}
	x, err := decode[struct {
		TookMS float64 `json:"took_ms"`
	}](r.Result)
	return x.TookMS, err
}
