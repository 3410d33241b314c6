package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
)

var runAxis = Axis{
	Name:    "run",
	About:   "a governed run (checkpoint, policy, signed receipt) beside what else starts a command in isolation",
	measure: measureRun,
	cells:   measureRun,
}

// The cases of the axis, and how many runs are one sample of runs in a row.
const (
	caseRun    = "run"
	caseRow    = "in a row"
	caseFirst  = "first use"
	caseStart  = "start"
	inRow      = 10
	pandoRun   = "pando run"
	pandoTalks = "pando run --allow" // with a gateway, and its canaries
	runFiles   = 1000
	runAverage = 4 << 10
)

func measureRun(ctx context.Context, l *lab, out *AxisResult) error {
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	dir, err := l.tree(runFiles, runAverage)
	if err != nil {
		return err
	}
	if ok, err := inst.works(ctx, out, pandoRun); !ok || err != nil {
		return err
	}
	list := append(l.pandoRun(inst, dir, pandoRun, l.run("--", "true")...), l.pandoRun(inst, dir, pandoTalks, l.run("--allow", "example.com", "--", "true")...)...)
	peers := []func(context.Context, *AxisResult, *installation, string, ...string) ([]contestant, error){l.bwrap, l.crunRun, l.runscDo, l.engines}
	goals := []Goal{{Series: pandoRun, AtMost: 25}, {Series: pandoRun, AtMost: 1, Of: "crun run"}, {Series: pandoTalks, AtMost: 25 + 15}}
	first, started := []Goal{{Series: pandoRun, AtMost: 400}}, []Goal(nil)
	switch l.backend {
	case gvisor:
		peers = peers[2:3:3]
		peers = append(peers, l.runscRun)
		goals, first, started = nil, nil, []Goal{{Series: pandoRun, AtMost: 90}}
	case microvm:
		peers, goals, first = nil, nil, nil
	}
	for _, peer := range peers {
		more, err := peer(ctx, out, inst, dir, caseRun, caseRow)
		if err != nil {
			return err
		}
		list = append(list, more...)
	}
	for i := range list {
		if !list[i].ours {
			list[i].against = pandoRun
		}
	}
	err = l.hold(ctx, out, contest{contestants: list, cases: []Case{
		{Name: caseRun, What: fmt.Sprintf("%d files, daemon up, from starting the program to its end; %v of rest before each", runFiles, l.pause),
			Goals: goals},
		{Name: caseStart, What: "of that, by the daemon's clock: the cell, until its command began", Goals: started},
		{Name: caseRow, What: fmt.Sprintf("%d in a row without rest, a tenth of all: what a run leaves to be done behind it counts", inRow)},
	}})
	if err != nil {
		return err
	}
	return l.firstUse(ctx, out, dir, first)
}

// pandoRun is ours, daemon up.
func (l *lab) pandoRun(inst *installation, dir, name string, args ...string) []contestant {
	c := inst.pando(dir, args...)
	return []contestant{{name: name, ours: true, command: c.words(), round: func(ctx context.Context, r *recorder) error {
		err := r.time(caseRun, func() error { _, err := c.run(ctx); return err })
		if err != nil {
			return err
		}
		run, err := inst.latest(ctx, dir)
		if err != nil {
			return err
		}
		r.timings(caseRun, run.Timings)
		if l.backend != "" {
			r.put(caseStart, round(run.Timings.Start))
		}
		if err := l.rest(ctx); err != nil {
			return err
		}
		return r.timeRow(ctx, caseRow, func(ctx context.Context) error { _, err := c.run(ctx); return err })
	}}}
}

// timeRow measures several in a row and records a share of it.
func (r *recorder) timeRow(ctx context.Context, name string, once func(context.Context) error) error {
	t := time.Now()
	for range inRow {
		if err := once(ctx); err != nil {
			return err
		}
	}
	r.put(name, toMS(time.Since(t)/inRow))
	return nil
}

// repeat makes a contestant of something that is done once for the first
// case, and several times in a row for the second.
func repeat(cases []string, c contestant, once func(context.Context) error) []contestant {
	c.round = func(ctx context.Context, r *recorder) error {
		if err := r.time(cases[0], func() error { return once(ctx) }); err != nil {
			return err
		}
		return r.timeRow(ctx, cases[1], once)
	}
	return []contestant{c}
}

// latest is the newest run from a directory.
func (i *installation) latest(ctx context.Context, dir string) (api.Run, error) {
	runs, err := i.client.Runs(ctx, nil)
	if err != nil {
		return api.Run{}, err
	}
	for _, r := range runs { // newest first
		if r.Source == dir {
			return r, nil
		}
	}
	return api.Run{}, fmt.Errorf("cannot find the run from %s", dir)
}

// timings records what the daemon itself timed of a run.
func (r *recorder) timings(what string, t api.Timings) {
	for _, p := range []struct {
		name string
		ms   float64
	}{{"import", t.Import}, {"checkpoint", t.Checkpoint}, {"start", t.Start}, {"command", t.Run}, {"freeze", t.Freeze}, {"digest", t.Digest}, {"receipt", t.Receipt}, {"in the daemon", t.Total}} {
		r.part(what, p.name, p.ms)
	}
}

// firstUse measures the first command ever: no state, no daemon.
func (l *lab) firstUse(ctx context.Context, out *AxisResult, dir string, goals []Goal) error {
	first := contestant{name: pandoRun, ours: true, command: "PANDO_HOME=(new) pando " + strings.Join(l.run("--", "true"), " "), round: func(ctx context.Context, r *recorder) error {
		inst, err := l.install()
		if err != nil {
			return err
		}
		defer inst.close(ctx)
		c := inst.pando(dir, l.run("--", "true")...)
		if err := r.time(caseFirst, func() error { _, err := c.run(ctx); return err }); err != nil {
			return err
		}
		run, err := inst.latest(ctx, dir)
		if err != nil {
			return err
		}
		r.timings(caseFirst, run.Timings)
		return inst.close(ctx)
	}}
	return l.hold(ctx, out, contest{contestants: []contestant{first}, cases: []Case{
		{Name: caseFirst, What: fmt.Sprintf("no state, no daemon, %d files; starts the daemon, makes the key, imports everything", runFiles),
			Goals: goals},
	}})
}
