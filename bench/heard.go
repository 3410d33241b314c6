package bench

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

// A machine's clocks stand still when it does, so what a heart in it says of its own
// gaps is no measure of a pause. Its beats are timed here, as they arrive.

// soundCode is a heart that is heard, about every millisecond.
const soundCode = `import os, time
while True:
    time.sleep(0.001)
    os.write(1, b".")
`

// heard are the beats of a heart, as they arrive.
type heard struct {
	end func() // returns when no goroutine listens any more

	mu   sync.Mutex // guards what follows
	last time.Time
	gaps []float64 // between two beats, in ms, since they were asked for
	err  error     // why none is heard any more
}

// beat notes one that arrives now.
func (h *heard) beat(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.last.IsZero() {
		h.gaps = append(h.gaps, round(toMS(now.Sub(h.last))))
	}
	h.last = now
}

func (h *heard) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
}

// beaten is the longest gap since it was asked before, and the median of all, in ms.
// A beat that is late is part of it.
func (h *heard) beaten(context.Context) (longest, median float64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil && h.last.IsZero() {
		h.err = errors.New("the heart was never heard")
	}
	if h.err != nil {
		return 0, 0, h.err
	}
	gaps := append(h.gaps, round(toMS(time.Since(h.last))))
	h.gaps = nil
	slices.Sort(gaps)
	return gaps[len(gaps)-1], gaps[len(gaps)/2], nil
}

// awaitBeat waits for the first one.
func (h *heard) awaitBeat(ctx context.Context) error {
	for until := time.Now().Add(bootPatience); ; {
		h.mu.Lock()
		there, err := !h.last.IsZero(), h.err
		h.mu.Unlock()
		switch {
		case there || err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Now().After(until):
			return errors.New("the heart does not begin to beat")
		}
		time.Sleep(time.Millisecond)
	}
}

// listen calls next for one beat after the other until it fails, or end is called,
// which has to make next return.
func listen(ctx context.Context, next func(context.Context) error, end func()) *heard {
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	h := &heard{end: func() { cancel(); end(); <-over }}
	go func() {
		defer close(over)
		for {
			err := next(ctx)
			if err != nil {
				h.fail(err)
				return
			}
			h.beat(time.Now())
		}
	}()
	return h
}

// hear starts a heart in a cell, and listens to it.
func (i *installation) hear(ctx context.Context, p python, cell string) (*heard, error) {
	x, err := i.client.StartExec(ctx, cell, api.ExecRequest{Command: []string{p.path, "-u", "-c", soundCode}, Attach: true})
	if err != nil {
		return nil, err
	}
	at, err := i.client.AttachExec(ctx, x.ID, client.AttachOptions{Input: true})
	if err != nil {
		return nil, err
	}
	h := listen(ctx, func(ctx context.Context) error {
		for {
			f, err := at.Recv(ctx)
			switch {
			case err != nil:
				return err
			case f.Type == api.FrameStdout:
				return nil
			case f.Type == api.FrameResult || f.Type == api.FrameError:
				return errors.New("the heart has stopped")
			}
		}
	}, func() { at.Close() })
	if err := h.awaitBeat(ctx); err != nil {
		h.end()
		return nil, err
	}
	return h, nil
}

// hear listens to a machine, which answers one question after the other.
func (m *qemuMachine) hear(ctx context.Context) *heard {
	return listen(ctx, func(ctx context.Context) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		time.Sleep(time.Millisecond)
		return m.ask(ctx, bootPatience, "ping b", "pong b")
	}, func() {})
}
