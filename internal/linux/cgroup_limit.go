package linux

import (
	"math"
	"os"

	"github.com/pando-dev/pando/internal/cell"
)

// CgroupLimits bound a cgroup. Zero means that no limit is asked for.
type CgroupLimits struct {
	Memory int64   // bytes, swap included
	PIDs   int64   // processes and threads
	CPUs   float64 // cores
}

// Check refuses values that no kernel takes, so that none is ever mistaken for
// "unlimited".
func (l CgroupLimits) Check() error {
	bad := func(name string, v any, why string) error {
		return cell.Errorf(cell.Invalid, "linux.CgroupLimits", "", "cannot limit %s to %v: %s", name, v, why)
	}
	switch {
	case l.Memory < 0 || l.Memory > 0 && l.Memory < int64(os.Getpagesize()) || l.Memory > math.MaxInt64/2:
		return bad("memory", l.Memory, "a limit is at least one page and at most 4 EiB")
	case l.PIDs < 0 || l.PIDs > 4<<20:
		return bad("processes", l.PIDs, "a limit is at least 1 and at most 4194304")
	case math.IsNaN(l.CPUs) || l.CPUs != 0 && (l.CPUs < 0.01 || l.CPUs > 8192):
		return bad("CPUs", l.CPUs, "a limit is at least 0.01 and at most 8192 cores")
	}
	return nil
}

// Unapplied is a limit that was asked for and does not hold.
type Unapplied struct {
	Limit  string // "memory", "swap", "pids", "cpu"
	Reason string // one sentence
}

// Limit sets limits on a living cgroup, reads them back, and returns those
// that do not hold.
func (c *Cgroup) Limit(want CgroupLimits) []Unapplied {
	var list []Unapplied
	each := func(limit string, asked bool, v2, v1 func(dir string) []Unapplied) {
		if !asked {
			return
		}
		d, ok := c.with(limit)
		switch {
		case !ok:
			list = append(list, Unapplied{limit, "the cgroup is in no hierarchy with controller " + limit})
		case d.tree.v2:
			list = append(list, v2(d.path)...)
		default:
			list = append(list, v1(d.path)...)
		}
	}
	pids := func(dir string) []Unapplied { return limitPIDs(dir, want.PIDs) }
	each("memory", want.Memory > 0,
		func(dir string) []Unapplied { return limitMemory2(dir, want.Memory) },
		func(dir string) []Unapplied { return limitMemory1(dir, want.Memory) })
	each("pids", want.PIDs > 0, pids, pids)
	each("cpu", want.CPUs > 0,
		func(dir string) []Unapplied { return limitCPU2(dir, want.CPUs) },
		func(dir string) []Unapplied { return limitCPU1(dir, want.CPUs) })
	return list
}
