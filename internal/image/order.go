package image

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// Insert adds mounts where they belong: after what lies above them, before
// what lies below. A mount with the same target is replaced.
func (h *HostPlan) Insert(mounts ...cell.Mount) {
	for _, m := range mounts {
		i, there := slices.BinarySearchFunc(h.Mounts, m.Target, func(o cell.Mount, target string) int {
			return compareTargets(o.Target, target)
		})
		if there {
			h.Mounts[i] = m
		} else {
			h.Mounts = slices.Insert(h.Mounts, i, m)
		}
	}
}

// compareTargets puts every directory directly before what is below it.
func compareTargets(a, b string) int {
	for i := 0; i < len(a) && i < len(b); i++ {
		if a[i] == b[i] {
			continue
		}
		switch {
		case a[i] == '/':
			return -1
		case b[i] == '/':
			return 1
		}
		return cmp.Compare(a[i], b[i])
	}
	return cmp.Compare(len(a), len(b))
}

// finish puts the slots in order, leaves out what lies in something that is
// mounted anyway, and completes the plan.
func (p *planner) finish() (*HostPlan, error) {
	targets := make([]string, 0, len(p.slots))
	for at := range p.slots {
		targets = append(targets, at)
	}
	slices.SortFunc(targets, compareTargets)
	var above []slot // those that the current target lies in
	for _, at := range targets {
		s := p.slots[at]
		for len(above) > 0 && !within(above[len(above)-1].Target, at) {
			above = above[:len(above)-1]
		}
		if len(above) > 0 && !p.keeps(above[len(above)-1], s) {
			delete(p.slots, at)
			continue
		}
		if len(above) > 0 && s.asked {
			if err := p.canNest(above[len(above)-1], s); err != nil {
				return nil, err
			}
		}
		above = append(above, s)
		if !s.cells {
			p.plan.Mounts = append(p.plan.Mounts, s.Mount)
		}
	}
	slices.SortStableFunc(p.plan.Notes, func(a, b Note) int { return strings.Compare(a.Path, b.Path) })
	slices.SortStableFunc(p.plan.Outside, func(a, b Lead) int { return strings.Compare(a.From, b.From) })
	p.plan.find = newFinder(p)
	plan := p.plan
	return &plan, nil
}

// canNest refuses a mount that was asked for inside a read-only directory that
// has no such file to mount it on.
func (p *planner) canNest(up, s slot) error {
	if up.cells && !p.isSource(up.Target) || up.Kind == cell.Tmpfs || up.Kind == cell.Cache || up.Kind == cell.Overlay {
		return nil
	}
	on := p.t.lstat(s.Target)
	if !up.own && !up.cells {
		on = p.t.lstat(up.hostPath(p.t, s.Target))
	}
	if on.exists() && on.isDir() == p.t.resolve(s.hostPath(p.t, s.Target)).isDir() && !on.isSymlink() {
		return nil
	}
	return cell.Errorf(cell.Invalid, "image.Host", "choose another target, or create "+s.Target+" first",
		"cannot mount %s: its target lies in %s, which has nothing like it there", s.Target, up.Target)
}

// keeps decides whether s is needed below the slot up.
func (p *planner) keeps(up, s slot) bool {
	switch {
	case s.cover || s.fixed || s.asked || s.cells:
		return true
	case up.cover, up.Target == "/etc":
		return false
	case up.asked && !up.own:
		return p.t.lstat(up.hostPath(p.t, s.Target)).exists()
	case up.Kind == cell.Cache:
		return false
	case up.own && !up.cells:
		return s.Kind == cell.Cache
	}
	return true
}

// hostPath is the host's path of what the cell sees at the path at, below s.
func (s slot) hostPath(t *tree, at string) string {
	return path.Join(strings.TrimPrefix(s.Source, t.prefix), strings.TrimPrefix(at, s.Target))
}
