package image

import (
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// Whatever is inserted in whatever order, parents come before children and
// each target is there once, with what was inserted last.
func TestInsertKeepsTheOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	names := []string{"a", "b", "a-b", "a.b", "ab", "a b", "é", "0", "~"}
	for range 2000 {
		var p HostPlan
		last := map[string]string{}
		for n := range rng.IntN(30) {
			target := ""
			for range 1 + rng.IntN(4) {
				target += "/" + names[rng.IntN(len(names))]
			}
			m := cell.Mount{Kind: cell.Bind, Target: target, Source: "/src" + string(rune('A'+n))}
			last[target] = m.Source
			p.Insert(m)
		}
		checkOrder(t, p.Mounts)
		if len(p.Mounts) != len(last) {
			t.Fatalf("%d mounts of %d targets", len(p.Mounts), len(last))
		}
		for _, m := range p.Mounts {
			if last[m.Target] != m.Source {
				t.Fatalf("%s has %s, want the last inserted %s", m.Target, m.Source, last[m.Target])
			}
		}
	}
}

func TestCompareTargetsIsByComponent(t *testing.T) {
	want := []string{"/a", "/a/b", "/a/b/c", "/a/é", "/a b", "/a-b", "/a-b/x", "/a.b", "/ab"}
	for range 100 {
		got := slices.Clone(want)
		rand.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
		slices.SortFunc(got, compareTargets)
		if !slices.Equal(got, want) {
			t.Fatalf("sorted %q, want %q", got, want)
		}
	}
}

// The caller's own places and its workspace go between what lies above and
// below them, for random sets of toolchains, links and --mount.
func TestPlansAreInOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	f := newFake(t)
	roots := []string{"/opt/a", "/opt/a/b", "/home/u/.t", "/home/u/.t/x/y", "/home/u/src/lib", "/home/u/src/proj/tools", "/data/t", "/usr/local/t"}
	for _, r := range roots {
		f.prog(r+"/bin/tool", "x")
	}
	f.link("/home/u/.linked", "/data/t")
	f.link("/data/again", "/home/u/.t/x")
	dirs := []string{"/home/u/.linked/bin", "/data/again/y/bin", "/nowhere/bin"}
	for _, r := range roots {
		dirs = append(dirs, r+"/bin")
	}
	mounts := []string{"/data/t:/mnt/t", "/opt/a:/home/u/.t/x/y", "/data/t/bin:/home/u/x/bin:rw", "/opt/a:/opt/a", "/opt/a/b:/opt/z"}
	for range 300 {
		rng.Shuffle(len(dirs), func(i, j int) { dirs[i], dirs[j] = dirs[j], dirs[i] })
		rng.Shuffle(len(mounts), func(i, j int) { mounts[i], mounts[j] = mounts[j], mounts[i] })
		f.path(dirs[:rng.IntN(len(dirs))]...)
		f.req.Mounts = mounts[:rng.IntN(len(mounts))]
		p := f.plan()
		p.Insert(
			cell.Mount{Kind: cell.Bind, Target: p.Tmp, Source: "/own/tmp"},
			cell.Mount{Kind: cell.Overlay, Target: p.Workspaces[0]},
			cell.Mount{Kind: cell.Bind, Target: p.Home, Source: "/own/home"},
		)
		checkOrder(t, p.Mounts)
		for _, m := range p.Mounts {
			if strings.HasPrefix(m.Target, p.Workspaces[0]+"/") {
				t.Errorf("%s is mounted inside the workspace", m.Target)
			}
		}
		f.req.Mounts = nil
	}
}

func TestNestedRootsAreMountedOnce(t *testing.T) {
	f := newFake(t)
	f.prog("/opt/a/bin/x", "x")
	f.prog("/opt/a/inner/bin/y", "x")
	f.path("/opt/a/inner/bin", "/opt/a/bin")
	p := f.plan()
	f.wants(p, cell.Bind, "/opt/a")
	f.wantsNone(p, "/opt/a/inner")
	if got, _ := envOf(p, "PATH"); !strings.HasPrefix(got, "/opt/a/inner/bin:/opt/a/bin:") {
		t.Errorf("PATH=%s", got)
	}
}

// A --mount inside a read-only directory needs something to be mounted on.
func TestAskedMountInAToolchain(t *testing.T) {
	f := newFake(t)
	f.prog("/opt/a/bin/x", "x")
	f.dir("/opt/a/share")
	f.dir("/data/d")
	f.path("/opt/a/bin")
	f.req.Mounts = []string{"/data/d:/opt/a/share"}
	p := f.plan()
	if m, ok := mountAt(p, "/opt/a/share"); !ok || m.Source != path.Join(f.root, "/data/d") {
		t.Errorf("mount = %+v", m)
	}
	f.req.Mounts = []string{"/data/d:/opt/a/new"}
	f.fails(cell.Invalid)
	f.req.Mounts = []string{"/data/d:/opt/a/bin/x"}
	f.fails(cell.Invalid)
}
