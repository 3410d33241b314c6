package bench

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
)

// runscSpawn is `runsc restore` as a contestant, as many at once as there are
// processors. It is nil, and said in out, where it can't be.
func (l *lab) runscSpawn(ctx context.Context, out *AxisResult, inst *installation, p python) ([]spawnPeer, func(), error) {
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
	return []spawnPeer{func(what string, n int) contestant {
		return contestant{name: name, against: forkAhead, command: runscWords + "restore --detach --image-path DIR --bundle BUNDLE ID",
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
	}}, func() { end(); os.RemoveAll(image) }, nil
}
