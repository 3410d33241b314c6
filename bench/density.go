package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

var densityAxis = Axis{
	Name:    "density",
	About:   "idle cells, until 4 GiB are used, and what each takes",
	measure: measureDensity,
	cells:   measureDensity,
}

const (
	densityBudget = 4 << 30 // bytes
	densityBatch  = 100
	densityGoal   = 5000.0
	// The same for cells that have a kernel of their own each; of machines there is
	// no goal.
	densityBatchApart   = 10
	densityGoalOnGvisor = 100.0
	kibPerCell          = 0.5 * 1024 // at birth, all told
	afterWork           = "numpy.ones((512, 512)).sum()"
	caseIdle            = "idle cells"
	caseBirth           = "memory at birth"
	caseWorked          = "memory after work"
	settleFor           = 2 * time.Second // what was freed or made behind the last answer
)

func measureDensity(ctx context.Context, l *lab, out *AxisResult) error {
	const name = "fork"
	// Forks that wait in a pool would be counted, and no cell uses them.
	_, inst, err := l.warmed(ctx, out, name, noPool)
	if inst == nil || err != nil {
		return err
	}
	defer inst.close(ctx)
	seen := map[string]bool{}
	// What the first forks of a daemon take beside their own is not theirs.
	f, err := inst.fork(ctx, templateName, min(10, l.most()), seen)
	if err = errors.Join(err, inst.remove(ctx, f.cells)); err != nil {
		return err
	}
	d := density{inst: inst, seen: seen, settle: settleFor, batch: densityBatch, goal: densityGoal, kib: kibPerCell}
	switch l.backend {
	case gvisor:
		d.batch, d.goal, d.kib = densityBatchApart, densityGoalOnGvisor, 0
	case microvm:
		d.batch, d.goal, d.kib = densityBatchApart, 0, 0
	}
	return d.measure(ctx, l, out)
}

// measure measures, and removes what it made.
func (d *density) measure(ctx context.Context, l *lab, out *AxisResult) error {
	if l.quick {
		d.settle /= 4
	}
	err := d.fill(ctx, l, out)
	if err == nil {
		err = d.work(ctx, out)
	}
	return errors.Join(err, d.inst.remove(ctx, d.cells))
}

// most is the largest number of cells.
func (l *lab) most() int {
	if l.limit > 0 {
		return l.limit
	}
	return 20_000
}

// density is the cells that were made, and the memory that there was before.
type density struct {
	inst   *installation
	seen   map[string]bool
	batch  int     // how many at a time
	goal   float64 // how many fit into 4 GiB; 0: no goal
	kib    float64 // for one at birth; 0: no goal
	settle time.Duration
	cells  []string
	before int64
	used   int64
}

// fill makes cells until the memory is used, or the limit reached, or no more
// can be made.
func (d *density) fill(ctx context.Context, l *lab, out *AxisResult) (err error) {
	if d.before, err = d.available(ctx); err != nil {
		return err
	}
	began := now()
	why := ""
	for why == "" {
		f, err := d.inst.fork(ctx, templateName, min(d.batch, l.most()-len(d.cells)), d.seen)
		d.cells = append(d.cells, f.cells...)
		if err != nil {
			if len(d.cells) < d.batch {
				return err
			}
			why = "no more could be made: " + firstLine(err.Error())
			break
		}
		l.log("density: %d cells", len(d.cells))
		now, err := memAvailable()
		if err != nil {
			return err
		}
		switch {
		case d.before-now >= densityBudget:
			why = "4 GiB were used"
		case len(d.cells) >= l.most():
			why = fmt.Sprintf("a limit of %d was given", l.most())
		}
	}
	took := began.ms()
	now, err := d.available(ctx)
	if err != nil {
		return err
	}
	d.used = d.before - now
	each := float64(d.used) / float64(len(d.cells)) / 1024
	out.note("%d cells were made in %s, each of which had answered once; %s were used; it ended because %s", len(d.cells), number(took, "ms"), bytesWord(d.used), why)
	fit := float64(densityBudget) / 1024 / each
	goals := []Goal{{Series: forkNow, AtMost: d.kib}}
	if d.kib == 0 {
		goals = nil
	}
	out.single(caseIdle, "cells that have answered once and are idle, in 4 GiB by the fall of MemAvailable; where fewer were made, by what each took", "cells", round(fit), nil)
	out.single(caseBirth, "the fall of MemAvailable over the number of cells, everything included: pages, page tables, network namespace, mounts, what daemon and keeper hold", "KiB", round(each), goals)
	switch {
	case d.goal == 0:
	case fit < d.goal:
		out.note("the goal of at least %g idle cells in 4 GiB is not met", d.goal)
	default:
		out.note("the goal of at least %g idle cells in 4 GiB is met", d.goal)
	}
	return nil
}

// work lets each cell compute, and looks how much more they have then.
func (d *density) work(ctx context.Context, out *AxisResult) error {
	some := d.cells[:min(len(d.cells), 1000)] // the rest would do the same
	before, err := d.available(ctx)
	if err != nil {
		return err
	}
	err = each(4, slices.Values(some), func(id string) error {
		v, err := d.inst.eval(ctx, id, afterWork)
		if err == nil && v != 262144.0 {
			err = fmt.Errorf("%s is %v", afterWork, v)
		}
		return err
	})
	if err != nil {
		return err
	}
	now, err := d.available(ctx)
	if err != nil {
		return err
	}
	more := float64(before-now) / float64(len(some)) / 1024
	each := float64(d.used)/float64(len(d.cells))/1024 + more
	out.single(caseWorked, fmt.Sprintf("the same after %s in %d of them", afterWork, len(some)), "KiB", round(each), nil)
	// Nothing that was made before is broken by how many there are.
	for _, id := range []string{d.cells[0], d.cells[len(d.cells)-1]} {
		if _, err := d.inst.eval(ctx, id, "1+1"); err != nil {
			return err
		}
	}
	return nil
}

// available is how much memory can be had when everything has settled.
func (d *density) available(ctx context.Context) (int64, error) {
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-time.After(d.settle):
	}
	return memAvailable()
}

// memAvailable is the kernel's estimate of what can be used, in bytes.
func memAvailable() (int64, error) {
	kb, err := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", "MemAvailable", ":"), " kB"), 10, 64)
	return kb << 10, err
}

// single adds a case that is one value.
func (a *AxisResult) single(name, what, unit string, v float64, goals []Goal) {
	if goals == nil {
		goals = []Goal{}
	}
	a.Cases = append(a.Cases, Case{Name: name, What: what, Unit: unit, Goals: goals, Series: []Series{
		{Name: forkNow, Ours: true, Command: "client.ForkTemplate (" + noPool + ")", Summary: Summary{Median: v, P90: v, Min: v, Max: v}, Samples: []float64{v}}}})
}
