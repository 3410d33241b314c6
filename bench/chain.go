package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/pando-dev/pando/api"
)

var chainAxis = Axis{
	Name:    "chain",
	About:   "branches of branches: what depth costs",
	measure: measureChain,
	cells:   measureChainOfCells,
}

// depths are how many branches lie between a source and the first.
var depths = []int{0, 1, 3, 8}

const chainAtMost = 1.2

func measureChain(ctx context.Context, l *lab, out *AxisResult) error {
	const name = "client.Branch"
	_, inst, err := l.warmed(ctx, out, name, "")
	if inst == nil || err != nil {
		return err
	}
	defer inst.close(ctx)
	if ok, err := inst.branches(ctx, out, name); !ok || err != nil {
		return err
	}
	c := contest{contestants: []contestant{{name: name, ours: true, command: "client.Branch, then client.Eval in the branch",
		round: func(ctx context.Context, r *recorder) error {
			return inst.chainOf(ctx, r, func() (string, error) {
				f, err := inst.fork(ctx, templateName, 1, map[string]bool{})
				return strings.Join(f.cells, ""), err
			})
		}}}}
	for _, d := range depths {
		c.cases = append(c.cases, Case{Name: atDepth(d), What: "from the request for one branch until it has computed with a variable of its source"})
	}
	if err := l.hold(ctx, out, c); err != nil {
		return err
	}
	deepest := depths[len(depths)-1]
	out.relate("flat", fmt.Sprintf("%s over %s", atDepth(deepest), atDepth(0)), name, atDepth(deepest), atDepth(0), chainAtMost)
	return nil
}

func atDepth(n int) string { return fmt.Sprintf("depth %d", n) }

// chainOf makes a chain that begins with a new cell, each the branch of the one before, and times the
// branches of some of them. A source is branched once: its own depth grows by
// that, too.
func (i *installation) chainOf(ctx context.Context, r *recorder, first func() (string, error)) (err error) {
	made := []string{}
	source, err := first()
	if source != "" {
		made = append(made, source)
	}
	defer func() { err = errors.Join(err, i.remove(ctx, made)) }()
	if err != nil {
		return err
	}
	for d, at := 0, 0; at < len(depths); d++ {
		source := made[len(made)-1]
		if _, err := i.eval(ctx, source, fmt.Sprintf("x = %d", d)); err != nil {
			return err
		}
		began := now()
		res, err := i.client.Branch(ctx, source, api.BranchRequest{Count: 1})
		if err != nil {
			return fmt.Errorf("at depth %d: %w", d, err)
		}
		for _, c := range res.Cells {
			made = append(made, c.ID)
		}
		v, err := i.eval(ctx, made[len(made)-1], "x + 1")
		if err == nil && v != float64(d+1) {
			err = fmt.Errorf("at depth %d, the branch answered %v", d, v)
		}
		if err != nil {
			return err
		}
		if d == depths[at] {
			r.put(atDepth(d), began.ms())
			r.part(atDepth(d), "pause of the source", round(res.PauseMS))
			at++
		}
	}
	return nil
}
