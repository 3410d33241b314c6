package image

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

const proj = "/home/u/src/proj"

func TestOutsideGo(t *testing.T) {
	f := newFake(t)
	f.file(proj+"/go.mod", "module m\n\nreplace example.com/a => ../a // why\nreplace (\n\texample.com/b v1.0.0 => \"../b\" \n\texample.com/c => example.com/d v1.2.3\n)\nreplace example.com/e => ../private\nreplace example.com/in => ./in\n")
	f.file(proj+"/go.work", "go 1.26\nuse (\n\t.\n\t../w\n)\n")
	f.file(proj+"/cmd/x/go.mod", "module x\nreplace example.com/deep => ../../../deep\n")
	for _, m := range []string{"a", "b", "w", "deep"} {
		f.file("/home/u/src/"+m+"/go.mod", "module "+m)
		f.file("/home/u/src/"+m+"/.env", canary)
		f.file("/home/u/src/"+m+"/sub/.env.local", canary)
		f.file("/home/u/src/"+m+"/.env.example", "example")
		f.file("/home/u/src/"+m+"/.git/config", canary)
	}
	f.file("/home/u/src/private/x", canary) // no module
	p := f.plan()
	f.wants(p, cell.Bind, "/home/u/src/a", "/home/u/src/b", "/home/u/src/w", "/home/u/src/deep")
	wantsNote(t, p, "go.mod", "no Go module", "--mount /home/u/src/private:/home/u/src/private")
	checkF60(f, p)
	v := f.view(p)
	if v["/home/u/src/a/.env.example"] != "example" || v["/home/u/src/a/.env"] != "" || v["/home/u/src/a/.git"] != "/" {
		t.Error("the secrets of a linked module are not covered, or its example is")
	}
}

func TestOutsideGoWorkspaceAbove(t *testing.T) {
	f := newFake(t)
	f.file(proj+"/go.mod", "module m\n")
	f.file("/home/u/src/go.work", "go 1.26\nuse ./proj\n")
	p := f.plan()
	wantsNote(t, p, "/home/u/src/go.work", "above the source", "--from /home/u/src")
	f.env("GOWORK", "off")
	if p := f.plan(); len(p.Notes) != 0 {
		t.Errorf("notes: %+v", p.Notes)
	}
}

func TestOutsideCargo(t *testing.T) {
	f := newFake(t)
	f.file(proj+"/Cargo.toml", "[package]\nname='p'\n[dependencies]\na = { path = \"../ws/a\" }\nlib = { path = \"lib\" }\n")
	f.file("/home/u/src/ws/Cargo.toml", "[workspace]\nmembers=['a']\n")
	f.file("/home/u/src/ws/a/Cargo.toml", "[package]\nversion.workspace = true\n[dependencies]\nb = { path = '../../b' }\n")
	f.file("/home/u/src/b/Cargo.toml", "[package]\n[dependencies]\na = { path = '../ws/a' }\n")
	f.file("/home/u/src/ws/secret/x", canary)
	p := f.plan()
	f.wants(p, cell.Bind, "/home/u/src/ws/a", "/home/u/src/ws/Cargo.toml", "/home/u/src/b")
	checkF60(f, p)
}

func TestOutsideNpm(t *testing.T) {
	f := newFake(t)
	f.file(proj+"/package.json", `{"dependencies":{"a":"file:../a","b":"^1.0.0","t":"file:../t.tgz"},"devDependencies":{"x":"link:../x"}}`)
	f.file("/home/u/src/a/package.json", "{}")
	f.file("/home/u/src/t.tgz", "tar")
	f.file("/home/u/src/x/y", canary)
	// npm link: node_modules → global folder → the package
	f.link(proj+"/node_modules/linked", "/home/u/.npm-global/lib/node_modules/linked")
	f.link("/home/u/.npm-global/lib/node_modules/linked", "../../../src/linked")
	f.file("/home/u/src/linked/package.json", "{}")
	f.link(proj+"/node_modules/@scope/pkg", "../../../scoped")
	f.file("/home/u/src/scoped/package.json", "{}")
	f.link(proj+"/node_modules/inside", "../packages/inside")
	f.file(proj+"/packages/inside/package.json", "{}")
	f.link(proj+"/node_modules/bad", "/home/u/Documents")
	f.file("/home/u/Documents/package.json", canary)
	p := f.plan()
	f.wants(p, cell.Bind, "/home/u/src/a", "/home/u/src/t.tgz", "/home/u/src/linked", "/home/u/src/scoped")
	f.wantsLink(p, "/home/u/.npm-global/lib/node_modules/linked", "../../../src/linked")
	wantsNote(t, p, "package.json", "no npm package")
	wantsNote(t, p, "node_modules/bad", "personal")
	checkF60(f, p)
}

// A fakePython is an installation as any manager leaves it.
func fakePython(f *fake, root string) {
	f.prog(root+"/bin/python3.12", "\x7fELF")
	f.link(root+"/bin/python3", "python3.12")
	f.file(root+"/lib/python3.12/os.py", "")
}

func TestOutsideVenv(t *testing.T) {
	for _, c := range []struct{ name, python, root, mounted string }{
		{"uv", "/home/u/.local/share/uv/python/cpython-3.12.4-linux-x86_64-gnu", "", "/home/u/.local/share/uv/python"},
		{"pyenv", "/home/u/.pyenv/versions/3.12.4", "", "/home/u/.pyenv"},
		{"built by hand", "/home/u/.python/3.12", "", "/home/u/.python/3.12"},
		{"opt", "/opt/python", "", "/opt/python"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t)
			fakePython(f, c.python)
			f.file(proj+"/.venv/pyvenv.cfg", "home = "+c.python+"/bin\nversion = 3.12.4\n")
			f.link(proj+"/.venv/bin/python", c.python+"/bin/python3.12")
			f.link(proj+"/.venv/bin/python3", "python")
			f.env("VIRTUAL_ENV", proj+"/.venv")
			f.path(proj + "/.venv/bin")
			p := f.plan()
			f.wants(p, cell.Bind, c.mounted)
			if len(p.Notes) > 0 {
				t.Errorf("notes: %+v", p.Notes)
			}
			if got, _ := envOf(p, "VIRTUAL_ENV"); got != proj+"/.venv" || !strings.HasPrefix(p.Path, proj+"/.venv/bin:") {
				t.Errorf("VIRTUAL_ENV=%s PATH=%s", got, p.Path)
			}
		})
	}
}

// A project can't have a directory mounted by calling it an interpreter.
func TestF63VenvThatLies(t *testing.T) {
	f := newFake(t)
	f.prog("/home/u/.config/app/python3", canary)
	f.file("/home/u/.config/app/data", canary)
	f.prog("/home/u/Documents/bin/python3", canary)
	f.file(proj+"/.venv/pyvenv.cfg", "home = /home/u/.config/app\n")
	f.link(proj+"/.venv/bin/python", "/home/u/Documents/bin/python3")
	f.link(proj+"/.venv/bin/python3", "/home/u/.ssh/id_rsa")
	f.prog("/home/u/.ssh/id_rsa", canary)
	p := f.plan()
	wantsNote(t, p, ".venv/pyvenv.cfg", "/home/u/.config/app/python3", "no Python interpreter")
	wantsNote(t, p, ".venv/pyvenv.cfg", "/home/u/Documents/bin/python3", "no Python interpreter")
	checkF60(f, p)
}

func TestOutsideEditableInstalls(t *testing.T) {
	f := newFake(t)
	site := proj + "/.venv/lib/python3.12/site-packages"
	f.file(proj+"/.venv/pyvenv.cfg", "home = /usr/bin\n")
	f.file(site+"/_virtualenv.pth", "import _virtualenv\n")
	f.file(site+"/a.pth", "/home/u/src/a/src\n")
	f.file(site+"/__editable___b_finder.py", "MAPPING: dict[str, str] = {'b': '/home/u/src/b/b'}\n")
	f.file(site+"/c.egg-link", "/home/u/src/c\n.\n")
	f.file(site+"/d-1.dist-info/direct_url.json", `{"url":"file:///home/u/src/d%20d","dir_info":{"editable":true}}`)
	f.file(site+"/e-1.dist-info/direct_url.json", `{"url":"file:///home/u/src/e","dir_info":{}}`)
	f.file(site+"/bad.pth", "/home/u/src\n/home/u\n/home/u/notes\n../../../../..\n")
	f.file("/home/u/src/a/pyproject.toml", "")
	f.file("/home/u/src/a/src/a/__init__.py", "")
	f.file("/home/u/src/b/setup.py", "")
	f.file("/home/u/src/b/b/__init__.py", "")
	f.file("/home/u/src/c/setup.cfg", "")
	f.file("/home/u/src/d d/pyproject.toml", "")
	f.file("/home/u/src/e/pyproject.toml", canary)
	f.file("/home/u/notes/x", canary)
	p := f.plan()
	f.wants(p, cell.Bind, "/home/u/src/a/src", "/home/u/src/b/b", "/home/u/src/c", "/home/u/src/d d")
	checkF60(f, p)
	wantsNote(t, p, ".venv/lib/python3.12/site-packages", "/home/u/notes", "no Python project")
}

func TestOutsidePythonManifests(t *testing.T) {
	f := newFake(t)
	f.file(proj+"/pyproject.toml", "[tool.uv.sources]\na = { path = \"../a\", editable = true }\n")
	f.file(proj+"/requirements-dev.txt", "-e ../b[extra]\nrequests==2\nc @ file:///home/u/src/c\n")
	for _, d := range []string{"a", "b", "c"} {
		f.file("/home/u/src/"+d+"/pyproject.toml", "")
	}
	f.wants(f.plan(), cell.Bind, "/home/u/src/a", "/home/u/src/b", "/home/u/src/c")
}

// fakeRepo makes a repository with a linked worktree at the source.
func fakeRepo(f *fake, config string) {
	f.file("/home/u/src/main/.git/HEAD", "ref: refs/heads/main\n")
	f.file("/home/u/src/main/.git/config", config)
	f.dir("/home/u/src/main/.git/objects/pack")
	f.file("/home/u/src/main/secret.txt", canary)
	f.file("/home/u/src/main/.git/worktrees/proj/HEAD", "ref: refs/heads/x\n")
	f.file("/home/u/src/main/.git/worktrees/proj/commondir", "../..\n")
	f.file("/home/u/src/main/.git/worktrees/proj/gitdir", proj+"/.git\n")
	f.file(proj+"/.git", "gitdir: /home/u/src/main/.git/worktrees/proj\n")
}

func TestOutsideWorktree(t *testing.T) {
	f := newFake(t)
	fakeRepo(f, "[core]\n\trepositoryformatversion = 0\n")
	p := f.plan()
	f.wants(p, cell.Bind, "/home/u/src/main/.git")
	checkF60(f, p)
	if v := f.view(p); !strings.Contains(v["/home/u/src/main/.git/config"], "repositoryformatversion") {
		t.Error("a harmless config is hidden")
	}
}

func TestOutsideWorktreeWithAPassword(t *testing.T) {
	f := newFake(t)
	fakeRepo(f, "[remote \"origin\"]\n\turl = https://u:"+canary+"@example.com/x.git\n")
	p := f.plan()
	f.wants(p, cell.Bind, "/home/u/src/main/.git")
	wantsNote(t, p, "/home/u/src/main/.git/config", "password")
	checkF60(f, p)
}

// A project can't have another repository's objects by naming it.
func TestF63WorktreeThatLies(t *testing.T) {
	f := newFake(t)
	fakeRepo(f, "")
	f.file("/home/u/src/main/.git/worktrees/proj/gitdir", "/home/u/src/elsewhere/.git\n")
	f.file("/home/u/src/main/.git/HEAD", canary)
	p := f.plan()
	wantsNote(t, p, ".git", "not this worktree's")
	checkF60(f, p)

	f.file(proj+"/.git", "gitdir: ../main/.git\n")
	checkF60(f, f.plan())
}

func TestOutsideSubmoduleAndAlternates(t *testing.T) {
	f := newFake(t)
	f.file(proj+"/.git", "gitdir: ../.git/modules/proj\n")
	f.file("/home/u/src/.git/modules/proj/HEAD", "x")
	f.file("/home/u/src/.git/modules/proj/config", "[core]\n\tworktree = ../../../proj\n")
	f.file("/home/u/src/.git/modules/proj/objects/info/alternates", "/data/mirror/objects\n/home/u/Documents\n")
	f.dir("/data/mirror/objects/pack")
	f.file("/home/u/Documents/x", canary)
	p := f.plan()
	f.wants(p, cell.Bind, "/home/u/src/.git/modules/proj", "/data/mirror/objects")
	wantsNote(t, p, ".git", "no store of git objects")
	checkF60(f, p)
}

func TestOutsideSymlinks(t *testing.T) {
	f := newFake(t)
	f.file("/data/set/x", "data")
	f.link(proj+"/data", "/data/set")
	f.link(proj+"/sub/shared", "../../shared/file.txt")
	f.file("/home/u/src/shared/file.txt", "shared")
	f.file("/home/u/src/shared/other.txt", canary)
	f.link(proj+"/a/b/deep", "/data/deep")
	f.file("/data/deep/x", canary)
	f.link(proj+"/inside", "main.txt")
	f.link(proj+"/zone", "/usr/share/zoneinfo")
	f.dir("/usr/share/zoneinfo")
	f.link(proj+"/dangling", "/nowhere")
	f.link(proj+"/null", "/dev/null")
	f.link(proj+"/home", "/home/u")
	f.link(proj+"/up", "../..")
	f.link(proj+"/docs", "../../Documents")
	f.file("/home/u/Documents/x", canary)
	f.link(proj+"/conf", "/home/u/.config/app")
	f.file("/home/u/.config/app/x", canary)
	f.link(proj+"/keys", "/home/u/.ssh")
	f.file("/home/u/.ssh/id", canary)
	f.link(proj+"/sock", "/run/docker.sock")
	f.socket("/run/docker.sock")
	f.link(proj+"/result", "/nix/store/abc-out")
	f.file("/nix/store/abc-out/x", "out")
	f.file("/nix/store/def-dep/x", "dep")
	f.link(proj+"/.env", "../secrets/.env")
	f.file("/home/u/src/secrets/.env", canary)
	f.link(proj+"/.env.local", "../secrets/prod")
	f.file("/home/u/src/secrets/prod", canary)
	p := f.plan()
	f.wants(p, cell.Bind, "/data/set", "/home/u/src/shared/file.txt", "/nix/store")
	f.wantsNone(p, "/data/deep")
	for at, word := range map[string]string{"home": "home directory", "up": "home directory", "docs": "personal", "conf": "personal", "keys": "SSH keys", "sock": "sockets", ".env": "secret"} {
		wantsNote(t, p, at, word)
	}
	wantsNote(t, p, "docs", "--mount /home/u/Documents:/home/u/Documents")
	for _, n := range p.Notes {
		if n.Path == "keys" && n.Fix != "" {
			t.Errorf("a fix is offered for %+v", n)
		}
		if slices.Contains([]string{"dangling", "null", "zone", "inside"}, n.Path) {
			t.Errorf("note %+v about what needs none", n)
		}
	}
	checkF60(f, p)
}

// Each fix that a note offers is accepted.
func TestNotesOfferWhatWorks(t *testing.T) {
	f := newFake(t)
	f.link(proj+"/docs", "/home/u/Documents")
	f.file("/home/u/Documents/x", "x")
	f.link(proj+"/keys", "/home/u/.ssh")
	f.file("/home/u/.ssh/id", canary)
	f.file(proj+"/go.mod", "module m\nreplace a => ../nomod\n")
	f.dir("/home/u/src/nomod")
	tried := 0
	for _, n := range f.plan().Notes {
		if m, ok := strings.CutPrefix(n.Fix, "--mount "); ok {
			tried++
			f.req.Mounts = []string{m}
			f.plan()
		}
	}
	if tried != 2 {
		t.Errorf("%d fixes, want 2", tried)
	}
}

// However large a project is, only its top is looked at.
func TestOutsideIsBounded(t *testing.T) {
	f := newFake(t)
	for i := range maxFolders + 100 {
		f.dir(fmt.Sprintf("%s/d%d/e", proj, i))
	}
	f.file(proj+"/node_modules/x/go.mod", "replace a => /data/x\n")
	f.file("/data/x/go.mod", canary)
	tree := newTree(f.root)
	p, err := newPlanner(f.req)
	f.must(err)
	p.t, p.g.t = tree, tree
	f.must(p.base())
	f.must(p.etc())
	before := len(tree.infos)
	p.outside()
	if n := len(tree.infos) - before; n > maxFolders+100 {
		t.Errorf("%d files looked at", n)
	}
	checkF60(f, f.plan())
}

func FuzzManifests(f *testing.F) {
	f.Add("replace a => ../b\nuse (\n../c\n)\n-e ../x\npath = \"../y\"\n")
	f.Add("{\"dependencies\":{\"a\":\"file:../b\"}}")
	f.Fuzz(func(t *testing.T, text string) {
		for _, parse := range []func(string) []string{goLeads, tomlPaths, npmLeads, requirementLeads} {
			for _, to := range parse(text) {
				if to == "" {
					t.Errorf("an empty lead from %q", text)
				}
			}
		}
		editableOf([]byte(text))
		splitMount(text)
		envProgram(strings.Fields(text))
	})
}
