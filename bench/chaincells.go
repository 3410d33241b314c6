package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/pando-dev/pando/api"
)

const (
	chainedCheckpoints = 8
	restored           = "restore of checkpoint "
)

// measureChainOfCells measures branches of branches, and checkpoints of one cell
// that each add to the one before.
func measureChainOfCells(ctx context.Context, l *lab, out *AxisResult) error {
	const name, back = "client.Branch", "client.Restore"
	p, inst, err := l.inhabited(ctx, out, name)
	if inst == nil || err != nil {
		return err
	}
	defer inst.close(ctx)
	at := func(k int) string { return fmt.Sprint(restored, k, " of ", chainedCheckpoints) }
	c := contest{contestants: []contestant{
		{name: name, ours: true, command: "client.Branch, then client.Eval in the branch", round: func(ctx context.Context, r *recorder) error {
			return inst.chainOf(ctx, r, func() (string, error) { return "source", inst.living(ctx, p, "source") })
		}},
		{name: back, ours: true, command: "client.Restore, then client.Eval in the cell", round: func(ctx context.Context, r *recorder) error {
			return inst.checkpointChain(ctx, r, p, at)
		}},
	}}
	for _, d := range depths {
		c.cases = append(c.cases, Case{Name: atDepth(d), What: "from the request for one branch until it has computed with a variable of its source"})
	}
	for _, k := range []int{1, chainedCheckpoints} {
		c.cases = append(c.cases, Case{Name: at(k), What: "from the request until the interpreter has computed with a variable of that instant"})
	}
	if err := l.hold(ctx, out, c); err != nil {
		return err
	}
	deepest := depths[len(depths)-1]
	out.relate("flat", fmt.Sprintf("%s over %s", atDepth(deepest), atDepth(0)), name, atDepth(deepest), atDepth(0), chainAtMost)
	out.relate("flat, checkpoints", fmt.Sprintf("%s over %s", at(chainedCheckpoints), at(1)), back, at(chainedCheckpoints), at(1), chainAtMost)
	return nil
}

// checkpointChain makes a chain of checkpoints with memory in a new cell, and times
// the restore of the first and of the last; which of them is timed first changes
// with the round.
func (i *installation) checkpointChain(ctx context.Context, r *recorder, p python, at func(int) string) (err error) {
	const name = "chained"
	if err := i.living(ctx, p, name); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, i.remove(ctx, []string{name})) }()
	var numbers [chainedCheckpoints + 1]int
	for k := 1; k <= chainedCheckpoints; k++ {
		if _, err := i.eval(ctx, name, fmt.Sprintf("x = %d", k)); err != nil {
			return err
		}
		made, err := i.client.Checkpoint(ctx, name, api.CheckpointRequest{})
		if err != nil {
			return err
		}
		if !made.Memory {
			return fmt.Errorf("checkpoint %d has no memory", made.Number)
		}
		numbers[k] = made.Number
	}
	order := []int{1, chainedCheckpoints}
	if r.n%2 == 1 {
		order[0], order[1] = order[1], order[0]
	}
	for _, k := range order {
		began := now()
		if _, err := i.client.Restore(ctx, name, api.RestoreRequest{Number: numbers[k]}); err != nil {
			return err
		}
		call := began.ms()
		if err := i.computes(ctx, name, "x + 1", float64(k+1)); err != nil {
			return err
		}
		r.put(at(k), began.ms())
		r.part(at(k), "call", call)
	}
	return nil
}
