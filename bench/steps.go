package bench

import (
	"context"
	"fmt"
	"io"

	"github.com/pando-dev/pando/api"
)

var stepsAxis = Axis{
	Name:    "steps",
	About:   "a command in a living cell, with a checkpoint of what the one before wrote; and looking at what was done",
	measure: measureSteps,
}

// The sizes that the command before has written, in MiB.
var stepSizes = []int{0, 1, 16, 64}

const (
	stepNothing  = "after nothing"
	stepSmall    = "after a small file"
	stepTimeline = "timeline of 50 steps"
	stepReport   = "report of a run"
	stepPause    = "stands still "
)

func stepAfter(mib int) string { return fmt.Sprintf("after %d MiB", mib) }

func measureSteps(ctx context.Context, l *lab, out *AxisResult) error {
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	dir, err := l.tree(100, 100)
	if err != nil {
		return err
	}
	const cell, many = "steps", "many"
	if ok, err := inst.works(ctx, out, byClient); !ok || err != nil {
		return err
	}
	for _, name := range []string{cell, many} {
		if _, err := inst.pando(dir, l.run("--cell", name, "--", "true")...).run(ctx); err != nil {
			return err
		}
		if err := inst.keepAlive(ctx, name); err != nil {
			return err
		}
	}
	for i := range 50 {
		if err := inst.whole(ctx, many, "/bin/sh", "-c", fmt.Sprintf("echo %d > f%d", i, i%5)); err != nil {
			return err
		}
	}
	runs, err := inst.client.Runs(ctx, nil)
	if err != nil || len(runs) == 0 {
		return fmt.Errorf("there is no run to draw a report of: %v", err)
	}
	// after times a command that begins with a checkpoint of what another wrote.
	after := func(ctx context.Context, r *recorder, what, write string) error {
		if write != "" {
			if err := inst.whole(ctx, cell, "/bin/sh", "-c", fmt.Sprintf(write, r.n)); err != nil {
				return err
			}
		} else if err := inst.whole(ctx, cell, "/bin/true"); err != nil {
			return err
		}
		if err := r.time(what, func() error { return inst.whole(ctx, cell, "/bin/true") }); err != nil {
			return err
		}
		head, err := inst.head(ctx, cell)
		if err == nil && write != "" {
			r.put(stepPause+what, head.PauseMS)
		}
		return err
	}
	ours := contestant{name: byClient, ours: true, command: "client.RunExec; client.Steps; GET …/report.html", round: func(ctx context.Context, r *recorder) error {
		if err := after(ctx, r, stepNothing, ""); err != nil {
			return err
		}
		if err := after(ctx, r, stepSmall, "echo %d > small"); err != nil {
			return err
		}
		for _, mib := range stepSizes[1:] {
			write := fmt.Sprintf("rm -f large*; dd if=/dev/urandom of=large-%%d bs=1M count=%d 2>/dev/null", mib)
			if err := after(ctx, r, stepAfter(mib), write); err != nil {
				return err
			}
		}
		if err := r.time(stepTimeline, func() error {
			list, err := inst.client.Steps(ctx, many)
			if err == nil && len(list) < 50 {
				err = fmt.Errorf("it has %d steps", len(list))
			}
			return err
		}); err != nil {
			return err
		}
		return r.time(stepReport, func() error { return inst.draw(ctx, runs[0].ID) })
	}}
	cases := []Case{
		{Name: stepNothing, What: "/bin/true in a living cell in which nothing has changed since the last checkpoint"},
		{Name: stepSmall, What: "/bin/true after a command wrote one file: its step begins with a checkpoint"},
		{Name: stepPause + stepSmall, What: "how long the cell stands still for the checkpoint of that", Goals: []Goal{{Series: byClient, AtMost: 10}}},
	}
	for _, mib := range stepSizes[1:] {
		cases = append(cases, Case{Name: stepAfter(mib), What: fmt.Sprintf("/bin/true after a command wrote a file of %d MiB and removed the one before", mib)},
			Case{Name: stepPause + stepAfter(mib), What: "how long the cell stands still for the checkpoint of that", Goals: []Goal{{Series: byClient, AtMost: float64(10 + mib)}}})
	}
	cases = append(cases, Case{Name: stepTimeline, What: "what 50 steps were and what they changed"},
		Case{Name: stepReport, What: "the page of a small run in HTML, drawn and read", Goals: []Goal{{Series: byClient, AtMost: 1000}}})
	return l.hold(ctx, out, contest{contestants: []contestant{ours}, cases: cases})
}

// head is the checkpoint that a cell is at.
func (i *installation) head(ctx context.Context, cell string) (api.Checkpoint, error) {
	list, err := i.client.History(ctx, cell)
	for _, k := range list {
		if k.Head {
			return k, err
		}
	}
	return api.Checkpoint{}, err
}

// draw reads the report of a run as a page.
func (i *installation) draw(ctx context.Context, run string) error {
	page, err := i.client.ReportAs(ctx, run, "html")
	if err != nil {
		return err
	}
	defer page.Close()
	n, err := io.Copy(io.Discard, page)
	if err == nil && n < 1000 {
		err = fmt.Errorf("the report has %d bytes", n)
	}
	return err
}
