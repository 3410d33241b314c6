package image

import (
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

func TestManagers(t *testing.T) {
	for _, c := range managerCases {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t)
			c.make(f)
			f.path(c.path...)
			for _, kv := range c.env {
				k, v, _ := strings.Cut(kv, "=")
				f.env(k, v)
			}
			p := f.plan()
			f.wants(p, cell.Bind, c.binds...)
			f.wants(p, cell.Cache, c.caches...)
			for at, text := range c.links {
				f.wantsLink(p, at, text)
			}
			checkF60(f, p)
			v := f.view(p)
			for _, name := range c.runs {
				files, err := p.LookPath(name, "/")
				if err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
				if content, ok := v.read(files[0]); !ok || content == canary {
					t.Errorf("%s is %s, which the cell sees as %q\n%s", name, files[0], content, show(p))
				}
			}
			for _, dir := range c.path {
				if got, _ := envOf(p, "PATH"); !strings.Contains(":"+got+":", ":"+dir+":") {
					t.Errorf("PATH=%s lacks %s", got, dir)
				}
			}
			for _, kv := range c.env {
				k, v, _ := strings.Cut(kv, "=")
				if got, _ := envOf(p, k); got != v {
					t.Errorf("%s=%s, want %s", k, got, v)
				}
			}
		})
	}
}

// A shebang chain leads from one interpreter to the next.
func TestCommandIsFollowedThroughShebangs(t *testing.T) {
	f := newFake(t)
	f.prog("/opt/a/bin/script", "#!/usr/bin/env -S runner --fast\n")
	f.prog("/opt/b/bin/runner", "#!/opt/c/bin/vm\n")
	f.prog("/opt/c/bin/vm", "#!/opt/d/bin/base\n")
	f.prog("/opt/d/bin/base", "\x7fELF")
	f.prog("/opt/other/bin/x", canary)
	f.path("/opt/b/bin")
	f.req.Command = []string{"/opt/a/bin/script"}
	p := f.plan()
	f.wants(p, cell.Bind, "/opt/a", "/opt/b", "/opt/c", "/opt/d")
	checkF60(f, p)

	f.path()
	f.req.Command = []string{"/opt/b/bin/runner", "x"}
	p = f.plan()
	f.wants(p, cell.Bind, "/opt/b", "/opt/c", "/opt/d")
	f.wantsNone(p, "/opt/a")
}

// Of a program that lies among other things, only the file is shown.
func TestCommandInTheHomeIsOneFile(t *testing.T) {
	f := newFake(t)
	f.prog("/home/u/run.sh", "#!/bin/sh\n")
	f.file("/home/u/diary", canary)
	f.req.Command = []string{"/home/u/run.sh"}
	p := f.plan()
	f.wants(p, cell.Bind, "/home/u/run.sh")
	checkF60(f, p)
}

func TestCommandInAPlaceOfSecretsIsNamed(t *testing.T) {
	f := newFake(t)
	f.prog("/home/u/.ssh/run.sh", "#!/bin/sh\n")
	f.req.Command = []string{"/home/u/.ssh/run.sh"}
	p := f.plan()
	wantsNote(t, p, "/home/u/.ssh/run.sh", "SSH keys")
	checkF60(f, p)
}

func TestPathDropsWhatTheCellHasNot(t *testing.T) {
	f := newFake(t)
	f.dir("/mnt/c/Windows/System32")
	f.dir("/snap/bin")
	f.dir("/home/u/.ssh/bin")
	f.dir("/home/u/.vscode-server/bin/x/remote-cli")
	f.prog("/home/u/src/proj/node_modules/.bin/x", "x")
	f.env("WSL_DISTRO_NAME", "Ubuntu")
	f.env("PATH", "/nowhere/bin:/mnt/c/Windows/System32:/snap/bin:/home/u/.vscode-server/bin/x/remote-cli:/home/u/.ssh/bin::node_modules/.bin:/home/u/go/bin:/home/u:/usr/bin:/usr/bin:/etc/bin")
	p := f.plan()
	want := "/home/u/src/proj/node_modules/.bin:/home/u/go/bin:/usr/bin:/usr/local/bin:/bin"
	if p.Path != want {
		t.Errorf("PATH=%s, want %s", p.Path, want)
	}
	wantsNote(t, p, "/home/u/.ssh/bin", "on PATH")
	wantsNote(t, p, "/home/u", "on PATH")
	if len(p.Notes) != 2 {
		t.Errorf("notes: %+v", p.Notes)
	}
}

func TestSnapsAreNamed(t *testing.T) {
	f := newFake(t)
	f.prog("/usr/bin/snap", "x")
	f.link("/snap/bin/code", "/usr/bin/snap")
	f.req.Command = []string{"/snap/bin/code"}
	p := f.plan()
	wantsNote(t, p, "/snap/bin/code", "is a snap")
	f.req.Command = []string{"/usr/bin/snap"}
	if p := f.plan(); len(p.Notes) > 0 {
		t.Errorf("notes: %+v", p.Notes)
	}
}

// A toolchain that holds the source would show the source's secrets.
func TestToolchainAboveTheSourceIsNamed(t *testing.T) {
	f := newFake(t)
	f.prog("/home/u/.pyenv/shims/python3", "#!/usr/bin/env bash\n")
	f.file("/home/u/.pyenv/plugins/mine/.env", canary)
	f.req.Source = "/home/u/.pyenv/plugins/mine"
	f.req.Workdir = f.req.Source
	f.path("/home/u/.pyenv/shims")
	p := f.plan()
	f.wantsNone(p, "/home/u/.pyenv")
	wantsNote(t, p, "/home/u/.pyenv/shims", "holds the source")
	checkF60(f, p)
}

// What is read of a script is remembered only as long as the script stays.
func TestChangedShebangIsSeen(t *testing.T) {
	f := newFake(t)
	f.prog("/home/u/bin/tool", "#!/opt/one/bin/vm\n")
	f.prog("/opt/one/bin/vm", "\x7fELF")
	f.prog("/opt/two/bin/vm", "\x7fELF")
	f.path("/home/u/bin")
	f.wants(f.plan(), cell.Bind, "/opt/one")
	f.prog("/home/u/bin/tool", "#!/opt/two/bin/vm\n") // same size
	p := f.plan()
	f.wants(p, cell.Bind, "/opt/two")
	f.wantsNone(p, "/opt/one")
}

// However a manager's directory is reached, only its unit is mounted.
func TestManagerThroughLinks(t *testing.T) {
	for name, c := range map[string]struct {
		links map[string]string
		path  string
		real  string
	}{
		"a link above it":       {map[string]string{h + "/.local/share": "/data/share"}, h + "/.local/share/fnm/node-versions/v1/installation/bin", "/data/share/fnm"},
		"a link to a program":   {map[string]string{h + "/.local/share/fnm": "/data/fnm", h + "/bin/node": h + "/.local/share/fnm/node-versions/v1/installation/bin/node"}, h + "/bin", "/data/fnm"},
		"a link to a link":      {map[string]string{h + "/.local/share/fnm": "../fnm", h + "/.local/fnm": "/data/fnm"}, h + "/.local/share/fnm/node-versions/v1/installation/bin", "/data/fnm"},
		"two links to programs": {map[string]string{h + "/.fnm": "/data/fnm", "/usr/local/bin/node": "nodejs", "/usr/local/bin/nodejs": h + "/.fnm/node-versions/v1/installation/bin/node"}, "/usr/bin", "/data/fnm"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.prog(c.real+"/node-versions/v1/installation/bin/node", "x")
			f.prog(c.real+"/node-versions/v2/installation/bin/node", canary)
			for at, text := range c.links {
				f.link(at, text)
			}
			f.path(c.path)
			p := f.plan()
			if _, ok := mountAt(p, c.real+"/node-versions/v1"); !ok {
				t.Error(show(p))
			}
			files, err := p.LookPath("node", "/")
			if err != nil {
				t.Fatal(err)
			}
			if got, ok := f.view(p).read(files[0]); !ok || got != "x" {
				t.Errorf("%s: %q\n%s", files[0], got, show(p))
			}
			checkF60(f, p)
		})
	}
}

// A variable can't make more than one install root a manager's directory.
func TestManagerVariablesAreBounded(t *testing.T) {
	f := newFake(t)
	f.prog("/opt/shims/python", "x")
	f.file("/opt/other/x", canary)
	f.prog(h+"/src/shims/python", "x")
	f.file(h+"/src/other/x", canary)
	f.env("PYENV_ROOT", "/opt")
	f.env("RBENV_ROOT", h+"/src")
	f.path("/opt/shims", h+"/src/shims")
	p := f.plan()
	f.wants(p, cell.Bind, "/opt/shims", h+"/src/shims")
	checkF60(f, p)
}

func TestUnitPatterns(t *testing.T) {
	for _, c := range []struct{ pattern, rest, want string }{
		{"versions/*/*", "versions/node/v1/bin/node", "versions/node/v1"},
		{"versions/*/*", "versions/node", "-"},
		{"bin", "bin/x", "bin"},
		{"bin", "binary/x", "-"},
		{"*", "a/b", "a"},
		{"*", "", "-"},
		{"", "", ""},
		{"", "a", "-"},
	} {
		got, ok := matchUnit(c.pattern, c.rest)
		if !ok {
			got = "-"
		}
		if got != c.want {
			t.Errorf("matchUnit(%q, %q) = %q, want %q", c.pattern, c.rest, got, c.want)
		}
	}
}
