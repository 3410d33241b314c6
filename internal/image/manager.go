package image

import (
	"path"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// A manager is a program that keeps toolchains in a directory of its own. The
// table says what of that directory belongs into a cell; what is not in the
// table is found by the general rule in install.go.
type manager struct {
	name string
	env  string   // the variable that moves its directory
	dirs []string // where it is otherwise; "~/" is the home
	// units are the parts that are mounted when something in them is used, as
	// patterns by component: "versions/node/*" is one version, "" stands for
	// the directory alone, of which only what is in "with" is mounted. No
	// units: the whole directory, because its programs find each other in it.
	units []string
	with  []string // parts that always go with a unit
	cache []string // parts that tools install into: writable, thrown away
	loose bool     // programs in it are looked at one by one
	// programs are those that use the directory without lying in it: if one of
	// them is on PATH, what goes with every unit is mounted.
	programs []string
}

var managers = []manager{
	// JavaScript
	{name: "nvm", env: "NVM_DIR", dirs: []string{"~/.nvm", "~/.config/nvm"}, units: []string{"versions/*/*"}, with: []string{"nvm.sh", "nvm-exec", "bash_completion", "alias"}},
	{name: "fnm", env: "FNM_DIR", dirs: []string{"~/.local/share/fnm", "~/.fnm"}, units: []string{"node-versions/*", "fnm"}, with: []string{"aliases"}, programs: []string{"fnm"}},
	{name: "volta", env: "VOLTA_HOME", dirs: []string{"~/.volta"}, programs: []string{"volta"}},
	{name: "nodenv", env: "NODENV_ROOT", dirs: []string{"~/.nodenv"}},
	{name: "bun", env: "BUN_INSTALL", dirs: []string{"~/.bun"}, units: []string{"bin", "install/global"}, with: []string{"bin", "install/global"}},
	{name: "deno", env: "DENO_INSTALL", dirs: []string{"~/.deno"}, units: []string{"bin"}},
	{name: "pnpm", env: "PNPM_HOME", dirs: []string{"~/.local/share/pnpm"}, cache: []string{""}, programs: []string{"pnpm"}},
	{name: "yarn", dirs: []string{"~/.yarn"}, units: []string{"bin"}, with: []string{"lib", "releases"}},
	{name: "yarn", dirs: []string{"~/.config/yarn/global"}, units: []string{"node_modules"}},

	// Python
	{name: "pyenv", env: "PYENV_ROOT", dirs: []string{"~/.pyenv"}, programs: []string{"pyenv"}},
	{name: "uv", env: "UV_PYTHON_INSTALL_DIR", dirs: []string{"~/.local/share/uv/python"}, programs: []string{"uv", "python3", "python"}},
	{name: "uv", env: "UV_TOOL_DIR", dirs: []string{"~/.local/share/uv/tools"}, units: []string{"*"}},
	{name: "pipx", env: "PIPX_HOME", dirs: []string{"~/.local/share/pipx", "~/.local/pipx"}, units: []string{"venvs/*", "shared"}, with: []string{"shared"}},
	{name: "poetry", env: "POETRY_HOME", dirs: []string{"~/.local/share/pypoetry"}, units: []string{"venv", "bin"}, with: []string{"venv"}},
	{name: "hatch", dirs: []string{"~/.local/share/hatch"}, units: []string{"pythons", "env/*/*"}},
	{name: "rye", env: "RYE_HOME", dirs: []string{"~/.rye"}, units: []string{"shims", "self", "py", "tools"}, with: []string{"shims", "self", "py", "tools"}},
	{name: "conda", env: "MAMBA_ROOT_PREFIX", dirs: []string{"~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "~/micromamba", "~/miniconda", "~/anaconda", "~/.local/share/mamba", "/opt/conda", "/opt/miniconda3", "/opt/anaconda3", "/opt/miniforge3"}, programs: []string{"conda", "mamba", "micromamba"}},
	{name: "pixi", env: "PIXI_HOME", dirs: []string{"~/.pixi"}, units: []string{"bin", "envs/*"}, with: []string{"bin", "envs"}},

	// Go, Rust, C
	{name: "go", env: "GOPATH", dirs: []string{"~/go"}, units: []string{"bin"}, cache: []string{"bin"}, loose: true},
	{name: "go", dirs: []string{"~/sdk"}, units: []string{"*"}},
	{name: "gvm", env: "GVM_ROOT", dirs: []string{"~/.gvm"}},
	{name: "goenv", env: "GOENV_ROOT", dirs: []string{"~/.goenv"}},
	{name: "rustup", env: "RUSTUP_HOME", dirs: []string{"~/.rustup"}, units: []string{"toolchains"}, with: []string{"toolchains", "settings.toml"}, programs: []string{"rustup"}},
	{name: "cargo", env: "CARGO_HOME", dirs: []string{"~/.cargo"}, units: []string{"bin"}, with: []string{"env"}, cache: []string{"bin"}, loose: true},
	{name: "zvm", dirs: []string{"~/.zvm"}},
	{name: "emsdk", env: "EMSDK", dirs: []string{"~/emsdk"}},

	// Ruby, Perl, PHP, Lua
	{name: "rbenv", env: "RBENV_ROOT", dirs: []string{"~/.rbenv"}, programs: []string{"rbenv"}},
	{name: "rvm", dirs: []string{"~/.rvm"}},
	{name: "chruby", dirs: []string{"~/.rubies"}, units: []string{"*"}},
	{name: "gem", dirs: []string{"~/.gem", "~/.local/share/gem"}, units: []string{"ruby/*"}},
	{name: "perlbrew", dirs: []string{"~/perl5"}},
	{name: "plenv", env: "PLENV_ROOT", dirs: []string{"~/.plenv"}},
	{name: "phpenv", env: "PHPENV_ROOT", dirs: []string{"~/.phpenv"}},
	{name: "composer", dirs: []string{"~/.config/composer", "~/.composer"}, units: []string{"vendor"}},
	{name: "luarocks", dirs: []string{"~/.luarocks"}, units: []string{"bin", "lib", "share"}, with: []string{"bin", "lib", "share"}},

	// Java and what runs on it, .NET, Android, Dart
	{name: "sdkman", env: "SDKMAN_DIR", dirs: []string{"~/.sdkman"}, units: []string{"candidates/*/*"}},
	{name: "jdk", dirs: []string{"~/.jdks"}, units: []string{"*"}},
	{name: "jenv", env: "JENV_ROOT", dirs: []string{"~/.jenv"}},
	{name: "jabba", dirs: []string{"~/.jabba"}, units: []string{"jdk/*"}},
	{name: "coursier", dirs: []string{"~/.local/share/coursier"}, units: []string{"bin"}},
	{name: "dotnet", env: "DOTNET_ROOT", dirs: []string{"~/.dotnet"}, units: append([]string{""}, dotnetParts...), with: dotnetParts, programs: []string{"dotnet"}},
	{name: "android", env: "ANDROID_HOME", dirs: []string{"~/Android/Sdk"}},
	{name: "flutter", env: "FLUTTER_ROOT", dirs: []string{"~/flutter", "~/development/flutter"}},
	{name: "fvm", dirs: []string{"~/fvm"}},
	{name: "dart", dirs: []string{"~/.pub-cache"}, units: []string{"bin"}, with: []string{"global_packages"}},

	// Haskell, OCaml, Elixir, Julia, Lean, Swift, others
	{name: "ghcup", dirs: []string{"~/.ghcup"}, programs: []string{"ghcup"}},
	{name: "cabal", env: "CABAL_DIR", dirs: []string{"~/.cabal"}, units: []string{"bin", "store"}, with: []string{"store"}, programs: []string{"cabal"}},
	{name: "stack", env: "STACK_ROOT", dirs: []string{"~/.stack"}, units: []string{"programs", "snapshots"}, with: []string{"programs", "snapshots", "pantry"}, programs: []string{"stack"}},
	{name: "opam", env: "OPAMROOT", dirs: []string{"~/.opam"}, programs: []string{"opam"}},
	{name: "juliaup", dirs: []string{"~/.juliaup"}, programs: []string{"juliaup", "julialauncher"}},
	{name: "juliaup", dirs: []string{"~/.julia"}, units: []string{"juliaup"}, with: []string{"juliaup"}, programs: []string{"juliaup", "julialauncher"}},
	{name: "elan", env: "ELAN_HOME", dirs: []string{"~/.elan"}, programs: []string{"elan"}},
	{name: "swiftly", dirs: []string{"~/.local/share/swiftly", "~/.swiftly"}},
	{name: "kiex", dirs: []string{"~/.kiex"}},
	{name: "foundry", dirs: []string{"~/.foundry"}, units: []string{"bin", "versions"}, with: []string{"bin", "versions"}},
	{name: "wasmer", env: "WASMER_DIR", dirs: []string{"~/.wasmer"}, units: []string{"bin", "lib"}, with: []string{"bin", "lib"}},
	{name: "tfenv", dirs: []string{"~/.tfenv"}},
	{name: "google-cloud-sdk", dirs: []string{"~/google-cloud-sdk", "/opt/google-cloud-sdk"}},

	// many languages, packages
	{name: "mise", env: "MISE_DATA_DIR", dirs: []string{"~/.local/share/mise"}, units: []string{"installs", "shims", "plugins", "bin"}, with: []string{"installs", "shims", "plugins"}, programs: []string{"mise"}},
	{name: "asdf", env: "ASDF_DATA_DIR", dirs: []string{"~/.asdf"}, programs: []string{"asdf"}},
	{name: "asdf", env: "ASDF_DIR"},
	{name: "proto", env: "PROTO_HOME", dirs: []string{"~/.proto"}, programs: []string{"proto"}},
	{name: "aqua", dirs: []string{"~/.local/share/aquaproj-aqua"}},
	{name: "homebrew", env: "HOMEBREW_PREFIX", dirs: []string{"/home/linuxbrew/.linuxbrew", "~/.linuxbrew"}},
	{name: "nix", dirs: []string{"/nix/store"}},
	{name: "guix", dirs: []string{"/gnu/store"}},

	// agents that install themselves
	{name: "claude", dirs: []string{"~/.claude/local"}},
	{name: "claude", dirs: []string{"~/.local/share/claude"}, units: []string{"versions"}},
	{name: "cursor-agent", dirs: []string{"~/.local/share/cursor-agent"}, units: []string{"versions"}},
	{name: "opencode", dirs: []string{"~/.opencode"}, units: []string{"bin"}},
}

// dotnetParts leaves out ~/.dotnet/corefx, which holds private keys.
var dotnetParts = []string{"dotnet", "host", "sdk", "shared", "packs", "tools", "templates", "library-packs", "sdk-manifests", "metadata"}

// managerRoots returns the table by directory, for this caller.
func managerRoots(p *planner) map[string]*manager {
	rows := make(map[string]*manager, 2*len(managers))
	add := func(dir string, m *manager) {
		if !path.IsAbs(dir) {
			return
		}
		dir = path.Clean(dir)
		if rows[dir] == nil && !p.broad(dir) {
			rows[dir] = m
		}
	}
	for i := range managers {
		m := &managers[i]
		if m.env == "" {
			continue
		}
		for _, dir := range strings.Split(p.env[m.env], ":") {
			add(dir, m)
		}
	}
	for i := range managers {
		for _, dir := range managers[i].dirs {
			if rest, ok := strings.CutPrefix(dir, "~/"); ok {
				add(join(p.req.Home, rest), &managers[i])
				add(join(p.home, rest), &managers[i])
			} else {
				add(dir, &managers[i])
			}
		}
	}
	if prefix := p.npmPrefix(); prefix != "" {
		add(prefix, &npmGlobal)
	}
	return rows
}

// npmGlobal is the folder of `npm install -g` when it is not node's own.
var npmGlobal = manager{name: "npm", units: []string{"bin", "lib"}, with: []string{"bin", "lib/node_modules"}}

// npmPrefix reads what `npm prefix -g` would say, without executing npm.
func (p *planner) npmPrefix() string {
	for _, name := range []string{"NPM_CONFIG_PREFIX", "npm_config_prefix"} {
		if v := p.env[name]; path.IsAbs(v) {
			return path.Clean(v)
		}
	}
	file := p.env["NPM_CONFIG_USERCONFIG"]
	if !path.IsAbs(file) {
		file = join(p.req.Home, ".npmrc")
	}
	if pl := p.t.resolve(file); p.inSource(pl.path) || p.redirected(pl) {
		return ""
	}
	for line := range strings.Lines(p.t.text(file, 1<<20)) {
		k, v, ok := strings.Cut(line, "=")
		if !ok || strings.TrimSpace(k) != "prefix" {
			continue
		}
		v = strings.Trim(strings.TrimSpace(v), `"'`)
		for _, home := range []string{"~", "${HOME}", "$HOME"} {
			if rest, ok := strings.CutPrefix(v, home+"/"); ok {
				v = join(p.req.Home, rest)
			}
		}
		if path.IsAbs(v) {
			return path.Clean(v)
		}
	}
	return ""
}

// managerOf finds the row for what lies at pl, which was reached as asked. It
// returns the manager's directory and the rest of the path in it, both
// without symlinks.
func (p *planner) managerOf(asked string, pl place) (m *manager, root, rest string) {
	try := func(at string) bool {
		for dir := at; len(dir) > 1; dir = path.Dir(dir) {
			row := p.rows[dir]
			if row == nil {
				continue
			}
			if real := p.t.resolve(dir).path; within(real, pl.path) {
				m, root, rest = row, real, strings.TrimPrefix(strings.TrimPrefix(pl.path, real), "/")
				return true
			}
		}
		return false
	}
	if try(pl.path) || asked != "" && try(asked) {
		return m, root, rest
	}
	for _, l := range pl.links {
		if try(l.at) {
			return m, root, rest
		}
	}
	return nil, "", ""
}

// A part is something to mount of an install root.
type part struct {
	path string
	kind cell.MountKind
}

// parts says what is mounted when rest is used of the manager's directory.
func (m *manager) parts(root, rest string) (out []part) {
	add := func(rel string) { out = append(out, m.part(root, rel)) }
	if len(m.units) == 0 {
		add("")
		return out
	}
	for _, u := range m.units {
		if unit, ok := matchUnit(u, rest); ok {
			if unit != "" {
				add(unit)
			}
			for _, w := range m.with {
				if w != unit {
					add(w)
				}
			}
			return out
		}
	}
	return nil
}

// always says what is mounted when the manager's own program is there.
func (m *manager) always(root string) (out []part) {
	if len(m.units) == 0 {
		return []part{m.part(root, "")}
	}
	for _, w := range m.with {
		out = append(out, m.part(root, w))
	}
	return out
}

func (m *manager) part(root, rel string) part {
	kind := cell.Bind
	if slices.Contains(m.cache, rel) {
		kind = cell.Cache
	}
	return part{path.Join(root, rel), kind}
}

// matchUnit returns the beginning of rest that the pattern stands for. The
// empty pattern stands for the directory itself.
func matchUnit(pattern, rest string) (string, bool) {
	if pattern == "" {
		return "", rest == ""
	}
	want, have := strings.Split(pattern, "/"), strings.Split(rest, "/")
	if len(have) < len(want) || rest == "" {
		return "", false
	}
	for i, w := range want {
		if w != "*" && w != have[i] {
			return "", false
		}
	}
	return strings.Join(have[:len(want)], "/"), true
}
