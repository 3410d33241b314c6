package image

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
)

const proj = "/home/u/src/proj"

// wantsOutside expects that from leads to each of the places, that none of them
// is in the cell, and that the flag which is offered lets it in.
func (f *fake) wantsOutside(p *HostPlan, from string, to ...string) {
	f.t.Helper()
	for _, want := range to {
		i := slices.IndexFunc(p.Outside, func(l Lead) bool { return l.To == want && (from == "" || l.From == from) })
		if i < 0 {
			f.t.Errorf("%s does not lead to %s: %+v", from, want, p.Outside)
			continue
		}
		for _, m := range p.Mounts {
			if src := strings.TrimPrefix(m.Source, f.root); m.Kind != cell.Link && (within(src, want) || within(want, src)) && src != "" && src != "/" {
				f.t.Errorf("%s is mounted: %+v", want, m)
			}
		}
		fix := p.Outside[i].Fix
		if fix == "" {
			continue
		}
		asked, ok := strings.CutPrefix(fix, "--mount ")
		if !ok {
			f.t.Errorf("%q is no flag", fix)
			continue
		}
		again := f.req
		again.Mounts = []string{strings.Trim(asked, "'")}
		q, err := Host(again)
		if err != nil {
			f.t.Errorf("%s is refused: %v", fix, err)
		} else if slices.Contains(q.Outside, p.Outside[i]) {
			f.t.Errorf("%s does not let %s in", fix, want)
		}
	}
}

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
	f.wantsOutside(p, "go.mod", "/home/u/src/a", "/home/u/src/b", "/home/u/src/private")
	f.wantsOutside(p, "go.work", "/home/u/src/w")
	f.wantsOutside(p, "cmd/x/go.mod", "/home/u/src/deep")
	checkF60(f, p)
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
	f.wantsOutside(p, "Cargo.toml", "/home/u/src/ws/a")
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
	f.wantsOutside(p, "package.json", "/home/u/src/a", "/home/u/src/t.tgz", "/home/u/src/x")
	f.wantsOutside(p, "node_modules/linked", "/home/u/src/linked")
	f.wantsOutside(p, "node_modules/@scope/pkg", "/home/u/src/scoped")
	f.wantsOutside(p, "node_modules/bad", "/home/u/Documents")
	checkF60(f, p)
}

// A fakePython is an installation as any manager leaves it.
func fakePython(f *fake, root string) {
	f.prog(root+"/bin/python3.12", "\x7fELF")
	f.link(root+"/bin/python3", "python3.12")
	f.file(root+"/lib/python3.12/os.py", "")
}

// What uv installed is the caller's; any other interpreter that a virtual
// environment of the source names is let in by a flag.
func TestOutsideVenv(t *testing.T) {
	for _, c := range []struct{ name, python, fix string }{
		{"uv", "/home/u/.local/share/uv/python/cpython-3.12.4-linux-x86_64-gnu", ""},
		{"pyenv", "/home/u/.pyenv/versions/3.12.4", "/home/u/.pyenv"},
		{"built by hand", "/home/u/.python/3.12", "/home/u/.python/3.12"},
		{"opt", "/opt/python", "/opt/python"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t)
			f.prog("/usr/bin/python3", "\x7fELF")
			fakePython(f, c.python)
			f.file(proj+"/.venv/pyvenv.cfg", "home = "+c.python+"/bin\nversion = 3.12.4\n")
			f.link(proj+"/.venv/bin/python", c.python+"/bin/python3.12")
			f.link(proj+"/.venv/bin/python3", "python")
			f.env("VIRTUAL_ENV", proj+"/.venv")
			f.path(proj + "/.venv/bin")
			p := f.plan()
			if c.fix == "" {
				f.wants(p, cell.Bind, "/home/u/.local/share/uv/python")
			} else {
				f.wantsOutside(p, ".venv/pyvenv.cfg", c.python+"/bin/python3.12")
				if p.Outside[0].Fix != "--mount "+c.fix+":"+c.fix {
					t.Errorf("the flag is %q", p.Outside[0].Fix)
				}
				f.req.Mounts = []string{c.fix + ":" + c.fix}
				p = f.plan()
			}
			if len(p.Notes)+len(p.Outside) > 0 {
				t.Errorf("notes: %+v, outside: %+v", p.Notes, p.Outside)
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
	f.wantsOutside(p, ".venv/pyvenv.cfg", "/home/u/.config/app/python3", "/home/u/Documents/bin/python3", "/home/u/.ssh/id_rsa")
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
	f.wantsOutside(p, ".venv/lib/python3.12/site-packages", "/home/u/src/a/src", "/home/u/src/b/b", "/home/u/src/c", "/home/u/src/d d", "/home/u/src", "/home/u", "/home/u/notes")
	checkF60(f, p)
}

func TestOutsidePythonManifests(t *testing.T) {
	f := newFake(t)
	f.file(proj+"/pyproject.toml", "[tool.uv.sources]\na = { path = \"../a\", editable = true }\n")
	f.file(proj+"/requirements-dev.txt", "-e ../b[extra]\nrequests==2\nc @ file:///home/u/src/c\n")
	for _, d := range []string{"a", "b", "c"} {
		f.file("/home/u/src/"+d+"/pyproject.toml", "")
	}
	f.wantsOutside(f.plan(), "", "/home/u/src/a", "/home/u/src/b", "/home/u/src/c")
}

// Neither git's pointers nor the stores that a repository borrows from are a
// reason to mount.
func TestX04GitPointers(t *testing.T) {
	f := newFake(t)
	f.file("/home/u/src/main/.git/HEAD", canary)
	f.file("/home/u/src/main/.git/worktrees/proj/commondir", "../..\n")
	f.file("/home/u/src/main/.git/worktrees/proj/gitdir", proj+"/.git\n")
	f.dir("/home/u/src/main/.git/objects/pack")
	f.file(proj+"/.git", "gitdir: /home/u/src/main/.git/worktrees/proj\n")
	f.file(proj+"/nested/.git", "gitdir: ../../main/.git\n")
	p := f.plan()
	f.wantsOutside(p, ".git", "/home/u/src/main/.git/worktrees/proj")
	f.wantsOutside(p, "nested/.git", "/home/u/src/main/.git")
	checkF60(f, p)

	f = newFake(t)
	f.file(proj+"/.git/objects/info/alternates", "/data/mirror/objects\n/home/u/Documents\n../../../other/.git/objects\n")
	f.file("/data/mirror/objects/pack/x", canary)
	f.file("/home/u/Documents/x", canary)
	f.file("/home/u/src/other/.git/objects/pack/x", canary)
	p = f.plan()
	f.wantsOutside(p, ".git", "/data/mirror/objects", "/home/u/Documents", "/home/u/src/other/.git/objects")
	checkF60(f, p)

	f = newFake(t)
	f.link(proj+"/.git", "../main/.git")
	f.file("/home/u/src/main/.git/credentials", canary)
	p = f.plan()
	f.wantsOutside(p, ".git", "/home/u/src/main/.git")
	checkF60(f, p)
}

// A path that the caller names does not lead where a symlink of the source
// says: in PATH, in a variable, as the command, as --mount.
func TestX04RedirectedByTheSource(t *testing.T) {
	for name, set := range map[string]func(f *fake){
		"PATH":          func(f *fake) { f.path(proj + "/data/bin") },
		"relative PATH": func(f *fake) { f.path("data/bin") },
		"PATH itself":   func(f *fake) { f.path(proj + "/bin") },
		"JAVA_HOME":     func(f *fake) { f.env("JAVA_HOME", proj+"/data") },
		"VIRTUAL_ENV":   func(f *fake) { f.env("VIRTUAL_ENV", proj+"/data") },
		"CARGO_HOME":    func(f *fake) { f.env("CARGO_HOME", proj+"/data"); f.prog("/usr/bin/cargo", "\x7fELF") },
		"PIP_CACHE_DIR": func(f *fake) { f.env("PIP_CACHE_DIR", proj+"/data"); f.prog("/usr/bin/python3", "\x7fELF") },
		"NVM_DIR":       func(f *fake) { f.env("NVM_DIR", proj+"/data") },
		"RUSTUP_HOME":   func(f *fake) { f.env("RUSTUP_HOME", proj+"/data"); f.prog("/usr/bin/rustup", "\x7fELF") },
		"GOENV": func(f *fake) {
			f.prog("/usr/bin/go", "\x7fELF")
			f.file(proj+"/goenv", "GOMODCACHE=/srv/acme\nGOCACHE=/srv/acme\n")
			f.env("GOENV", proj+"/goenv")
		},
		"npmrc": func(f *fake) {
			f.prog("/usr/bin/npm", "\x7fELF")
			f.file(proj+"/.npmrc", "prefix=/srv/acme\n")
			f.env("NPM_CONFIG_USERCONFIG", proj+"/.npmrc")
			f.path("/srv/acme/none")
		},
		"command":            func(f *fake) { f.req.Command = []string{"./data/bin/tool"} },
		"command by workdir": func(f *fake) { f.req.Workdir = proj + "/data"; f.req.Command = []string{"bin/tool"} },
		"command that links": func(f *fake) { f.req.Command = []string{"./tool"} },
		"interpreter":        func(f *fake) { f.prog(proj+"/script", "#!/srv/acme/bin/tool\n"); f.req.Command = []string{"./script"} },
		"interpreter on PATH": func(f *fake) {
			f.prog(proj+"/b/script", "#!/srv/acme/bin/tool\n")
			f.path(proj + "/b")
			f.req.Command = []string{"script"}
		},
		"env's interpreter": func(f *fake) {
			f.prog(proj+"/b/script", "#!/usr/bin/env tool\n")
			f.link(proj+"/b/tool", "/srv/acme/bin/tool")
			f.path(proj + "/b")
			f.req.Command = []string{"script"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			for _, at := range []string{"prod.conf", "registry/x", "toolchains/x", "lib/node_modules/x", "versions/node/v1/bin/x", "lib/python3.12/os.py", "pyvenv.cfg"} {
				f.file("/srv/acme/"+at, canary)
			}
			f.prog("/srv/acme/bin/tool", canary)
			f.link(proj+"/data", "/srv/acme")
			f.link(proj+"/bin", "/srv/acme/bin")
			f.link(proj+"/tool", "/srv/acme/bin/tool")
			f.link(proj+"/toolchains", "/srv/acme/toolchains")
			set(f)
			p := f.plan()
			checkF60(f, p)
			f.wantsOutside(p, "data", "/srv/acme")
			f.wantsOutside(p, "bin", "/srv/acme/bin")
			f.wantsOutside(p, "tool", "/srv/acme/bin/tool")
		})
	}
	f := newFake(t)
	f.file("/srv/acme/prod.conf", canary)
	f.link(proj+"/data", "/srv/acme")
	for _, m := range []string{"data:/data", proj + "/data:/data:rw", "./data/prod.conf:/conf"} {
		f.req.Mounts = []string{m}
		if err := f.fails(cell.Denied); !strings.Contains(cell.HintOf(err), "--mount /srv/acme") {
			t.Errorf("%s: hint %q", m, cell.HintOf(err))
		}
	}
}

// What the source has is no reason to show a cache or a toolchain.
func TestX04ToolsOfTheSource(t *testing.T) {
	f := newFake(t)
	for _, name := range []string{"cargo", "rustup", "conda", "pnpm"} {
		f.prog(proj+"/b/"+name, "\x7fELF")
	}
	f.file("/home/u/.cargo/registry/x", canary)
	f.file("/home/u/.rustup/toolchains/x", canary)
	f.file("/home/u/miniconda3/x", canary)
	f.file("/home/u/.local/share/pnpm/store/x", canary)
	f.path(proj + "/b")
	checkF60(f, f.plan())
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
	f.wantsOutside(p, "data", "/data/set")
	f.wantsOutside(p, "sub/shared", "/home/u/src/shared/file.txt")
	f.wantsOutside(p, "a/b/deep", "/data/deep")
	f.wantsOutside(p, "result", "/nix/store/abc-out")
	for at, word := range map[string]string{"home": "home directory", "up": "home directory", "keys": "SSH keys", "sock": "sockets", ".env": "secret"} {
		i := slices.IndexFunc(p.Outside, func(l Lead) bool { return l.From == at })
		if i < 0 || p.Outside[i].Fix != "" || !strings.Contains(p.Outside[i].Why, word) {
			t.Errorf("%s: %+v", at, p.Outside)
		}
	}
	f.wantsOutside(p, "docs", "/home/u/Documents")
	f.wantsOutside(p, "conf", "/home/u/.config/app")
	for _, l := range p.Outside {
		if slices.Contains([]string{"dangling", "null", "zone", "inside"}, l.From) {
			t.Errorf("%+v is named and needs no name", l)
		}
	}
	checkF60(f, p)
}

// A path with characters that a shell reads is quoted; one that no flag can
// name has none.
func TestOutsideFixIsQuoted(t *testing.T) {
	f := newFake(t)
	f.file("/data/it's $(x)/x", canary)
	f.file("/data/a:b/x", canary)
	f.link(proj+"/q", "/data/it's $(x)")
	f.link(proj+"/colon", "/data/a:b")
	p := f.plan()
	for _, l := range p.Outside {
		want := map[string]string{"q": `--mount '/data/it'\''s $(x):/data/it'\''s $(x)'`, "colon": ""}[l.From]
		if l.Fix != want {
			t.Errorf("%s: %s, want %s", l.From, l.Fix, want)
		}
	}
	if len(p.Outside) != 2 {
		t.Errorf("%+v", p.Outside)
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
			var leads []string
			boundtest.Allocates(t, len(text), func() { leads = parse(text) })
			for _, to := range leads {
				if to == "" {
					t.Errorf("an empty lead from %q", text)
				}
			}
		}
		boundtest.Allocates(t, len(text), func() {
			editableOf([]byte(text))
			splitMount(text)
			envProgram(strings.Fields(text))
		})
	})
}

// What one source points to in another is in the cell; what they point to outside of all is named from the directory above.
func TestOutsideSeveral(t *testing.T) {
	const lib = "/home/u/src/lib"
	f := newFake(t)
	f.file(proj+"/go.mod", "module m\n\nreplace example.com/lib => ../lib\nreplace example.com/a => ../a\n")
	f.file(lib+"/go.mod", "module lib\n\nreplace example.com/m => ../proj\nreplace example.com/b => ../b\n")
	for _, m := range []string{"a", "b"} {
		f.file("/home/u/src/"+m+"/go.mod", "module "+m)
	}
	f.link(proj+"/to-lib", "../lib/go.mod")
	f.req.Further, f.req.Top = []string{lib}, "/home/u/src"
	p := f.plan()
	f.wantsOutside(p, "proj/go.mod", "/home/u/src/a")
	f.wantsOutside(p, "lib/go.mod", "/home/u/src/b")
	if len(p.Outside) != 2 || !slices.Equal(p.Workspaces, []string{proj, lib}) {
		t.Errorf("%+v; workspaces %q", p.Outside, p.Workspaces)
	}
	f.req.Mounts = []string{"/home/u/src:/mnt"}
	f.fails(cell.Denied)
	f.req.Mounts, f.req.Further = nil, []string{"/home/u"}
	f.fails(cell.Denied)
}
