package engine

import (
	"testing"
	"testing/synctest"
)

// A keeper of a cell that is at rest, which a daemon that was killed had asked for and which
// came to be after the next daemon had looked, is in nothing's way.
func TestKeeperOfADeadDaemonComesLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		b.run("w", "echo 1 > f")
		c, err := b.reg.Cell(b.id("w"))
		b.must(err)
		if !b.alive.AtRest(c.ID) {
			t.Fatal("the cell is not at rest")
		}
		inst, err := b.cfg.Backends[0].Create(b.ctx, b.Engine.spec(&c, c.Setup.Mounts))
		b.must(err)
		inst.Close()
		if r := b.run("w", "grep 1 f"); r.ExitCode == nil || *r.ExitCode != 0 {
			t.Errorf("%+v", r)
		}
	})
}
