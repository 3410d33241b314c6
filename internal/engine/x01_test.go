package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// A caller that may not name files of the host gets one answer for a directory,
// whatever the host has there: a link into the source of a run, a directory or
// nothing.
func TestX01DirIsNoOracle(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	run := b.run("web", "echo 1 > f")
	at := filepath.Join(t.TempDir(), "there")
	link := func() { b.must(os.Symlink(b.src, at)) }
	hosts := map[string]func(){
		"nothing":     func() {},
		"a directory": func() { b.must(os.Mkdir(at, 0o755)) },
		"a file":      func() { b.must(os.WriteFile(at, nil, 0o644)) },
		"a link":      link,
	}
	for name, p := range map[string]access.Principal{
		"read":            {Level: access.Read},
		"run":             {Level: access.Run},
		"admin of labels": {Level: access.Admin, Bounds: &access.Bounds{Labels: map[string]string{"team": "a"}}},
	} {
		p.Token = "t-a"
		v := b.All().As(p)
		for host, set := range hosts {
			os.Remove(at)
			set()
			_, err := v.SelectRun("", at)
			if cell.KindOf(err) != cell.NotFound || err.Error() != "no run was started from "+at {
				t.Errorf("%s, %s: %v", name, host, err)
			}
		}
		if p.Bounds != nil {
			continue
		}
		if id, err := v.SelectRun("", b.src+"/sub"); err != nil || string(id) != run.ID {
			t.Errorf("%s: the source itself finds %s, %v", name, id, err)
		}
	}
	os.Remove(at)
	link()
	for _, v := range []*View{b.All(), b.All().As(access.Principal{Token: "t-b", Level: access.Admin})} {
		if id, err := v.SelectRun("", at); err != nil || string(id) != run.ID {
			t.Errorf("of an admin, a link finds %s, %v", id, err)
		}
	}
}

// Where the host's symlinks lead a working directory is not told to a caller that
// may not name files of the host.
func TestX01WorkdirIsNoOracle(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	b.run("web", "true")
	top := t.TempDir()
	b.must(os.MkdirAll(top+"/real/bin", 0o755))
	b.must(os.Symlink(top+"/real", top+"/link"))
	b.must(os.WriteFile(top+"/real/bin/tool", []byte("#!/bin/sh\n"), 0o755))
	ask := func(v *View, dir, tool string) *runPlan {
		p, err := v.planFrom(api.RunRequest{Cell: "web", Workdir: dir, Command: []string{tool}, CallerEnv: []string{"PATH=/usr/bin:/bin"}}, "")
		b.must(err)
		return p
	}
	run := b.All().As(access.Principal{Token: "t-a", Level: access.Run})
	for v, want := range map[*View]bool{run: true, b.All(): false} {
		if p := ask(v, top+"/link", "./bin/tool"); p.confined != want {
			t.Errorf("confined is %v", p.confined)
		}
	}
	for _, v := range []*View{run, b.All()} {
		x := &execution{e: b.Engine, p: ask(v, top+"/link", "./bin/tool"), run: &state.Run{}}
		x.c = *x.p.cell
		b.must(x.planImage(b.ctx))
		want := top + "/real"
		if v == run {
			want = top + "/link"
		}
		if got := x.resolvedWorkdir(); got != want {
			t.Errorf("confined %q: it works in %s", v.confined, got)
		}
	}
}
