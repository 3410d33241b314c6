package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

var raceAxis = Axis{
	Name:    "race",
	About:   "16 commands that compute, two at a time: as a race, and under xargs -P2 in copies by cp -a",
	measure: measureRace,
}

const (
	raceSixteen  = "16 attempts"
	raceAttempts = 16
	raceAtMost   = 1.05
	racePando    = "pando race"
	raceXargs    = "xargs -P2"
)

// computing is a shell command of n steps of counting, which leaves a file.
func computing(n int) string {
	return fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); done; echo $i > counted", n)
}

// stepsFor is how many steps of counting take so long here.
func stepsFor(ctx context.Context, dir string, d time.Duration) (int, error) {
	const some = 300_000
	began := time.Now()
	if _, err := (command{dir: dir, env: os.Environ(), args: []string{"sh", "-c", computing(some)}}).run(ctx); err != nil {
		return 0, err
	}
	return max(int(float64(some)*float64(d)/float64(time.Since(began))), 1), nil
}

func measureRace(ctx context.Context, l *lab, out *AxisResult) error {
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	dir, err := l.own(100, 1000)
	if err != nil {
		return err
	}
	each := 10 * time.Second
	if l.quick {
		each = 100 * time.Millisecond
	}
	scratch, err := l.fresh("counting")
	if err != nil {
		return err
	}
	n, err := stepsFor(ctx, scratch, each)
	if err != nil {
		return err
	}
	work := computing(n)
	if err := inst.start(ctx); err != nil {
		return err
	}
	ours := contestant{name: racePando, ours: true, command: "pando race -n 16 --parallel 2 -- sh -c '…'", round: func(ctx context.Context, r *recorder) error {
		name := fmt.Sprintf("race%d", r.n)
		if err := r.time(raceSixteen, func() error {
			_, err := inst.pando(dir, "race", "--name", name, "-n", strconv.Itoa(raceAttempts), "--parallel", "2", "--", "sh", "-c", work).run(ctx)
			return err
		}); err != nil {
			return err
		}
		args := []string{"rm", "--yes"}
		for i := range raceAttempts {
			args = append(args, fmt.Sprintf("%s-%d", name, i+1))
		}
		_, err := inst.pando(dir, args...).run(ctx)
		return err
	}}
	list := []contestant{ours}
	if p := l.find(ctx, "xargs"); p.why != "" {
		out.absent("xargs", p.why)
	} else {
		script := fmt.Sprintf("seq %d | %s -P2 -I{} sh -c 'cp -a \"$1\" {} && cd {} && %s' sh \"$1\"", raceAttempts, p.path, work)
		list = append(list, contestant{name: raceXargs, against: racePando, command: "seq 16 | xargs -P2 -I{} sh -c 'cp -a SOURCE {} && cd {} && …'",
			lacks: []string{"isolation, limits, checks, receipts, a ranking, what a killed daemon loses nothing of"},
			round: func(ctx context.Context, r *recorder) error {
				copies, err := l.fresh("copies")
				if err != nil {
					return err
				}
				if err := r.time(raceSixteen, func() error {
					_, err := command{dir: copies, env: os.Environ(), args: []string{"sh", "-ec", script, "sh", dir}}.run(ctx)
					return err
				}); err != nil {
					return err
				}
				for i := range raceAttempts {
					b, rerr := os.ReadFile(filepath.Join(copies, strconv.Itoa(i+1), "counted"))
					if rerr == nil && strings.TrimSpace(string(b)) != strconv.Itoa(n) {
						rerr = fmt.Errorf("copy %d counted to %q", i+1, b)
					}
					err = errors.Join(err, rerr)
				}
				return errors.Join(err, l.later(copies))
			}})
	}
	return l.hold(ctx, out, contest{contestants: list, settle: true, cases: []Case{{
		Name: raceSixteen, What: fmt.Sprintf("from the command until a winner is named: %d commands of %s each that count, two at a time, each in its own copy of 100 files", raceAttempts, each),
		Goals: []Goal{{Series: racePando, AtMost: raceAtMost, Of: raceXargs}},
	}}})
}
