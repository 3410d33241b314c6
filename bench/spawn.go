package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

var spawnAxis = Axis{
	Name:    "spawn",
	About:   "cells out of a warm interpreter, until the last of them has returned its own result",
	measure: measureSpawn,
	cells:   measureSpawn,
}

// The contestants.
const (
	forkAhead   = "fork"          // some were made ahead, as a user finds it
	forkNow     = "fork, no pool" // none were
	coldStart   = "python3"       // the same without any isolation
	peersAtAll  = 100             // of more, peers take too long
	peersSparse = 100             // of so many cells, peers take minutes
	peersEvery  = 3
	noPool      = "PANDO_POOL=0"  // what tells a daemon to make none ahead
	filling     = 4 * time.Minute // a pool may take to be full
	steady      = 5 * time.Second // a pool that has not grown for so long is full
	stepPool    = 50 * time.Millisecond
)

// spawnGoals are those of the design, in ms, by backend and number of cells.
var spawnGoals = map[string]map[int][]Goal{
	"":      {1: {{Series: forkAhead, AtMost: 3}}, 100: {{Series: forkAhead, AtMost: 60}}, 1000: {{Series: forkAhead, AtMost: 1000}}},
	microvm: {100: {{Series: forkAhead, AtMost: 2500}}},
	gvisor:  {100: {{Series: forkAhead, AtMost: 2500}, {Series: forkNow, AtMost: 5500}}},
}

func measureSpawn(ctx context.Context, l *lab, out *AxisResult) error {
	ours := []*spawner{{name: forkAhead}, {name: forkNow, env: noPool}}
	var p python
	for _, s := range ours {
		var err error
		if p, s.inst, err = l.warmed(ctx, out, s.name, s.env); s.inst == nil || err != nil {
			return err
		}
		defer s.inst.close(ctx)
		s.seen = map[string]bool{}
	}
	var peers []spawnPeer
	switch l.backend {
	case gvisor:
		peer, end, err := l.runscSpawn(ctx, out, ours[0].inst, p)
		if err != nil {
			return err
		}
		defer end()
		peers = append(peers, peer...)
	case microvm:
		var err error
		if peers, err = l.qemuSpawn(ctx, out); err != nil {
			return err
		}
	default:
		cold, err := l.coldPeers(ctx, out, ours[0].inst, p)
		if err != nil {
			return err
		}
		for i := range cold {
			peers = append(peers, cold[i].contestant)
		}
	}
	for _, n := range l.n {
		if l.backend != "" && n > peersAtAll {
			out.note("%s were not measured: each has a kernel of its own", cells(n))
			continue
		}
		if err := l.spawning(ctx, out, ours, peers, n); err != nil {
			return err
		}
	}
	out.note("each answer was compared with what numpy must compute, and its two random numbers with those of all cells before")
	out.note("peers start as many at once as there are processors, and at most %d", l.peersAtAll())
	return nil
}

func cells(n int) string {
	if n == 1 {
		return "1 cell"
	}
	return fmt.Sprintf("%d cells", n)
}

// spawnPeer is a peer as a contestant in the case of n cells.
type spawnPeer func(name string, n int) contestant

// spawning is the contest of n cells.
func (l *lab) spawning(ctx context.Context, out *AxisResult, ours []*spawner, peers []spawnPeer, n int) error {
	name := cells(n)
	they := map[string]string{"": "programs that import it, until the last has ended", gvisor: "copies of one that has imported it, until the last has said something",
		microvm: "machines, until the guest of the last has answered"}[l.backend]
	c := contest{cases: []Case{{Name: name, What: fmt.Sprintf("%s with numpy from the request to the last distinct result and the receipt, by the client; peers: %s", name, they),
		Goals: slices.Clone(spawnGoals[l.backend][n])}}}
	for _, s := range ours {
		s.n, s.hits, s.forks = n, 0, 0
		x := s.contestant(l, name)
		if s.env != "" && l.backend != "" && n >= peersSparse { // which takes minutes, too
			x.every = peersEvery
			out.note("%s, %s: took part in every %drd round", name, s.name, peersEvery)
		}
		c.contestants = append(c.contestants, x)
	}
	if n <= l.peersAtAll() {
		for _, p := range peers {
			x := p(name, n)
			if n >= peersSparse {
				x.every = peersEvery
				out.note("%s: peers took part in every %drd round", name, peersEvery)
			}
			c.contestants = append(c.contestants, x)
		}
	}
	for i := range c.contestants {
		round := c.contestants[i].round
		c.contestants[i].round = func(ctx context.Context, r *recorder) error {
			if err := l.allFilled(ctx, ours); err != nil {
				return err
			}
			return round(ctx, r)
		}
	}
	if err := l.hold(ctx, out, c); err != nil {
		return err
	}
	for _, s := range ours {
		out.note("%s, %s: %d of %d cells were made ahead", name, s.name, s.hits, s.forks)
	}
	return nil
}

// peersAtAll is how many cells peers make at most.
func (l *lab) peersAtAll() int {
	if l.backend == microvm {
		return machinesAtAll
	}
	return peersAtAll
}

// allFilled waits until no pool is being filled, which would take the processors of the
// contestant that is being measured.
func (l *lab) allFilled(ctx context.Context, ours []*spawner) error {
	for _, s := range ours {
		if s.env == "" {
			if err := s.inst.filled(ctx, s.n); err != nil {
				return err
			}
		}
	}
	return l.rest(ctx)
}

// spawner is an installation with a template.
type spawner struct {
	name  string
	env   string
	inst  *installation
	seen  map[string]bool
	n     int
	hits  int
	forks int
}

func (s *spawner) contestant(l *lab, name string) contestant {
	command := "client.ForkTemplate"
	if s.env != "" {
		command += " (" + s.env + ")"
	}
	return contestant{name: s.name, ours: true, command: command, round: func(ctx context.Context, r *recorder) error {
		f, err := s.inst.fork(ctx, templateName, s.n, s.seen)
		if err == nil {
			r.put(name, f.ms)
			r.part(name, "the last cell ready, by the daemon's clock", f.ready)
			r.part(name, "last answer", f.last)
			if r.n > 0 {
				s.hits, s.forks = s.hits+f.hits, s.forks+s.n
			}
		}
		return errors.Join(err, s.inst.remove(ctx, f.cells))
	}}
}

// filled waits until n cells wait ahead, or no more come.
func (i *installation) filled(ctx context.Context, n int) error {
	ready, since, until := -1, now(), time.Now().Add(filling)
	for time.Now().Before(until) {
		t, err := i.client.Template(ctx, templateName)
		if err != nil {
			return err
		}
		if t.Ready != ready {
			ready, since = t.Ready, now()
		}
		if ready >= n || since.ms() > toMS(steady) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(stepPool):
		}
	}
	return nil
}

// coldPeer starts the interpreter anew each time.
type coldPeer struct {
	name, command string
	lacks         []string
	workers       []func(context.Context) ([]byte, error) // each is used by one at a time
}

func (p *coldPeer) contestant(name string, n int) contestant {
	return contestant{name: p.name, command: p.command, lacks: p.lacks, against: forkAhead, round: func(ctx context.Context, r *recorder) error {
		said := make([][]byte, n)
		workers := make(chan func(context.Context) ([]byte, error), len(p.workers))
		for _, w := range p.workers {
			workers <- w
		}
		var mu sync.Mutex // guards said
		began := now()
		err := each(min(n, len(p.workers)), slices.Values(numbers(n)), func(k int) error {
			w := <-workers
			b, err := w(ctx)
			workers <- w
			mu.Lock()
			defer mu.Unlock()
			said[k] = b
			return err
		})
		took := began.ms()
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, b := range said {
			v, err := decode[any](b)
			if err == nil {
				err = fresh(v, seen, string(b))
			}
			if err != nil {
				return err
			}
		}
		r.put(name, took)
		return nil
	}}
}

func numbers(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// coldPeers are those that are installed.
func (l *lab) coldPeers(ctx context.Context, out *AxisResult, inst *installation, p python) (list []coldPeer, err error) {
	dir, err := l.tree(100, 100)
	if err != nil {
		return nil, err
	}
	at := runtime.GOMAXPROCS(0)
	bare := command{dir: dir, env: p.env, args: []string{p.path, "-c", coldCode}}
	list = append(list, coldPeer{name: coldStart, command: bare.words(), lacks: []string{"any isolation"}, workers: slices.Repeat([]func(context.Context) ([]byte, error){bare.run}, at)})
	typed, once, err := l.bwrapOnce(ctx, out, inst, dir, p.path, "-c", coldCode)
	if err != nil {
		return nil, err
	}
	if once != nil {
		list = append(list, coldPeer{name: bwrapName, command: typed, lacks: bwrapLacks, workers: slices.Repeat([]func(context.Context) ([]byte, error){once}, at)})
	}
	const crun = "crun run"
	c := coldPeer{name: crun, command: "crun --cgroup-manager=disabled --root STATE run --bundle BUNDLE ID (the same)"}
	for range at {
		x, err := l.crun(ctx, out, inst, dir, crun, p.path, "-c", coldCode)
		if err != nil {
			return nil, err
		}
		if x == nil {
			return list, nil
		}
		c.lacks = x.lacks
		c.workers = append(c.workers, func(ctx context.Context) ([]byte, error) {
			x.runs++
			return x.command("run", "--bundle", x.bundle, fmt.Sprintf("run%d", x.runs)).run(ctx)
		})
	}
	return append(list, c), nil
}
