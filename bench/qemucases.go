package bench

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	qemuBoot    = "qemu, boot"
	qemuRestore = "qemu -incoming"
	qemuSave    = "qemu migrate, -incoming"
	// machinesAtAll is how many machines the peer starts at most: each has all of its
	// memory for itself.
	machinesAtAll = 10
)

// qemuSpawn are machines that boot, and machines that are restored from one file each
// by itself, as many at once as there are processors. They are none, and said in out,
// where there can be none.
func (l *lab) qemuSpawn(ctx context.Context, out *AxisResult) ([]spawnPeer, error) {
	p, err := l.qemu(ctx, out, qemuBoot)
	if p == nil || err != nil {
		return nil, err
	}
	boots := p.spawn(contestant{name: qemuBoot, command: p.words("-kernel IMAGE -initrd INITRAMFS"), lacks: qemuLacks},
		func(ctx context.Context) (*qemuMachine, error) { return p.booted(ctx, aMachine) })
	image, err := p.warm(ctx)
	if err != nil {
		out.absent(qemuRestore, firstLine("it failed: "+err.Error()))
		return []spawnPeer{boots}, nil
	}
	return []spawnPeer{boots, p.spawn(contestant{name: qemuRestore, command: p.words("-incoming defer, migrate-incoming fd:IMAGE, cont"),
		lacks: slices.Concat([]string{"the image was made before the clock started; its guest had written 32 MiB, as much as Python with numpy", "each copy reads all of it: no memory is shared", "all copies share random numbers and times", lacksEvidence}, qemuLacks)},
		func(ctx context.Context) (*qemuMachine, error) { return p.restored(ctx, aMachine, image) })}, nil
}

// warm writes a machine to a file that has done as much as a template.
func (p *qemuPeer) warm(ctx context.Context) (string, error) {
	m, err := p.booted(ctx, aMachine)
	if err != nil {
		return "", err
	}
	defer m.end()
	if err := m.dirty(ctx, asPython); err != nil {
		return "", err
	}
	return p.save(ctx, m)
}

// spawn makes a contestant of how one machine comes to be.
func (p *qemuPeer) spawn(c contestant, one func(context.Context) (*qemuMachine, error)) spawnPeer {
	return func(what string, n int) contestant {
		c := c
		c.against = forkAhead
		c.round = func(ctx context.Context, r *recorder) error {
			var mu sync.Mutex // guards made
			var made []*qemuMachine
			defer func() {
				for _, m := range made {
					m.end()
				}
			}()
			began := now()
			err := each(runtime.GOMAXPROCS(0), slices.Values(numbers(n)), func(int) error {
				m, err := one(ctx)
				if err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				made = append(made, m)
				return nil
			})
			if err == nil {
				r.put(what, began.ms())
			}
			return err
		}
		return c
	}
}

// qemuBranch is QEMU's own way to have a second machine like one that runs: it is
// stopped, written to a file, and goes on; the file is restored.
func (l *lab) qemuBranch(ctx context.Context, out *AxisResult, w burden) ([]contestant, func(), error) {
	none := func() {}
	p, err := l.qemu(ctx, out, qemuSave)
	if p == nil || err != nil {
		return nil, none, err
	}
	mib := w.machine()
	source, err := p.booted(ctx, mib)
	if err == nil {
		if err = source.dirty(ctx, max(w.mib, asPython)); err != nil {
			source.end()
		}
	}
	if err != nil {
		out.absent(qemuSave, firstLine("it failed: "+err.Error()))
		return nil, none, nil
	}
	heart := source.hear(ctx)
	round := func(ctx context.Context, r *recorder) (err error) {
		time.Sleep(beatsAround)
		if _, _, err := heart.beaten(ctx); err != nil { // what was before is not of this
			return err
		}
		time.Sleep(beatsAround)
		began := now()
		image, err := p.save(ctx, source)
		defer func() { err = errors.Join(err, os.Remove(image)) }()
		if err != nil {
			return err
		}
		c, err := p.restored(ctx, mib, image)
		if err != nil {
			return err
		}
		defer c.end()
		total := began.ms()
		time.Sleep(beatsAround)
		pause, otherwise, err := heart.beaten(ctx)
		if err == nil {
			r.put(pausedFor+w.name, pause)
			r.part(pausedFor+w.name, "between two beats otherwise, the median", otherwise)
			r.put(branched+w.name, total)
		}
		return err
	}
	return []contestant{{name: qemuSave, against: "client.Branch", round: round, command: p.words("(QMP: stop, migrate fd:FILE, cont), then -incoming defer (migrate-incoming fd:FILE, cont)"),
		lacks: slices.Concat([]string{"the copy has the source's random numbers, names and times", lacksEvidence}, qemuLacks)}}, func() { heart.end(); source.end() }, nil
}

// machine is how much memory a machine has that carries it, its kernel's own included,
// in MiB; asked is how much of that a cell is given.
func (w burden) machine() int { return w.asked() + aMachine - 1024 }
func (w burden) asked() int   { return 1024 + w.mib }
