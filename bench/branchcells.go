package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// The source of a branch is a cell with an interpreter of a given memory size. A thread of
// that interpreter prints a heartbeat: the whole process is copied, so the copies print too.
//

const (
	// heartCode makes memory of which every page was written, and starts a heart
	// that writes to one of its pages and notes when, about every millisecond.
	heartCode = `import mmap, random, threading, time
size = max(%d << 20, 4096)
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, size, 4096): memory[at] = 1
gaps, x = [], 41
def beat():
    last = time.monotonic_ns()
    while True:
        time.sleep(0.001)
        memory[random.randrange(size)] = 2
        at = time.monotonic_ns()
        note(at)
        gaps.append((at - last) / 1e6)
        last = at
`
	// insideCode is what the heart of a cell does beside, and how it is asked.
	insideCode = `
def note(at): pass
def beaten():
    n = len(gaps)
    seen = sorted(gaps[:n])
    del gaps[:n]
    return [seen[-1], seen[n // 2]]
threading.Thread(target=beat, daemon=True).start()
`
	// outsideCode is the same program without a client.
	outsideCode = `
import os
def note(at): os.write(1, b"%d\n" % at)
beat()
`
	rowCase     = "in a row, "
	rowOf       = 10
	rowFrom     = 2   // the pause of the last against that of this one
	rowGoal     = 2.0 // is at most
	pauseGoal16 = 40.0
	// pauseGoalMachine is that of a machine, in ms. What was written while its memory
	// was copied is to take no longer than at 3 GiB/s: a page a beat, 4 MiB a second.
	pauseGoalMachine = 10 + 1.3
	forWeight        = 6 // times its weight must be available: source and copy, ours and the peer's, and the images
)

// burden is how much memory the interpreter of a source has.
type burden struct {
	name string
	mib  int
	goal float64
}

func (l *lab) burdens() []burden {
	list := []burden{{"16 MB", 0, pauseGoal16}, {"256 MB", 256, 0}, {"1 GB", 1024, 0}, {"1.5 GiB", 1536, 0}}
	if l.backend == microvm {
		for i := range list {
			list[i].goal = pauseGoalMachine
		}
	}
	if l.quick {
		return list[:2]
	}
	return list
}

func measureBranchOfCells(ctx context.Context, l *lab, out *AxisResult) error {
	const name = "client.Branch"
	p, inst, err := l.inhabited(ctx, out, name)
	if inst == nil || err != nil {
		return err
	}
	defer inst.close(ctx)
	for _, w := range l.burdens() {
		if free, err := memAvailable(); err != nil || free < int64(forWeight*w.mib)<<20 {
			out.note("%s was not measured: there is no memory for it", w.name)
			continue
		}
		if err := inst.branchesOf(ctx, l, out, p, name, w); err != nil {
			return err
		}
	}
	return inst.branchesInRow(ctx, l, out, p, name)
}

// branchesOf measures the branches of one source, and beside it those of a
// container.
func (i *installation) branchesOf(ctx context.Context, l *lab, out *AxisResult, p python, name string, w burden) (err error) {
	const source = "source"
	beaten, quiet, err := i.beating(ctx, p, source, w)
	if err != nil {
		return err
	}
	defer func() { quiet(); err = errors.Join(err, i.remove(ctx, []string{source})) }()
	list := []contestant{{name: name, ours: true, command: "client.Branch, then client.Eval in the branch", round: func(ctx context.Context, r *recorder) error {
		_, err := i.branchBeating(ctx, r, source, w.name, beaten)
		return err
	}}}
	x, end, err := l.branchPeer(ctx, out, i, p, w)
	if err != nil {
		return err
	}
	defer end()
	list = append(list, x...)
	c := contest{contestants: list, cases: []Case{
		{Name: pausedFor + w.name, What: pauses[l.backend]},
		{Name: branched + w.name, What: "from the request until the branch has computed with a variable of the source; " + branchPeers[l.backend]},
	}}
	if w.goal > 0 {
		c.cases[0].Goals = []Goal{{Series: name, AtMost: w.goal}}
	}
	return l.hold(ctx, out, c)
}

// branchPeers say what peers do until they are there, by backend.
var branchPeers = map[string]string{
	gvisor:  "runsc: checkpoint and restore, one after the other, until the copy's heart has beaten",
	microvm: "qemu: the migration to a file and from it, one after the other, until the copy's guest has answered",
}

// pauses say how they are measured, by backend.
var pauses = map[string]string{
	gvisor:  "the longest gap between two beats inside the source, which writes to its memory and says when, about every millisecond",
	microvm: "the longest gap between two beats of a heart inside the source, as they arrive outside (a machine's own clocks stand still with it), about every millisecond; the source writes to its memory",
}

// branchPeer is what is branched beside.
func (l *lab) branchPeer(ctx context.Context, out *AxisResult, i *installation, p python, w burden) ([]contestant, func(), error) {
	if l.backend == microvm {
		return l.qemuBranch(ctx, out, w)
	}
	return l.runscBranch(ctx, out, i, p, w)
}

// beaten is the longest gap between two beats since it was asked last, and the median
// of all, in ms.
type beaten func(ctx context.Context) (longest, median float64, err error)

// beating makes a cell with a heart. quiet ends listening to it.
func (i *installation) beating(ctx context.Context, p python, name string, w burden) (_ beaten, quiet func(), err error) {
	memory := "8G"
	if i.l.backend == microvm { // of a machine, all that it has is looked at
		memory = fmt.Sprint(w.asked(), "M")
	}
	if err := i.living(ctx, p, name, "--memory", memory); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, i.remove(ctx, []string{name}))
		}
	}()
	if _, err := i.eval(ctx, name, fmt.Sprintf(heartCode, w.mib)+insideCode); err != nil {
		return nil, nil, err
	}
	if i.l.backend != microvm {
		return func(ctx context.Context) (float64, float64, error) { return i.beaten(ctx, name) }, func() {}, nil
	}
	h, err := i.hear(ctx, p, name)
	if err != nil {
		return nil, nil, err
	}
	return h.beaten, h.end, nil
}

// branchBeating branches a source with a heart, and records how long that stood
// still.
func (i *installation) branchBeating(ctx context.Context, r *recorder, source, what string, beaten beaten) (pause float64, err error) {
	time.Sleep(beatsAround)
	if _, _, err := beaten(ctx); err != nil { // what was before is not of this branch
		return 0, err
	}
	time.Sleep(beatsAround)
	began := now()
	made, res, err := i.branchOf(ctx, source, 1)
	defer func() { err = errors.Join(err, i.remove(ctx, made)) }()
	if err == nil {
		err = i.computes(ctx, made[0], "x + 1", 42.0)
	}
	total := began.ms()
	if err != nil {
		return 0, err
	}
	time.Sleep(beatsAround)
	pause, otherwise, err := beaten(ctx)
	if err != nil || what == "" {
		return pause, err
	}
	r.put(pausedFor+what, pause)
	r.part(pausedFor+what, "by the daemon's clock", round(res.PauseMS))
	r.part(pausedFor+what, "between two beats otherwise, the median", otherwise)
	r.put(branched+what, total)
	r.part(branched+what, "until the branch was there, by the daemon's clock", round(res.TookMS))
	return pause, nil
}

// beaten asks the heart itself.
func (i *installation) beaten(ctx context.Context, source string) (longest, median float64, err error) {
	v, err := i.eval(ctx, source, "beaten()")
	if err != nil {
		return 0, 0, err
	}
	list, _ := v.([]any)
	if len(list) != 2 {
		return 0, 0, fmt.Errorf("the heart said %v", v)
	}
	longest, _ = list[0].(float64)
	median, _ = list[1].(float64)
	return round(longest), round(median), nil
}

// branchesInRow measures whether the tenth branch of a source stops it for longer
// than an early one.
func (i *installation) branchesInRow(ctx context.Context, l *lab, out *AxisResult, p python, name string) error {
	const source = "row"
	at := func(k int) string { return fmt.Sprintf("%sbranch %d", rowCase, k) }
	c := contest{contestants: []contestant{{name: name, ours: true, command: "client.Branch of one source, ten times", round: func(ctx context.Context, r *recorder) (err error) {
		beaten, quiet, err := i.beating(ctx, p, source, burden{})
		if err != nil {
			return err
		}
		made := []string{source}
		defer func() { quiet(); err = errors.Join(err, i.remove(ctx, made)) }()
		for k := 1; k <= rowOf; k++ {
			if _, _, err := beaten(ctx); err != nil {
				return err
			}
			one, res, err := i.branchOf(ctx, source, 1)
			made = append(made, one...)
			if err != nil {
				return fmt.Errorf("branch %d of one source: %w", k, err)
			}
			pause, _, err := beaten(ctx)
			if err != nil {
				return err
			}
			if k == rowFrom || k == rowOf {
				r.put(at(k), pause)
				r.part(at(k), "by the daemon's clock", round(res.PauseMS))
			}
		}
		return i.computes(ctx, made[len(made)-1], "x + 1", 42.0)
	}}}, cases: []Case{
		{Name: at(rowFrom), What: "16 MB: the pause by heartbeat of one of ten branches in a row, all of which live"},
		{Name: at(rowOf), What: "the same"},
	}}
	if err := l.hold(ctx, out, c); err != nil {
		return err
	}
	out.relate("in a row", fmt.Sprintf("%s over %s", at(rowOf), at(rowFrom)), name, at(rowOf), at(rowFrom), rowGoal)
	return nil
}

// runscBranch is the same with `runsc checkpoint` and `runsc restore`: a container
// with the same heart, which prints each beat.
func (l *lab) runscBranch(ctx context.Context, out *AxisResult, inst *installation, p python, w burden) ([]contestant, func(), error) {
	const name = "runsc checkpoint, restore"
	peer, source, err := l.runscPython(ctx, out, inst, p, name, fmt.Sprintf(heartCode, w.mib)+outsideCode)
	if source == nil || err != nil {
		return nil, func() {}, err
	}
	round := func(ctx context.Context, r *recorder) (err error) {
		time.Sleep(beatsAround)
		before, err := source.size()
		if err != nil {
			return err
		}
		time.Sleep(beatsAround)
		began := now()
		image, err := source.checkpoint(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(image)) }()
		c, err := peer.start(ctx, "restore", "--image-path", image)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.end(context.WithoutCancel(ctx))) }()
		if _, err := c.said(ctx, 0, 1); err != nil {
			return err
		}
		total := began.ms()
		time.Sleep(beatsAround)
		gaps, err := source.gaps(ctx, before)
		if err != nil {
			return err
		}
		r.put(pausedFor+w.name, slices.Max(gaps))
		r.put(branched+w.name, total)
		return nil
	}
	return []contestant{{name: name, against: "client.Branch", round: round, command: runscWords + "checkpoint --leave-running --compression=none --image-path DIR ID, runsc restore --detach --image-path DIR --bundle BUNDLE NEW",
			lacks: slices.Concat([]string{"files are not of that instant, and shared by source and copy", lacksEvidence, "the copy has the source's random numbers, names and times"}, peer.lacks)}},
		func() { source.end(context.WithoutCancel(ctx)) }, nil
}

// runscPython starts a program of Python in a container that lives, and waits for
// its first line. The container is nil, and that said in out, where it can't be.
func (l *lab) runscPython(ctx context.Context, out *AxisResult, inst *installation, p python, name, code string) (*runscPeer, *runscContainer, error) {
	dir, err := l.tree(100, 100)
	if err != nil {
		return nil, nil, err
	}
	peer, err := l.runscIn(ctx, out, inst, dir, name, "restore", p.env, p.path, "-u", "-c", code)
	if peer == nil || err != nil {
		return nil, nil, err
	}
	c, err := peer.start(ctx, "run")
	if err == nil {
		if _, err = c.said(ctx, 0, 1); err != nil {
			err = errors.Join(err, c.end(context.WithoutCancel(ctx)))
		}
	}
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	if err != nil {
		out.absent(name, firstLine("it failed: "+err.Error()))
		return nil, nil, nil
	}
	return peer, c, nil
}
