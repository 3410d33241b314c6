package image

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/cell"
)

// What a caller that may not name files of the host asks for makes no mount and
// says nothing of the host: neither where a symlink leads, nor what is there.
func TestX01ConfinedLearnsNothing(t *testing.T) {
	none := func(f *fake) {}
	type made struct {
		mounts  []cell.Mount
		workdir string
		path    []string
		err     string
	}
	ask := func(t *testing.T, on func(f *fake), workdir, command string) (out made) {
		f := newFake(t)
		f.req.Source, f.req.Place = "", "/workspace"
		f.req.Confined, f.req.Workdir, f.req.Command = true, workdir, []string{command}
		on(f)
		p := f.plan()
		for _, m := range p.Mounts {
			if m.Source = strings.TrimPrefix(m.Source, f.root); strings.HasPrefix(m.Source, f.etc) {
				m.Source = "etc" // its name has the digest of what the host has in /etc
			}
			out.mounts = append(out.mounts, m)
		}
		out.workdir = p.Workdir
		var err error
		if out.path, err = p.LookPath(command, p.Workdir); err != nil {
			out.err = err.Error() + cell.HintOf(err)
		}
		return out
	}
	hosts := map[string]func(f *fake){
		"a directory":  func(f *fake) { f.prog("/srv/acme/bin/tool", canary) },
		"a link":       func(f *fake) { f.prog("/data/bin/tool", canary); f.link("/srv/acme", "/data") },
		"a workspace":  func(f *fake) { f.prog("/workspace/bin/tool", canary) },
		"one linked":   func(f *fake) { f.prog("/data/bin/tool", canary); f.link("/workspace", "/data") },
		"a linked sub": func(f *fake) { f.prog("/data/bin/tool", canary); f.link("/workspace/bin", "/data/bin") },
	}
	for _, c := range [][2]string{{"/srv/acme", "bin/tool"}, {"/srv/acme", "/srv/acme/bin/tool"}, {"/workspace", "/workspace/bin/tool"}, {"/workspace/bin", "./tool"},
		{"/workspace", "bin/tool"}, {"/workspace/../srv/acme", "bin/tool"}, {"/srv/acme/bin", "tool"}} {
		want := ask(t, none, c[0], c[1])
		for name, on := range hosts {
			if d := cmp.Diff(want, ask(t, on, c[0], c[1]), cmp.AllowUnexported(made{})); d != "" {
				t.Errorf("%s in %s tells whether the host has %s:\n%s", c[1], c[0], name, d)
			}
		}
	}

	// The same in a cell of a source that lies elsewhere.
	f := newFake(t)
	f.req.Confined, f.req.Workdir, f.req.Command = true, "/workspace/sub", []string{"/workspace/bin/tool"}
	f.prog("/workspace/bin/tool", canary)
	f.link("/workspace/sub", "/root/sub")
	p := f.plan()
	if checkF60(f, p); p.Workdir != "/workspace/sub" {
		t.Errorf("the working directory is %s", p.Workdir)
	}
	_, err := p.LookPath("/workspace/bin/tool", "/")
	checkNotFound(t, err)
	if h := cell.HintOf(err); h != "" {
		t.Errorf("hint %q", h)
	}

	// What the system has is there, with what its symlinks lead to.
	f.prog("/opt/java/bin/java", "\x7fELF")
	f.link("/usr/bin/java", "/opt/java/bin/java")
	f.req.Command = []string{"/usr/bin/java"}
	if _, ok := mountAt(f.plan(), "/opt/java/bin/java"); !ok {
		if _, ok := mountAt(f.plan(), "/opt/java"); !ok {
			t.Errorf("java is not there: %s", show(f.plan()))
		}
	}

	// The working directory of a workspace without a source is no path of the host.
	f = newFake(t)
	f.req.Source, f.req.Place, f.req.Workdir = "", "/workspace", "/workspace/sub"
	f.link("/workspace", "/data")
	if p := f.plan(); p.Workdir != "/workspace/sub" {
		t.Errorf("the working directory is %s", p.Workdir)
	}
}
