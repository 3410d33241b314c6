package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

var branchAxis = Axis{
	Name:    "branch",
	About:   "a running interpreter is branched: how long it stands still, and when a branch has answered",
	measure: measureBranch,
	cells:   measureBranchOfCells,
}

// weight is how much memory the source of a branch holds.
type weight struct {
	name string
	mib  int
	huge bool
	goal float64 // of the pause, in ms; 0: none
}

func (l *lab) weights() (list []weight) {
	for _, w := range []struct {
		name string
		mib  int
	}{{"256 MiB", 256}, {"1.5 GiB", 1536}} {
		if l.quick && w.mib > 256 {
			continue
		}
		// Of huge pages a fork copies 512 times fewer entries.
		list = append(list, weight{w.name + ", huge pages", w.mib, true, 1}, weight{w.name + ", small pages", w.mib, false, 20 * float64(w.mib) / 1024})
	}
	return list
}

const (
	pausedFor = "pause, "
	branched  = "branch, "
	// beatCode is one beat of the source's heart: it writes to a hundred pages
	// all over its memory, and says when.
	beatCode = "beat()"
	// weightCode makes memory of which every page was written, and the heart.
	weightCode = `import mmap, time, random
size = %d << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.%s)
for at in range(0, size, 4096): memory[at] = 1
def beat():
    for _ in range(100): memory[random.randrange(size)] = 2
    return time.monotonic_ns()
beats = 0`
	beatsAround = 300 * time.Millisecond // before and after
	betweenBeat = 500 * time.Microsecond // of rest: nothing is branched in the middle of an evaluation
	branchTries = 1000                   // to find such a moment
)

func measureBranch(ctx context.Context, l *lab, out *AxisResult) error {
	const name = "client.Branch"
	_, inst, err := l.warmed(ctx, out, name, "", func(r *api.TemplateRequest) { r.Limits.Memory = "8G" })
	if inst == nil || err != nil {
		return err
	}
	defer inst.close(ctx)
	if ok, err := inst.branches(ctx, out, name); !ok || err != nil {
		return err
	}
	for _, w := range l.weights() {
		c := contest{contestants: []contestant{{name: name, ours: true, command: "client.Branch, then client.Eval in the branch", round: func(ctx context.Context, r *recorder) error {
			return inst.branching(ctx, r, w)
		}}}, cases: []Case{
			{Name: pausedFor + w.name, What: "the longest gap between two beats inside the source: half a millisecond of rest, an evaluation that writes to a hundred pages, and the pause"},
			{Name: branched + w.name, What: "from the request until the branch has computed with a variable of the source"},
		}}
		if w.goal > 0 {
			c.cases[0].Goals = []Goal{{Series: name, AtMost: w.goal}}
		}
		if err := l.hold(ctx, out, c); err != nil {
			return err
		}
	}
	return nil
}

// branches reports whether cells can be branched here; if not, out says why.
func (i *installation) branches(ctx context.Context, out *AxisResult, name string) (ok bool, err error) {
	f, err := i.fork(ctx, templateName, 1, map[string]bool{})
	made := f.cells
	defer func() { err = errors.Join(err, i.remove(ctx, made)) }()
	if err != nil {
		return false, err
	}
	res, err := i.client.Branch(ctx, made[0], api.BranchRequest{Count: 1})
	for _, c := range res.Cells {
		made = append(made, c.ID)
	}
	if e, is := errors.AsType[*api.Error](err); is && e.Kind == api.Kind(cell.Unsupported) {
		out.absent(name, e.Message)
		return false, nil
	}
	return err == nil, err
}

// branching branches a new source of that weight while its heart beats.
func (i *installation) branching(ctx context.Context, r *recorder, w weight) (err error) {
	f, err := i.fork(ctx, templateName, 1, map[string]bool{})
	made := f.cells
	defer func() { err = errors.Join(err, i.remove(ctx, made)) }()
	if err != nil {
		return err
	}
	source := f.cells[0]
	advice := "MADV_NOHUGEPAGE"
	if w.huge {
		advice = "MADV_HUGEPAGE"
	}
	if _, err := i.eval(ctx, source, fmt.Sprintf(weightCode, w.mib, advice)); err != nil {
		return err
	}
	beats := &heart{stop: make(chan struct{}), stopped: make(chan error, 1)}
	go func() { beats.stopped <- beats.beat(ctx, i, source) }()
	time.Sleep(beatsAround)
	res, began, err := i.branchBetween(ctx, source)
	total := 0.0
	if err == nil {
		for _, c := range res.Cells {
			made = append(made, c.ID)
		}
		var v any
		if v, err = i.eval(ctx, made[len(made)-1], "beats + 1"); err == nil && v != 1.0 {
			err = fmt.Errorf("the branch answered %v", v)
		}
		total = began.ms()
	}
	time.Sleep(beatsAround)
	close(beats.stop)
	if err = errors.Join(err, <-beats.stopped); err != nil {
		return err
	}
	r.put(pausedFor+w.name, beats.longest)
	r.part(pausedFor+w.name, "by the keeper's clock", round(res.PauseMS))
	r.part(pausedFor+w.name, "between two beats otherwise, the median", Summarize(beats.gaps).Median)
	r.put(branched+w.name, total)
	return nil
}

// branchBetween branches between two evaluations: while one is under way it is
// refused. It returns when the request began that was not.
func (i *installation) branchBetween(ctx context.Context, source string) (res api.BranchResult, began moment, err error) {
	for range branchTries {
		began = now()
		if res, err = i.client.Branch(ctx, source, api.BranchRequest{Count: 1}); !isConflict(err) {
			break
		}
	}
	return res, began, err
}

func isConflict(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && e.Kind == api.Kind(cell.Conflict)
}

// heart is a heartbeat inside a cell, as it says itself.
type heart struct {
	stop    chan struct{}
	stopped chan error
	longest float64 // ms between two beats
	gaps    []float64
}

// beat lets it beat as fast as it can, until it is stopped. The clock is that of
// the machine, and goes on while the source stands still.
func (h *heart) beat(ctx context.Context, i *installation, cell string) error {
	last := 0.0
	for {
		select {
		case <-h.stop:
			return nil
		default:
		}
		v, err := i.eval(ctx, cell, beatCode)
		if isConflict(err) { // it is just being branched
			time.Sleep(betweenBeat)
			continue
		}
		if err != nil {
			return err
		}
		time.Sleep(betweenBeat)
		at, ok := v.(float64)
		if !ok {
			return fmt.Errorf("a beat said %v", v)
		}
		if at /= 1e6; last > 0 {
			h.gaps = append(h.gaps, round(at-last))
			h.longest = max(h.longest, round(at-last))
		}
		last = at
	}
}
