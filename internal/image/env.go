package image

import (
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
)

// A rule says how a variable of the caller's environment comes into the cell.
type rule int

const (
	asText rule = iota // as it is
	asPath             // a path: only if the cell has it, or can have it
	asRoot             // an install root: mounted if it is safe
	asList             // paths, separated by colons: those the cell has
	asURL              // only without a user and a password
)

// variables is the whole list of what passes, with "*" at the end for a
// prefix. A variable that is not here is not in the cell; --env adds others.
var variables = map[rule][]string{
	asText: {
		// how text is shown and understood
		"LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "LS_COLORS", "LESS", "EDITOR", "VISUAL", "PAGER", "GIT_PAGER", "MANPAGER",
		// how builds behave
		"CI", "DEBIAN_FRONTEND", "SOURCE_DATE_EPOCH", "MAKEFLAGS", "MAKEOPTS", "CC", "CXX", "CPP", "LD", "AR", "AS", "NM", "RANLIB", "STRIP", "FC", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "FFLAGS",
		"CMAKE_GENERATOR", "CMAKE_BUILD_TYPE", "CMAKE_BUILD_PARALLEL_LEVEL", "CTEST_PARALLEL_LEVEL", "CTEST_OUTPUT_ON_FAILURE", "NINJA_STATUS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
		// Go
		"GOFLAGS", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GONOPROXY", "GOTOOLCHAIN", "GOOS", "GOARCH", "GOAMD64", "GOARM", "GOARM64", "GO386", "GO111MODULE", "GOEXPERIMENT", "GODEBUG", "GOMAXPROCS", "GOMEMLIMIT", "GOGC", "GOTRACEBACK", "CGO_ENABLED", "CGO_CFLAGS", "CGO_LDFLAGS", "CGO_CXXFLAGS",
		// Rust
		"RUSTFLAGS", "RUSTDOCFLAGS", "RUST_BACKTRACE", "RUST_LOG", "RUSTUP_TOOLCHAIN", "RUSTUP_AUTO_INSTALL", "CARGO_INCREMENTAL", "CARGO_BUILD_JOBS", "CARGO_BUILD_TARGET", "CARGO_TERM_COLOR", "CARGO_NET_OFFLINE", "CARGO_PROFILE_*", "RUSTC_WRAPPER",
		// Python
		"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONWARNINGS", "PYTHONFAULTHANDLER", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYENV_VERSION", "PYENV_SHELL", "PIP_DISABLE_PIP_VERSION_CHECK", "PIP_NO_INDEX", "PIP_DEFAULT_TIMEOUT", "PIP_REQUIRE_VIRTUALENV", "PIP_BREAK_SYSTEM_PACKAGES",
		"UV_PYTHON", "UV_OFFLINE", "UV_LINK_MODE", "UV_SYSTEM_PYTHON", "UV_PYTHON_PREFERENCE", "UV_PYTHON_DOWNLOADS", "UV_COMPILE_BYTECODE", "UV_NO_PROGRESS", "POETRY_VIRTUALENVS_IN_PROJECT", "POETRY_VIRTUALENVS_CREATE", "CONDA_DEFAULT_ENV", "CONDA_SHLVL", "CONDA_PROMPT_MODIFIER", "VIRTUAL_ENV_PROMPT", "VIRTUAL_ENV_DISABLE_PROMPT",
		// JavaScript
		"NODE_ENV", "NODE_NO_WARNINGS", "NPM_CONFIG_LOGLEVEL", "npm_config_loglevel", "NPM_CONFIG_OFFLINE", "npm_config_offline", "NPM_CONFIG_FUND", "NPM_CONFIG_AUDIT", "NPM_CONFIG_UPDATE_NOTIFIER", "COREPACK_ENABLE_DOWNLOAD_PROMPT", "COREPACK_ENABLE_STRICT", "NEXT_TELEMETRY_DISABLED",
		// Java, .NET, others
		"JAVA_OPTS", "MAVEN_OPTS", "MAVEN_ARGS", "GRADLE_OPTS", "SBT_OPTS", "DOTNET_CLI_TELEMETRY_OPTOUT", "DOTNET_NOLOGO", "RBENV_VERSION", "RAILS_ENV", "RACK_ENV", "MIX_ENV", "ELIXIR_ERL_OPTIONS", "PERL_MB_OPT", "PERL_MM_OPT", "LUA_PATH", "LUA_CPATH", "OPAMSWITCH", "JULIA_NUM_THREADS", "HOMEBREW_NO_AUTO_UPDATE",
		"MISE_*", "ASDF_*", "FNM_ARCH", "FNM_RESOLVE_ENGINES", "FNM_VERSION_FILE_STRATEGY", "FNM_LOGLEVEL", "DIRENV_LOG_FORMAT",
	},
	asPath: {
		"GOBIN", "GOCACHE", "GOMODCACHE", "GOTMPDIR", "GOWORK", "GOENV", "CARGO_HOME", "CARGO_TARGET_DIR", "RUSTUP_HOME", "NVM_DIR", "NVM_BIN", "NVM_INC", "PYENV_ROOT", "PIPX_HOME", "PIPX_BIN_DIR", "PIP_CACHE_DIR", "UV_CACHE_DIR", "UV_TOOL_DIR", "UV_TOOL_BIN_DIR", "UV_PYTHON_INSTALL_DIR", "UV_PROJECT_ENVIRONMENT", "POETRY_HOME", "POETRY_CACHE_DIR", "PRE_COMMIT_HOME",
		"npm_config_cache", "NPM_CONFIG_CACHE", "npm_config_prefix", "NPM_CONFIG_PREFIX", "PNPM_HOME", "BUN_INSTALL", "DENO_INSTALL", "DENO_DIR", "VOLTA_HOME", "FNM_DIR", "FNM_MULTISHELL_PATH", "N_PREFIX", "COREPACK_HOME", "YARN_CACHE_FOLDER", "PLAYWRIGHT_BROWSERS_PATH",
		"SDKMAN_DIR", "SDKMAN_CANDIDATES_DIR", "GRADLE_USER_HOME", "NUGET_PACKAGES", "COURSIER_CACHE", "RBENV_ROOT", "NODENV_ROOT", "GOENV_ROOT", "JENV_ROOT", "PLENV_ROOT", "PHPENV_ROOT", "BUNDLE_PATH", "COMPOSER_HOME", "COMPOSER_CACHE_DIR", "MIX_HOME", "HEX_HOME", "PUB_CACHE", "ELAN_HOME", "OPAMROOT", "STACK_ROOT", "CABAL_DIR", "GHCUP_INSTALL_BASE_PREFIX", "CCACHE_DIR", "SCCACHE_DIR",
		"HOMEBREW_PREFIX", "HOMEBREW_CELLAR", "HOMEBREW_REPOSITORY", "CONDA_EXE", "CONDA_PYTHON_EXE", "MAMBA_EXE", "MAMBA_ROOT_PREFIX", "PERL_LOCAL_LIB_ROOT", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "NIX_SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "CARGO_HTTP_CAINFO",
	},
	asRoot: {
		"GOROOT", "VIRTUAL_ENV", "CONDA_PREFIX", "JAVA_HOME", "JDK_HOME", "M2_HOME", "MAVEN_HOME", "GRADLE_HOME", "ANT_HOME", "KOTLIN_HOME", "SCALA_HOME", "SBT_HOME", "GROOVY_HOME", "ANDROID_HOME", "ANDROID_SDK_ROOT", "ANDROID_NDK_HOME", "ANDROID_NDK_ROOT", "FLUTTER_ROOT", "DOTNET_ROOT", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "EMSDK", "WASI_SDK_PATH", "OPAM_SWITCH_PREFIX", "GEM_HOME", "R_HOME", "QTDIR", "VCPKG_ROOT", "PIP_FIND_LINKS", "UV_FIND_LINKS", "LLVM_SYS_PREFIX",
	},
	asList: {
		"GOPATH", "PYTHONPATH", "NODE_PATH", "PERL5LIB", "RUBYLIB", "GEM_PATH", "R_LIBS_USER", "R_LIBS_SITE", "JULIA_DEPOT_PATH", "CLASSPATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "PKG_CONFIG_PATH", "CMAKE_PREFIX_PATH", "ACLOCAL_PATH", "XDG_DATA_DIRS", "INFOPATH", "OCAMLPATH", "CAML_LD_LIBRARY_PATH", "GI_TYPELIB_PATH", "NIX_PROFILES",
	},
	asURL: {"GOPROXY", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "NPM_CONFIG_REGISTRY", "npm_config_registry", "RUSTUP_DIST_SERVER", "RUSTUP_UPDATE_ROOT", "HF_ENDPOINT", "MISE_NODE_MIRROR_URL"},
}

// never are parts of names that don't pass, whatever the list says: secrets,
// and ways to what is the host's.
var never = []string{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "APIKEY", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY", "COOKIE", "AUTH"}

var neverPrefix = []string{"AWS_", "AZURE_", "GOOGLE_", "GCP_", "GH_", "GITHUB_", "GITLAB_", "DOCKER_", "KUBE", "SSH_", "GPG_", "DBUS_", "DISPLAY", "WAYLAND", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SESSION", "LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "PANDO_"}

func neverPasses(name string) bool {
	up := strings.ToUpper(name)
	if strings.HasSuffix(up, "_KEY") || up == "ENV" {
		return true
	}
	for _, n := range never {
		if strings.Contains(up, n) {
			return true
		}
	}
	for _, n := range neverPrefix {
		if strings.HasPrefix(up, n) {
			return true
		}
	}
	return false
}

// rules is the table by name; prefixes are looked through one by one.
var rules = sync.OnceValues(func() (of, prefixes map[string]rule) {
	exact, prefix := map[string]rule{}, map[string]rule{}
	for r, names := range variables {
		for _, n := range names {
			if start, ok := strings.CutSuffix(n, "*"); ok {
				prefix[start] = r
			} else {
				exact[n] = r
			}
		}
	}
	return exact, prefix
})

func ruleFor(name string) (rule, bool) {
	of, prefixes := rules()
	if r, ok := of[name]; ok {
		return r, true
	}
	for start, r := range prefixes {
		if strings.HasPrefix(name, start) {
			return r, true
		}
	}
	return 0, false
}

// environment decides what of the caller's environment passes. Install roots
// that variables name are mounted.
func (p *planner) environment() {
	out := map[string]string{}
	for _, name := range sortedKeys(p.env) {
		r, ok := ruleFor(name)
		value := p.env[name]
		if !ok || neverPasses(name) || value == "" || strings.ContainsRune(value, 0) {
			continue
		}
		if hasToken(value) {
			p.note(name, "is not passed on: its value looks like a secret", "--env "+name)
			continue
		}
		if value = p.pass(name, r, value); value != "" {
			out[name] = value
		}
	}
	u := p.req.User
	out["HOME"] = p.req.Home
	out["USER"], out["LOGNAME"] = accountName(u.Name), accountName(u.Name)
	out["SHELL"] = "/bin/sh"
	if p.t.resolve("/bin/bash").isProgram() {
		out["SHELL"] = "/bin/bash"
	}
	out["PATH"] = p.pathValue()
	if out["TERM"] == "" {
		out["TERM"] = "dumb"
	}
	p.tell(out)
	p.plan.Path = out["PATH"]
	for _, name := range sortedKeys(out) {
		p.plan.Env = append(p.plan.Env, name+"="+out[name])
	}
}

// pass returns what the cell sees of a value, "" for nothing.
func (p *planner) pass(name string, r rule, value string) string {
	switch r {
	case asRoot:
		if !path.IsAbs(value) {
			return ""
		}
		p.showRoot(value)
		return p.visible(value)
	case asPath:
		return p.visible(value)
	case asList:
		var kept []string
		for _, at := range strings.Split(value, ":") {
			switch seen := p.visible(at); {
			case seen != "" && !slices.Contains(kept, seen):
				kept = append(kept, seen)
			case seen == "" && path.IsAbs(at) && p.t.resolve(at).exists():
				p.note(name, "names "+at+", which is not in the cell", p.mountFix(at))
			}
		}
		return strings.Join(kept, ":")
	case asURL:
		if strings.Contains(value, "@") {
			return ""
		}
	}
	return value
}

// showRoot mounts an install root that a variable names.
func (p *planner) showRoot(at string) {
	pl := p.t.resolve(at)
	if !pl.isDir() || p.shown(pl.path) || p.broad(pl.path) || p.refuseRedirected(pl) != "" {
		return
	}
	label := "toolchain " + path.Base(at)
	parts := []part{{pl.path, cell.Bind}}
	if m, root, rest := p.managerOf(at, pl); m != nil {
		label = "toolchain " + m.name
		if in := m.parts(root, rest); in != nil {
			parts = in
		} else if rest == "" {
			parts = m.always(root)
		}
	}
	p.showParts(parts, label)
	p.link(pl)
}

// visible returns the path if the cell has it or can have it, else "".
func (p *planner) visible(at string) string {
	if at == "off" || at == "auto" {
		return at // GOWORK=off
	}
	if !path.IsAbs(at) {
		if at == "" || p.source == "" {
			return ""
		}
		return at // means the workspace
	}
	pl := p.t.resolve(path.Clean(at))
	if p.shown(pl.path) {
		p.link(pl)
		return at
	}
	if p.partly(pl) || p.mayAppear(pl.path) && secretIn(pl.path) == "" && (pl.isDir() || !pl.exists()) {
		return at
	}
	return ""
}

// pathValue is PATH without the directories that the cell can't have.
func (p *planner) pathValue() string {
	var kept []string
	for _, dir := range p.path {
		pl := p.t.resolve(dir)
		if p.foreign(dir) || slices.Contains(kept, dir) || pl.exists() && !pl.isDir() {
			continue
		}
		if pl.exists() && p.shown(pl.path) || p.partly(pl) || p.mayAppear(pl.path) && !pl.exists() && secretIn(pl.path) == "" {
			p.link(pl)
			kept = append(kept, dir)
		}
	}
	for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/bin"} {
		if !slices.Contains(kept, dir) {
			kept = append(kept, dir)
		}
	}
	return strings.Join(kept, ":")
}
