package run

import (
	"context"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	// idleTicks is how often in its time an idle run is looked at, at most once in idleTick.
	idleTicks = 20
	idleTick  = 500 * time.Millisecond
	// idleCPU is the part of a processor that a cell may use while nothing happens in it: programs at
	// a terminal wake up for timers.
	idleCPU = 0.03
)

// doing is what is seen of a run that works.
type doing struct {
	output, events, cpu int64 // bytes, number, microseconds
}

// pauseIdle pauses the cell of a run each time that nothing has happened in it for as long as its run
// says: no output, no event (each request to a network is one), hardly any use of processors, no
// client with input, and no other command. It returns when ctx ends.
func (x *execution) pauseIdle(ctx context.Context) {
	period, id := x.Run.In.IdlePause, x.Cell.ID
	free := func() bool { return !x.Live.fed() }
	awake := func() bool {
		c, err := x.m.cfg.Records.Cell(id)
		return err == nil && c.State == cell.Running
	}
	watchIdle(ctx, period, func() (doing, bool) {
		if !free() || !awake() {
			return doing{}, false
		}
		return x.doing(ctx)
	}, func() {
		if err := x.m.cfg.Sleep(ctx, id, free); err == nil {
			x.m.cfg.Log.Info("an idle cell is paused", "cell", id, "run", x.Run.ID, "after", period)
		}
	})
}

// watchIdle calls sleep each time that look has seen no work for a period, until ctx ends. What can't
// be seen counts as work.
func watchIdle(ctx context.Context, period time.Duration, look func() (doing, bool), sleep func()) {
	every := max(period/idleTicks, idleTick)
	tick := time.NewTicker(every)
	defer tick.Stop()
	last, seen := look()
	for since := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, ok := look()
		used := now.cpu - last.cpu // less than nothing: a process that used some has ended
		busy := !ok || !seen || now.output != last.output || now.events != last.events || used < 0 || float64(used) > idleCPU*float64(every.Microseconds())
		last, seen = now, ok
		if busy {
			since = time.Now()
		} else if time.Since(since) >= period {
			sleep()
			since = time.Now()
		}
	}
}

// doing looks at what the run does. ok is false when that can't be seen.
func (x *execution) doing(ctx context.Context) (d doing, ok bool) {
	st, err := x.Proc.Status(ctx)
	if err != nil {
		return d, false
	}
	use, err := x.Inst.Stats(ctx)
	if err != nil || use.CPU == 0 { // it is not counted here
		return d, false
	}
	d.output, d.cpu = st.Stdout.Bytes, use.CPU
	d.events = st.Events
	return d, true
}

// fed reports whether a client that feeds the run's input is attached.
func (l *Live) fed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clients > 0
}
