package isolation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/linux"
)

// A fork has an overlay over each mount in memory that contains files, with a layer of its own as
// the upper one. Linux stacks no more than two overlays. So the lower ones of a fork of a fork are
// the layers that its parent's overlay consists of, not that overlay:
//
//	first of its family   /run is a tmpfs T0
//	its fork              /run is an overlay of T1/u over T0
//	a fork of that one    /run is an overlay of T2/u over T1/u, T0
//
// The overlay itself covers its layers, and what a mount namespace has from another user namespace
// is never uncovered there. So a fork has each layer mounted below layersDir once more, read-only
// and under a cover that hides them from the cell. Uncover removes it, in the parent's own
// namespace, before the parent is forked.
const layersDir = confine.CanaryDir + "/layers"

// layersFD is layersDir of a fork's parent in the script of the fork. It is unused otherwise: given
// files have higher numbers, opened ones lower.
const layersFD, placeFD = 90, 91

// layers places the mounts in memory of a fork.
type layers struct {
	s     *linux.Script
	full  []string       // mounts with contents to keep
	below map[string]int // layers of the parent's overlays
	made  map[string]int // layers of the fork's
}

// beginLayers opens the parent's layers. /.pando of the fork, which covers them, is made after.
func beginLayers(s *linux.Script, full []string, below map[string]int) *layers {
	if len(below) > 0 {
		dir := s.OpenPlain(layersDir)
		s.Call("hold "+layersDir, unix.SYS_DUP3, dir, layersFD, unix.O_CLOEXEC)
		s.Call("close", unix.SYS_CLOSE, dir)
	}
	return &layers{s, full, below, map[string]int{}}
}

// place mounts an overlay over a mount with contents to keep. It reports false if target is none.
func (l *layers) place(target string, mode uint32, size string) bool {
	if l == nil || !slices.Contains(l.full, target) {
		return false
	}
	s := l.s
	var lower []string
	for i := range l.below[target] {
		lower = append(lower, fdPath(layersFD)+"/"+layerName(target, i))
	}
	if len(lower) == 0 {
		old := s.OpenPlain(target)
		s.Call("hold "+target, unix.SYS_DUP3, old, placeFD, unix.O_CLOEXEC)
		s.Call("close", unix.SYS_CLOSE, old)
		lower = []string{fdPath(placeFD)}
	}
	s.Mount("tmpfs", target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, modeOption(mode)+size)
	for _, d := range []string{"/u", "/w"} {
		s.Call("mkdir "+target+d, unix.SYS_MKDIRAT, linux.AtCWD, target+d, 0o700)
	}
	s.Call("chmod "+target, unix.SYS_FCHMODAT, linux.AtCWD, target+"/u", mode)
	all := append([]string{target + "/u"}, lower...)
	l.made[target] = len(all)
	s.Mkdir(layersDir, 0o700)
	for i, from := range all {
		at := layersDir + "/" + layerName(target, i)
		s.Mkdir(at, 0o700)
		s.Mount(from, at, "", unix.MS_BIND, "")
		remount(s, at, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV)
	}
	s.Mount("overlay", target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("lowerdir=%s,upperdir=%s/u,workdir=%s/w,userxattr", strings.Join(lower, ":"), target, target))
	if l.below[target] == 0 {
		s.Call("close", unix.SYS_CLOSE, placeFD)
	}
	return true
}

// end hides the layers from the cell.
func (l *layers) end() {
	if len(l.below) > 0 {
		l.s.Call("close", unix.SYS_CLOSE, layersFD)
	}
	if len(l.made) > 0 {
		cover(l.s)
	}
}

func cover(s *linux.Script) {
	s.Mount("tmpfs", layersDir, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,mode=0")
}

// Uncover adds to a script in the cell's mount namespace that its forks reach its layers, or, if
// not on, that nothing does. No process of the cell runs meanwhile.
func (c *Cell) Uncover(s *linux.Script, on bool) {
	if len(c.layers) == 0 {
		return
	}
	if on {
		s.Call("uncover "+layersDir, unix.SYS_UMOUNT2, layersDir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		return
	}
	s.Try("uncover "+layersDir, unix.SYS_UMOUNT2, layersDir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // it may be covered already
	cover(s)
}

func fdPath(n int) string { return "/proc/self/fd/" + strconv.Itoa(n) }

// layerName is the name of a layer of a mount in layersDir. The upper one is 0.
func layerName(target string, i int) string {
	return strings.ReplaceAll(strings.TrimPrefix(target, "/"), "/", "-") + "." + strconv.Itoa(i)
}

func modeOption(mode uint32) string { return "mode=" + strconv.FormatUint(uint64(mode), 8) }
