package image

const h = "/home/u"

// Each case builds a manager's real layout, puts on PATH what its
// instructions say, and names the mounts that must come of it. Every file with
// the canary must stay outside.
var managerCases = []struct {
	name   string
	make   func(f *fake)
	path   []string
	env    []string
	binds  []string
	caches []string
	links  map[string]string
	runs   []string // programs that must be found and be visible
}{
	{
		name: "nvm",
		make: func(f *fake) {
			f.prog(h+"/.nvm/versions/node/v20.1.0/bin/node", "\x7fELF")
			f.file(h+"/.nvm/versions/node/v20.1.0/lib/node_modules/npm/bin/npm-cli.js", "#!/usr/bin/env node\n")
			f.link(h+"/.nvm/versions/node/v20.1.0/bin/npm", "../lib/node_modules/npm/bin/npm-cli.js")
			f.prog(h+"/.nvm/versions/node/v18.0.0/bin/node", canary)
			f.file(h+"/.nvm/nvm.sh", "nvm() { :; }")
			f.file(h+"/.nvm/alias/default", "20")
			f.file(h+"/.nvm/.cache/x", canary)
		},
		path: []string{h + "/.nvm/versions/node/v20.1.0/bin"}, env: []string{"NVM_DIR=" + h + "/.nvm"},
		binds: []string{h + "/.nvm/versions/node/v20.1.0", h + "/.nvm/nvm.sh", h + "/.nvm/alias"}, runs: []string{"node"},
	},
	{
		name: "pyenv",
		make: func(f *fake) {
			f.prog(h+"/.pyenv/shims/python3", "#!/usr/bin/env bash\nexec \""+h+"/.pyenv/libexec/pyenv\" exec python3 \"$@\"\n")
			f.prog(h+"/.pyenv/libexec/pyenv", "#!/usr/bin/env bash\n")
			f.link(h+"/.pyenv/bin/pyenv", "../libexec/pyenv")
			f.prog(h+"/.pyenv/versions/3.12.1/bin/python3", "\x7fELF")
			f.file(h+"/.pyenv/version", "3.12.1\n")
		},
		path: []string{h + "/.pyenv/shims", h + "/.pyenv/bin"}, env: []string{"PYENV_ROOT=" + h + "/.pyenv"},
		binds: []string{h + "/.pyenv"}, runs: []string{"python3", "pyenv"},
	},
	{
		name: "uv and its tools",
		make: func(f *fake) {
			f.prog(h+"/.local/bin/uv", "\x7fELF")
			f.prog(h+"/.local/share/uv/python/cpython-3.12.4-linux-x86_64-gnu/bin/python3.12", "\x7fELF")
			f.link(h+"/.local/share/uv/python/cpython-3.12-linux-x86_64-gnu", h+"/.local/share/uv/python/cpython-3.12.4-linux-x86_64-gnu")
			f.link(h+"/.local/bin/python3.12", h+"/.local/share/uv/python/cpython-3.12-linux-x86_64-gnu/bin/python3.12")
			f.prog(h+"/.local/share/uv/tools/ruff/bin/ruff", "#!"+h+"/.local/share/uv/tools/ruff/bin/python\n")
			f.file(h+"/.local/share/uv/tools/ruff/pyvenv.cfg", "home = "+h+"/.local/share/uv/python/cpython-3.12-linux-x86_64-gnu/bin\n")
			f.link(h+"/.local/share/uv/tools/ruff/bin/python", h+"/.local/share/uv/python/cpython-3.12-linux-x86_64-gnu/bin/python3.12")
			f.link(h+"/.local/bin/ruff", h+"/.local/share/uv/tools/ruff/bin/ruff")
			f.file(h+"/.local/share/uv/credentials/x", canary)
			f.file(h+"/.local/share/other/x", canary)
		},
		path:  []string{h + "/.local/bin"},
		binds: []string{h + "/.local/bin", h + "/.local/share/uv/python", h + "/.local/share/uv/tools/ruff"}, runs: []string{"uv", "ruff", "python3.12"},
	},
	{
		name: "mise by shims",
		make: func(f *fake) {
			f.prog(h+"/.local/bin/mise", "\x7fELF")
			f.link(h+"/.local/share/mise/shims/node", h+"/.local/bin/mise")
			f.prog(h+"/.local/share/mise/installs/node/20.1.0/bin/node", "\x7fELF")
			f.file(h+"/.config/mise/config.toml", "[tools]\nnode = \"20\"\n")
			f.file(h+"/.local/share/mise/downloads/x", canary)
		},
		path:  []string{h + "/.local/share/mise/shims", h + "/.local/bin"},
		binds: []string{h + "/.local/share/mise/shims", h + "/.local/share/mise/installs", h + "/.local/bin", h + "/.config/mise/config.toml"}, runs: []string{"node", "mise"},
	},
	{
		name: "mise activated",
		make: func(f *fake) {
			f.prog(h+"/.local/share/mise/installs/go/1.22.1/bin/go", "\x7fELF")
			f.file(h+"/.config/mise/config.toml", "[env]\nAPI_KEY = \""+canary+"\"\n")
			f.prog("/usr/bin/mise", "\x7fELF")
		},
		path:  []string{h + "/.local/share/mise/installs/go/1.22.1/bin"},
		binds: []string{h + "/.local/share/mise/installs"}, runs: []string{"go"},
	},
	{
		name: "asdf",
		make: func(f *fake) {
			f.prog(h+"/.asdf/bin/asdf", "#!/usr/bin/env bash\n")
			f.prog(h+"/.asdf/shims/elixir", "#!/usr/bin/env bash\nexec asdf exec elixir \"$@\"\n")
			f.prog(h+"/.asdf/installs/elixir/1.16/bin/elixir", "#!/bin/sh\n")
			f.file(h+"/.tool-versions", "elixir 1.16\n")
		},
		path:  []string{h + "/.asdf/shims", h + "/.asdf/bin"},
		binds: []string{h + "/.asdf", h + "/.tool-versions"}, runs: []string{"elixir", "asdf"},
	},
	{
		name: "rustup",
		make: func(f *fake) {
			f.prog(h+"/.cargo/bin/rustup", "\x7fELF")
			f.link(h+"/.cargo/bin/cargo", "rustup")
			f.file(h+"/.cargo/env", "export PATH\n")
			f.file(h+"/.cargo/credentials.toml", canary)
			f.file(h+"/.cargo/config.toml", "[registry]\ntoken = \""+canary+"\"\n")
			f.prog(h+"/.rustup/toolchains/stable-x86_64-unknown-linux-gnu/bin/cargo", "\x7fELF")
			f.file(h+"/.rustup/settings.toml", "default_toolchain = \"stable\"\n")
			f.file(h+"/.rustup/downloads/x", canary)
			f.file(h+"/.cargo/registry/cache/x.crate", "crate")
		},
		path:  []string{h + "/.cargo/bin"},
		binds: []string{h + "/.rustup/toolchains", h + "/.rustup/settings.toml", h + "/.cargo/env"}, caches: []string{h + "/.cargo/bin", h + "/.cargo/registry"}, runs: []string{"cargo", "rustup"},
	},
	{
		name: "go in the home",
		make: func(f *fake) {
			f.prog(h+"/sdk/go1.26.0/bin/go", "\x7fELF")
			f.prog(h+"/go/bin/stringer", "\x7fELF")
			f.file(h+"/go/pkg/mod/example.com/m@v1.0.0/m.go", "package m")
			f.file(h+"/go/src/private/x.go", canary)
			f.file(h+"/sdk/go1.20.0/x", canary)
			f.file(h+"/.cache/go-build/00/x", "object")
			f.file(h+"/.config/go/env", "GOFLAGS=-mod=mod\n")
		},
		path:  []string{h + "/sdk/go1.26.0/bin", h + "/go/bin"},
		binds: []string{h + "/sdk/go1.26.0", h + "/.config/go/env"}, caches: []string{h + "/go/bin", h + "/go/pkg/mod", h + "/.cache/go-build"}, runs: []string{"go", "stringer"},
	},
	{
		name: "pipx on pyenv's python",
		make: func(f *fake) {
			f.prog(h+"/.pyenv/versions/3.11.2/bin/python3.11", "\x7fELF")
			f.link(h+"/.local/bin/black", h+"/.local/share/pipx/venvs/black/bin/black")
			f.prog(h+"/.local/share/pipx/venvs/black/bin/black", "#!"+h+"/.local/share/pipx/venvs/black/bin/python\n")
			f.link(h+"/.local/share/pipx/venvs/black/bin/python", h+"/.pyenv/versions/3.11.2/bin/python3.11")
			f.file(h+"/.local/share/pipx/venvs/black/pyvenv.cfg", "home = "+h+"/.pyenv/versions/3.11.2/bin\nversion = 3.11.2\n")
			f.file(h+"/.local/share/pipx/venvs/black/lib/python3.11/site-packages/pipx_shared.pth", h+"/.local/share/pipx/shared/lib/python3.11/site-packages\n")
			f.file(h+"/.local/share/pipx/shared/lib/python3.11/site-packages/pip/x.py", "")
			f.file(h+"/.local/share/pipx/venvs/poetry/x", canary)
		},
		path:  []string{h + "/.local/bin"},
		binds: []string{h + "/.local/bin", h + "/.local/share/pipx/venvs/black", h + "/.local/share/pipx/shared", h + "/.pyenv"}, runs: []string{"black"},
	},
	{
		name: "a user's script with its own interpreter",
		make: func(f *fake) {
			f.prog(h+"/bin/tool", "#!/opt/lang/1.0/bin/lang -x\n")
			f.prog("/opt/lang/1.0/bin/lang", "\x7fELF")
			f.file("/opt/lang/1.0/lib/x", "lib")
			f.file("/opt/lang/other", canary)
			f.file(h+"/notes.txt", canary)
		},
		path:  []string{h + "/bin"},
		binds: []string{h + "/bin", "/opt/lang/1.0"}, runs: []string{"tool"},
	},
	{
		name: "npm's global folder by .npmrc",
		make: func(f *fake) {
			f.prog("/usr/bin/npm", "x")
			f.file(h+"/.npmrc", "//registry.npmjs.org/:_authToken="+canary+"\nprefix=${HOME}/.npm-global\n")
			f.link(h+"/.npm-global/bin/tsc", "../lib/node_modules/typescript/bin/tsc")
			f.prog(h+"/.npm-global/lib/node_modules/typescript/bin/tsc", "#!/usr/bin/env node\n")
			f.file(h+"/.npm-global/etc/npmrc", canary)
			f.file(h+"/.npm/_cacache/index", "x")
			f.file(h+"/.npm/_logs/x", canary)
		},
		path:  []string{h + "/.npm-global/bin"},
		binds: []string{h + "/.npm-global/bin", h + "/.npm-global/lib/node_modules"}, caches: []string{h + "/.npm/_cacache"}, runs: []string{"tsc"},
	},
	{
		name: "npm into ~/.local",
		make: func(f *fake) {
			f.link(h+"/.local/bin/tsc", "../lib/node_modules/typescript/bin/tsc")
			f.prog(h+"/.local/lib/node_modules/typescript/bin/tsc", "#!/usr/bin/env node\n")
			f.file(h+"/.local/lib/other/x", canary)
		},
		path: []string{h + "/.local/bin"}, binds: []string{h + "/.local/bin", h + "/.local/lib/node_modules"}, runs: []string{"tsc"},
	},
	{
		name: "pnpm, yarn, bun, deno",
		make: func(f *fake) {
			f.prog(h+"/.local/share/pnpm/pnpm", "\x7fELF")
			f.file(h+"/.local/share/pnpm/store/v3/x", "x")
			f.prog(h+"/.yarn/bin/yarn", "#!/bin/sh\n")
			f.prog(h+"/.config/yarn/global/node_modules/x/cli.js", "#!/usr/bin/env node\n")
			f.link(h+"/.config/yarn/global/node_modules/.bin/x", "../x/cli.js")
			f.prog(h+"/.bun/bin/bun", "\x7fELF")
			f.file(h+"/.bun/install/cache/x", "x")
			f.prog(h+"/.deno/bin/deno", "\x7fELF")
			f.file(h+"/.config/yarn/x", canary)
		},
		env:    []string{"PNPM_HOME=" + h + "/.local/share/pnpm", "BUN_INSTALL=" + h + "/.bun"},
		path:   []string{h + "/.local/share/pnpm", h + "/.yarn/bin", h + "/.config/yarn/global/node_modules/.bin", h + "/.bun/bin", h + "/.deno/bin"},
		binds:  []string{h + "/.yarn/bin", h + "/.config/yarn/global/node_modules", h + "/.bun/bin", h + "/.deno/bin"},
		caches: []string{h + "/.local/share/pnpm", h + "/.bun/install/cache"}, runs: []string{"pnpm", "yarn", "x", "bun", "deno"},
	},
	{
		name: "sdkman",
		make: func(f *fake) {
			f.prog(h+"/.sdkman/candidates/java/21-tem/bin/java", "\x7fELF")
			f.link(h+"/.sdkman/candidates/java/current", "21-tem")
			f.prog(h+"/.sdkman/candidates/java/17-tem/bin/java", canary)
			f.file(h+"/.m2/repository/org/x.jar", "jar")
			f.file(h+"/.m2/settings.xml", canary)
		},
		path: []string{h + "/.sdkman/candidates/java/current/bin"}, env: []string{"JAVA_HOME=" + h + "/.sdkman/candidates/java/current"},
		binds: []string{h + "/.sdkman/candidates/java/21-tem"}, caches: []string{h + "/.m2/repository"},
		links: map[string]string{h + "/.sdkman/candidates/java/current": "21-tem"}, runs: []string{"java"},
	},
	{
		name: "conda",
		make: func(f *fake) {
			f.prog(h+"/miniconda3/envs/ml/bin/python3", "\x7fELF")
			f.prog(h+"/miniconda3/condabin/conda", "#!"+h+"/miniconda3/bin/python\n")
			f.prog(h+"/miniconda3/bin/python", "\x7fELF")
			f.file(h+"/.condarc", canary)
			f.file(h+"/.conda/pkgs/x", "x")
		},
		path: []string{h + "/miniconda3/envs/ml/bin", h + "/miniconda3/condabin"}, env: []string{"CONDA_PREFIX=" + h + "/miniconda3/envs/ml"},
		binds: []string{h + "/miniconda3"}, caches: []string{h + "/.conda/pkgs"}, runs: []string{"python3", "conda"},
	},
	{
		name: "a conda environment elsewhere",
		make: func(f *fake) {
			f.prog("/data/envs/ml/bin/python3", "\x7fELF")
			f.file("/data/envs/other/x", canary)
		},
		path: []string{"/data/envs/ml/bin"}, binds: []string{"/data/envs/ml"}, runs: []string{"python3"},
	},
	{
		name: "homebrew, nix, opt",
		make: func(f *fake) {
			f.prog("/home/linuxbrew/.linuxbrew/Cellar/jq/1.7/bin/jq", "\x7fELF")
			f.link("/home/linuxbrew/.linuxbrew/bin/jq", "../Cellar/jq/1.7/bin/jq")
			f.prog("/nix/store/abc-hello/bin/hello", "\x7fELF")
			f.link("/nix/store/def-profile/bin/hello", "/nix/store/abc-hello/bin/hello")
			f.link(h+"/.local/state/nix/profiles/profile", "profile-1-link")
			f.link(h+"/.local/state/nix/profiles/profile-1-link", "/nix/store/def-profile")
			f.link(h+"/.nix-profile", h+"/.local/state/nix/profiles/profile")
			f.prog("/opt/gradle/bin/gradle", "#!/bin/sh\n")
			f.file("/opt/secret/x", canary)
		},
		path:  []string{"/home/linuxbrew/.linuxbrew/bin", h + "/.nix-profile/bin", "/opt/gradle/bin"},
		binds: []string{"/home/linuxbrew/.linuxbrew", "/nix/store", "/opt/gradle"},
		links: map[string]string{h + "/.nix-profile": h + "/.local/state/nix/profiles/profile", h + "/.local/state/nix/profiles/profile-1-link": "/nix/store/def-profile"},
		runs:  []string{"jq", "hello", "gradle"},
	},
	{
		name: "alternatives into /opt",
		make: func(f *fake) {
			f.link("/usr/bin/java", "/etc/alternatives/java")
			f.link("/etc/alternatives/java", "/opt/jdk/bin/java")
			f.prog("/opt/jdk/bin/java", "\x7fELF")
		},
		binds: []string{"/opt/jdk"}, runs: []string{"java"},
	},
	{
		name: "a link in /usr/local/bin",
		make: func(f *fake) {
			f.link("/usr/local/bin/zig", h+"/apps/zig-0.13/zig")
			f.prog(h+"/apps/zig-0.13/zig", "\x7fELF")
			f.file(h+"/apps/zig-0.13/lib/std.zig", "std")
			f.file(h+"/apps/other/x", canary)
		},
		binds: []string{h + "/apps/zig-0.13"}, runs: []string{"zig"},
	},
	{
		name: "fnm through the runtime directory",
		make: func(f *fake) {
			f.prog(h+"/.local/share/fnm/node-versions/v20.1.0/installation/bin/node", "\x7fELF")
			f.link("/run/user/1000/fnm_multishells/7_8", h+"/.local/share/fnm/node-versions/v20.1.0/installation")
		},
		path: []string{"/run/user/1000/fnm_multishells/7_8/bin"}, env: []string{"FNM_DIR=" + h + "/.local/share/fnm"},
		binds: []string{h + "/.local/share/fnm/node-versions/v20.1.0"},
		links: map[string]string{"/run/user/1000/fnm_multishells/7_8": h + "/.local/share/fnm/node-versions/v20.1.0/installation"}, runs: []string{"node"},
	},
	{
		name: "a manager on another disk",
		make: func(f *fake) {
			f.prog("/data/nvm/versions/node/v20.1.0/bin/node", "\x7fELF")
			f.prog("/data/nvm/versions/node/v18.0.0/bin/node", canary)
			f.link(h+"/.nvm", "/data/nvm")
		},
		path:  []string{h + "/.nvm/versions/node/v20.1.0/bin"},
		binds: []string{"/data/nvm/versions/node/v20.1.0"}, links: map[string]string{h + "/.nvm": "/data/nvm"}, runs: []string{"node"},
	},
	{
		name: "programs beside credentials",
		make: func(f *fake) {
			f.prog(h+"/.fly/bin/flyctl", "\x7fELF")
			f.file(h+"/.fly/config.yml", canary)
			f.prog(h+"/.tool/bin/tool", "\x7fELF")
			f.file(h+"/.tool/lib/x", "lib")
			f.file(h+"/.tool/credentials", canary)
			f.prog(h+"/dotfiles/bin/mine", "#!/bin/sh\n")
			f.file(h+"/dotfiles/.git/config", canary)
			f.file(h+"/dotfiles/zshrc", canary)
		},
		path:  []string{h + "/.fly/bin", h + "/.tool/bin", h + "/dotfiles/bin"},
		binds: []string{h + "/.fly/bin", h + "/.tool/bin", h + "/.tool/lib", h + "/dotfiles/bin"}, runs: []string{"flyctl", "tool", "mine"},
	},
	{
		name: "dotnet",
		make: func(f *fake) {
			f.prog(h+"/.dotnet/dotnet", "\x7fELF")
			f.file(h+"/.dotnet/sdk/8.0/x.dll", "x")
			f.file(h+"/.dotnet/corefx/cryptography/x509stores/my/x.pfx", canary)
			f.file(h+"/.nuget/packages/x/1.0/x.nupkg", "x")
			f.file(h+"/.nuget/NuGet/NuGet.Config", "<password>"+canary+"</password>")
		},
		path: []string{h + "/.dotnet"}, env: []string{"DOTNET_ROOT=" + h + "/.dotnet"},
		binds: []string{h + "/.dotnet/dotnet", h + "/.dotnet/sdk"}, caches: []string{h + "/.nuget/packages"}, runs: []string{"dotnet"},
	},
	{
		name: "a virtual environment on PATH",
		make: func(f *fake) {
			f.prog("/opt/py/bin/python3", "\x7fELF")
			f.prog(h+"/.virtualenvs/web/bin/python", "\x7fELF") // a copy
			f.file(h+"/.virtualenvs/web/pyvenv.cfg", "home = /opt/py/bin\n")
			f.file(h+"/.virtualenvs/web/lib/python3.11/site-packages/web.pth", h+"/src/web/lib\n"+h+"/.config/plugins\n")
			f.file(h+"/src/web/lib/x.py", "x")
			f.file(h+"/.config/plugins/x.py", "x")
			f.file(h+"/.virtualenvs/other/x", canary)
		},
		path: []string{h + "/.virtualenvs/web/bin"}, env: []string{"VIRTUAL_ENV=" + h + "/.virtualenvs/web"},
		binds: []string{h + "/.virtualenvs/web", "/opt/py", h + "/src/web/lib", h + "/.config/plugins"}, runs: []string{"python"},
	},
	{
		name: "claude's own install",
		make: func(f *fake) {
			f.prog(h+"/.claude/local/node_modules/.bin/claude", "#!/usr/bin/env node\n")
			f.file(h+"/.claude/.credentials.json", canary)
		},
		path: []string{h + "/.claude/local/node_modules/.bin"}, binds: []string{h + "/.claude/local"}, runs: []string{"claude"},
	},
}
