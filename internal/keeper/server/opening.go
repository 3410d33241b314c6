package server

import (
	"time"

	"golang.org/x/sys/unix"
)

// Programs that draw a screen throw away what was typed before: openingLimit is how long after its
// start input is held back for that, at most, and openingRest how long the screen has to be at rest.
const (
	openingLimit = 20 * time.Second
	openingRest  = 300 * time.Millisecond
	openingTick  = 50 * time.Millisecond
)

// awaitScreen waits until a program has drawn its screen: it reads its terminal byte by byte, has
// written something, and nothing more for a while. It gives up at until, and when over is closed.
func awaitScreen(raw func() bool, written func() int64, over <-chan struct{}, until time.Time) {
	tick := time.NewTicker(openingTick)
	defer tick.Stop()
	last, since := int64(0), time.Now()
	for now := time.Now(); now.Before(until); now = time.Now() {
		if n := written(); n != last {
			last, since = n, now
		}
		if last > 0 && now.Sub(since) >= openingRest && raw() {
			return
		}
		select {
		case <-tick.C:
		case <-over:
			return
		}
	}
}

// opens holds input back until a program that was just started has drawn its screen, if it does
// that.
func (p *Proc) opens() {
	if !p.start.Screen {
		return
	}
	p.opening.Do(func() {
		written := func() int64 {
			p.stdout.mu.Lock()
			defer p.stdout.mu.Unlock()
			return p.stdout.bytes
		}
		awaitScreen(p.raw, written, p.done, p.snapshot().Started.Add(openingLimit))
	})
}

// raw reports whether the process reads its terminal byte by byte. Of a terminal that the cell's
// own kernel has that is not known, and true.
func (p *Proc) raw() (is bool) {
	c, err := p.started.Terminal.SyscallConn()
	if err != nil {
		return true
	}
	is = true
	c.Control(func(fd uintptr) {
		if t, err := unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil {
			is = t.Lflag&unix.ICANON == 0
		}
	})
	return is
}
