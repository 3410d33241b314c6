package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
)

// spawnGoalsOfCells are those of the design for gVisor without a pool, in ms, by
// number of cells.
var spawnGoalsOfCells = map[int]float64{100: 5500}

// answersAtOnce is how many cells are asked at a time.
const answersAtOnce = 8

// measureSpawnOfCells measures how long it takes to make many cells of one that
// lives, with all that runs in it, until each has answered for itself.
func measureSpawnOfCells(ctx context.Context, l *lab, out *AxisResult) error {
	const name, source = "branch", "source"
	p, inst, err := l.inhabited(ctx, out, name)
	if inst == nil || err != nil {
		return err
	}
	defer inst.close(ctx)
	if err := inst.living(ctx, p, source); err != nil {
		return err
	}
	if _, err := inst.eval(ctx, source, setupCode); err != nil {
		return err
	}
	seen := map[string]bool{}
	peer, end, err := l.runscSpawn(ctx, out, inst, p)
	if err != nil {
		return err
	}
	defer end()
	for _, n := range l.n {
		if n > peersAtAll {
			out.note("%s were not measured: each has a kernel of its own", cells(n))
			continue
		}
		what := cells(n)
		c := contest{contestants: []contestant{{name: name, ours: true, command: "client.Branch, then client.Eval in each branch", round: func(ctx context.Context, r *recorder) (err error) {
			began := now()
			made, res, err := inst.branchOf(ctx, source, n)
			defer func() { err = errors.Join(err, inst.remove(ctx, made)) }()
			if err == nil {
				err = inst.answer(ctx, made, seen)
			}
			if err == nil {
				r.put(what, began.ms())
				r.part(what, "the branches were there, by the daemon's clock", round(res.TookMS))
				r.part(what, "pause of the source", round(res.PauseMS))
			}
			return err
		}}}, cases: []Case{{Name: what, What: "from the request until the last of them has returned its own result; runsc: restores of an image that was made before, until the last copy has said something"}}}
		if g, ok := spawnGoalsOfCells[n]; ok {
			c.cases[0].Goals = []Goal{{Series: name, AtMost: g}}
		}
		if peer != nil {
			x := peer(what, n)
			if n >= peersSparse {
				x.every = peersEvery
				out.note("%s: peers took part in every %drd round", what, peersEvery)
			}
			c.contestants = append(c.contestants, x)
		}
		if err := l.hold(ctx, out, c); err != nil {
			return err
		}
	}
	out.note("each answer was compared with what numpy must compute, and its two random numbers with those of all cells before")
	out.note("no cell was made ahead")
	return nil
}

// answer lets each cell answer, and checks that the answers are right and no two
// are the same.
func (i *installation) answer(ctx context.Context, made []string, seen map[string]bool) error {
	var mu sync.Mutex // guards seen
	return each(answersAtOnce, slices.Values(made), func(id string) error {
		v, err := i.eval(ctx, id, answerCode)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		return fresh(v, seen, fmt.Sprint(v))
	})
}

// runscSpawn is `runsc restore` as a contestant, as many at once as there are
// processors. It is nil, and said in out, where it can't be.
func (l *lab) runscSpawn(ctx context.Context, out *AxisResult, inst *installation, p python) (func(what string, n int) contestant, func(), error) {
	const name = "runsc restore"
	const code = "import numpy, time\nwhile True: print(numpy.zeros(5).tolist(), flush=True); time.sleep(0.02)"
	peer, source, err := l.runscPython(ctx, out, inst, p, name, code)
	if source == nil || err != nil {
		return nil, func() {}, err
	}
	end := func() { source.end(context.WithoutCancel(ctx)) }
	image, err := source.checkpoint(ctx)
	if err != nil {
		out.absent(name, firstLine("it failed: "+err.Error()))
		return nil, end, nil
	}
	return func(what string, n int) contestant {
		return contestant{name: name, against: "branch", command: runscWords + "restore --detach --image-path DIR --bundle BUNDLE ID",
			lacks: slices.Concat([]string{"the image was made before the clock started", "all copies share files, random numbers, names and times", lacksEvidence}, peer.lacks),
			round: func(ctx context.Context, r *recorder) (err error) {
				var mu sync.Mutex // guards made, and the peer's names
				var made []*runscContainer
				defer func() {
					for _, c := range made {
						err = errors.Join(err, c.end(context.WithoutCancel(ctx)))
					}
				}()
				began := now()
				err = each(runtime.GOMAXPROCS(0), slices.Values(numbers(n)), func(int) error {
					c, err := peer.start(ctx, "restore", "--image-path", image)
					if err != nil {
						return err
					}
					mu.Lock()
					made = append(made, c)
					mu.Unlock()
					_, err = c.said(ctx, 0, 1)
					return err
				})
				if err == nil {
					r.put(what, began.ms())
				}
				return err
			}}
	}, func() { end(); os.RemoveAll(image) }, nil
}
