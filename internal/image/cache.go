package image

import (
	"path"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// A store is a directory that tools fill and read again: it becomes the lower
// layer of a writable one that is thrown away with the cell.
type store struct {
	name  string
	tools []string // one of them must be on PATH
	env   string   // the variable that moves it
	sub   string   // below what env names
	dirs  []string // where it is otherwise; "~/" is the home, "~cache/" XDG_CACHE_HOME
}

// stores lists no directory that holds credentials: of those that do, only
// the parts without (cargo's registry, not its credentials.toml).
var stores = []store{
	{"go modules", []string{"go"}, "GOMODCACHE", "", []string{"~gopath/pkg/mod"}},
	{"go build", []string{"go"}, "GOCACHE", "", []string{"~cache/go-build"}},
	{"golangci-lint", []string{"golangci-lint"}, "GOLANGCI_LINT_CACHE", "", []string{"~cache/golangci-lint"}},
	{"staticcheck", []string{"staticcheck"}, "STATICCHECK_CACHE", "", []string{"~cache/staticcheck"}},

	{"npm", []string{"npm", "npx"}, "npm_config_cache", "_cacache", []string{"~/.npm/_cacache"}},
	{"npm headers", []string{"npm", "node"}, "", "", []string{"~cache/node-gyp"}},
	{"corepack", []string{"corepack", "yarn", "pnpm"}, "COREPACK_HOME", "", []string{"~cache/node/corepack"}},
	{"yarn", []string{"yarn", "corepack"}, "YARN_CACHE_FOLDER", "", []string{"~cache/yarn"}},
	{"yarn berry", []string{"yarn", "corepack"}, "", "", []string{"~/.yarn/berry/cache"}},
	{storePNPM, []string{"pnpm", "corepack"}, "npm_config_store_dir", "", []string{"~/.local/share/pnpm/store"}},
	{"pnpm metadata", []string{"pnpm", "corepack"}, "", "", []string{"~cache/pnpm"}},
	{"bun", []string{"bun"}, "BUN_INSTALL_CACHE_DIR", "", []string{"~/.bun/install/cache"}},
	{"deno", []string{"deno"}, "DENO_DIR", "", []string{"~cache/deno"}},
	{"playwright", []string{"node", "python3"}, "PLAYWRIGHT_BROWSERS_PATH", "", []string{"~cache/ms-playwright"}},
	{"puppeteer", []string{"node"}, "PUPPETEER_CACHE_DIR", "", []string{"~cache/puppeteer"}},
	{"cypress", []string{"node"}, "CYPRESS_CACHE_FOLDER", "", []string{"~cache/Cypress"}},
	{"electron", []string{"node"}, "", "", []string{"~cache/electron"}},

	{"pip", []string{"pip", "pip3", "python3", "python"}, "PIP_CACHE_DIR", "", []string{"~cache/pip"}},
	{"uv", []string{"uv"}, "UV_CACHE_DIR", "", []string{"~cache/uv"}},
	{"poetry", []string{"poetry"}, "POETRY_CACHE_DIR", "", []string{"~cache/pypoetry"}},
	{"pre-commit", []string{"pre-commit"}, "PRE_COMMIT_HOME", "", []string{"~cache/pre-commit"}},
	{"conda", []string{"conda", "mamba"}, "CONDA_PKGS_DIRS", "", []string{"~/.conda/pkgs"}},
	{"hugging face", []string{"python3", "python"}, "HF_HUB_CACHE", "", []string{"~cache/huggingface/hub"}},

	{"cargo registry", []string{"cargo"}, "CARGO_HOME", "registry", []string{"~/.cargo/registry"}},
	{"cargo git", []string{"cargo"}, "CARGO_HOME", "git", []string{"~/.cargo/git"}},
	{"cargo target", []string{"cargo"}, "CARGO_TARGET_DIR", "", nil},
	{"sccache", []string{"sccache"}, "SCCACHE_DIR", "", []string{"~cache/sccache"}},
	{"ccache", []string{"ccache"}, "CCACHE_DIR", "", []string{"~cache/ccache", "~/.ccache"}},
	{"zig", []string{"zig"}, "ZIG_GLOBAL_CACHE_DIR", "", []string{"~cache/zig"}},
	{"conan", []string{"conan"}, "", "", []string{"~/.conan2/p"}},
	{"bazel", []string{"bazel", "bazelisk"}, "", "", []string{"~cache/bazelisk", "~cache/bazel-repo"}},

	{"maven", []string{"mvn", "java"}, "", "", []string{"~/.m2/repository"}},
	{"maven wrapper", []string{"java"}, "", "", []string{"~/.m2/wrapper"}},
	{"gradle", []string{"gradle", "java"}, "GRADLE_USER_HOME", "caches", []string{"~/.gradle/caches"}},
	{"gradle wrapper", []string{"java"}, "GRADLE_USER_HOME", "wrapper", []string{"~/.gradle/wrapper"}},
	{"gradle native", []string{"java"}, "GRADLE_USER_HOME", "native", []string{"~/.gradle/native"}},
	{"ivy", []string{"java"}, "", "", []string{"~/.ivy2/cache"}},
	{"coursier", []string{"java"}, "COURSIER_CACHE", "", []string{"~cache/coursier"}},
	{"sbt", []string{"sbt"}, "", "", []string{"~/.sbt/boot"}},
	{"nuget", []string{"dotnet"}, "NUGET_PACKAGES", "", []string{"~/.nuget/packages"}},

	{"composer", []string{"composer", "php"}, "COMPOSER_CACHE_DIR", "", []string{"~cache/composer"}},
	{"bundler", []string{"bundle"}, "", "", []string{"~/.bundle/cache"}},
	{"hex", []string{"mix"}, "", "", []string{"~/.hex/packages"}},
	{"mix", []string{"mix"}, "MIX_HOME", "", []string{"~/.mix"}},
	{"rebar3", []string{"rebar3", "mix"}, "", "", []string{"~cache/rebar3"}},
	{"dart", []string{"dart", "flutter"}, "PUB_CACHE", "hosted", []string{"~/.pub-cache/hosted"}},
	{"cabal", []string{"cabal"}, "", "", []string{"~/.cabal/packages"}},
	{"julia packages", []string{"julia"}, "", "", []string{"~/.julia/packages"}},
	{"julia compiled", []string{"julia"}, "", "", []string{"~/.julia/compiled"}},
	{"julia artifacts", []string{"julia"}, "", "", []string{"~/.julia/artifacts"}},
	{"julia registries", []string{"julia"}, "", "", []string{"~/.julia/registries"}},
}

// A setting is a file or directory of a tool's settings that is shown
// read-only, if nothing in it looks like a secret.
type setting struct {
	tool string
	env  string
	path string
}

var settings = []setting{
	{"go", "GOENV", "~/.config/go/env"},
	{"cargo", "", "~/.cargo/config.toml"},
	{"cargo", "", "~/.cargo/config"},
	{"mise", "MISE_GLOBAL_CONFIG_FILE", "~/.config/mise/config.toml"},
	{"asdf", "", "~/.tool-versions"},
	{"asdf", "ASDF_CONFIG_FILE", "~/.asdfrc"},
	{"node", "", "~/.nvmrc"},
	{"dotnet", "", "~/.nuget/NuGet/NuGet.Config"},
	{"clang-format", "", "~/.clang-format"},
}

// maxSetting bounds a file of settings.
const maxSetting = 256 << 10

// caches shows what tools keep between runs, for the tools that are there.
func (p *planner) caches() {
	for _, s := range stores {
		if !p.hasTool(s.tools...) {
			continue
		}
		dirs := s.dirs
		if v := p.setting(s.env); path.IsAbs(v) {
			dirs = []string{path.Join(v, s.sub)}
		}
		for _, dir := range dirs {
			dir = p.expand(dir)
			pl := p.t.resolve(dir)
			if !pl.isDir() || p.broad(pl.path) {
				continue
			}
			if refused := p.show(dir, cell.Cache, "cache "+s.name); refused != "" {
				p.note(dir, "the cache of "+s.name+" is not in the cell: "+refused, "")
			}
			break
		}
	}
	for _, s := range settings {
		if !p.hasTool(s.tool) {
			continue
		}
		at := p.expand(s.path)
		if v := p.env[s.env]; s.env != "" && path.IsAbs(v) {
			at = v
		}
		p.showSetting(at, s.tool)
	}
	p.userSite()
}

func (p *planner) showSetting(at, tool string) {
	pl := p.t.resolve(at)
	if !pl.isFile() || p.shown(pl.path) {
		return
	}
	text := p.t.text(at, maxSetting)
	if text == "" {
		return
	}
	if hasSecret(text) {
		p.note(at, "the settings of "+tool+" are not in the cell: they hold what looks like a secret", "")
		return
	}
	p.show(at, cell.Bind, "settings "+tool)
}

// userSite shows what `pip install --user` installed.
func (p *planner) userSite() {
	lib := join(p.home, ".local/lib")
	for _, e := range p.t.list(lib) {
		if e.mode.IsDir() && strings.HasPrefix(e.name, "python") && p.hasTool(e.name, "python3") {
			p.show(join(lib, e.name), cell.Bind, "python packages of the user")
			p.sitePackages(join(lib, e.name)+"/site-packages", false)
		}
	}
}

func (p *planner) hasTool(names ...string) bool {
	for _, n := range names {
		if p.lookupOwn(n) != "" {
			return true
		}
	}
	return false
}

// setting returns what a variable is set to, also by go's own file.
func (p *planner) setting(name string) string {
	if name == "" {
		return ""
	}
	if v := p.env[name]; v != "" {
		return v
	}
	if name == "npm_config_cache" {
		return p.env["NPM_CONFIG_CACHE"]
	}
	if !strings.HasPrefix(name, "GO") {
		return ""
	}
	file := p.env["GOENV"]
	if !path.IsAbs(file) {
		file = p.expand("~/.config/go/env")
	}
	if pl := p.t.resolve(file); p.inSource(pl.path) || p.redirected(pl) {
		return ""
	}
	for line := range strings.Lines(p.t.text(file, maxSetting)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && k == name {
			return v
		}
	}
	return ""
}

// expand replaces the beginning of a path in the tables.
func (p *planner) expand(at string) string {
	head, rest, ok := strings.Cut(at, "/")
	if !ok || !strings.HasPrefix(head, "~") {
		return at
	}
	base := p.req.Home
	switch head {
	case "~cache":
		base = join(p.req.Home, ".cache")
		if v := p.env["XDG_CACHE_HOME"]; path.IsAbs(v) {
			base = path.Clean(v)
		}
	case "~gopath":
		base = join(p.req.Home, "go")
		if v, _, _ := strings.Cut(p.setting("GOPATH"), ":"); path.IsAbs(v) {
			base = path.Clean(v)
		}
	}
	return join(base, rest)
}
