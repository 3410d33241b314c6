package bench

import (
	"context"
	"fmt"
)

var replayAxis = Axis{
	Name:    "replay",
	About:   "bringing back the result of a run, and executing it again, beside the run itself",
	measure: measureReplay,
}

const (
	replayTrue  = "true"
	replayBuild = "small build"
	replayPatch = ", its result brought back"
	replayRun   = "pando run"
	replayIt    = "pando replay"
	replayAgain = "pando replay --verify"
)

// building is a shell command that makes 50 files of 200 others, without a tool that may not be there.
const building = "mkdir -p out; for i in $(seq 50); do cat f* 2>/dev/null | cksum > out/$i; done"

func measureReplay(ctx context.Context, l *lab, out *AxisResult) error {
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	dir, err := l.own(200, 1000)
	if err != nil {
		return err
	}
	if err := inst.start(ctx); err != nil {
		return err
	}
	works := []struct{ name, script string }{{replayTrue, "true"}, {replayBuild, building}}
	ids := map[string]string{}
	for _, w := range works {
		if _, err := inst.pando(dir, l.run("--cell", "of-"+w.name[:4], "--", "sh", "-c", w.script)...).run(ctx); err != nil {
			return err
		}
		r, err := inst.latest(ctx, dir)
		if err != nil {
			return err
		}
		ids[w.name] = r.ID
	}
	remove := func(ctx context.Context, name string) error {
		_, err := inst.pando(dir, "rm", "--yes", name).run(ctx)
		return err
	}
	first := contestant{name: replayRun, ours: true, command: "pando run --cell NAME -- sh -c '…'", round: func(ctx context.Context, r *recorder) error {
		for i, w := range works {
			name := fmt.Sprintf("run%d-%d", r.n, i)
			if err := r.time(w.name, func() error {
				_, err := inst.pando(dir, l.run("--cell", name, "--", "sh", "-c", w.script)...).run(ctx)
				return err
			}); err != nil {
				return err
			}
			if err := remove(ctx, name); err != nil {
				return err
			}
		}
		return nil
	}}
	back := contestant{name: replayIt, ours: true, command: "pando replay RUN", round: func(ctx context.Context, r *recorder) error {
		name := fmt.Sprintf("back%d", r.n)
		if err := r.time(replayBuild+replayPatch, func() error {
			_, err := inst.pando(dir, "replay", ids[replayBuild], "--name", name).run(ctx)
			return err
		}); err != nil {
			return err
		}
		return remove(ctx, name)
	}}
	again := contestant{name: replayAgain, ours: true, command: "pando replay RUN --verify", round: func(ctx context.Context, r *recorder) error {
		for _, w := range works {
			if err := r.time(w.name, func() error { // fails when anything differs; its cell is removed otherwise
				_, err := inst.pando(dir, "replay", ids[w.name], "--verify").run(ctx)
				return err
			}); err != nil {
				return err
			}
		}
		return nil
	}}
	return l.hold(ctx, out, contest{contestants: []contestant{first, back, again}, settle: true, cases: []Case{
		{Name: replayTrue, What: "true in a new cell of 200 files; and executing that again with its result compared"},
		{Name: replayBuild, What: "a command that makes 50 files; and executing that again with its result compared"},
		{Name: replayBuild + replayPatch, What: "the files before that run with its patch, all digests compared, in a new cell"},
	}})
}
