package image

import (
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

func TestF60EnvironmentIsAnAllowlist(t *testing.T) {
	f := newFake(t)
	for _, name := range []string{
		"SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "GPG_AGENT_INFO", "DOCKER_HOST", "KUBECONFIG",
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS", "GITHUB_TOKEN", "GH_TOKEN", "NPM_TOKEN", "ANTHROPIC_API_KEY", "OPENAI_API_KEY",
		"DATABASE_PASSWORD", "MY_SECRET", "MISE_GITHUB_TOKEN", "ASDF_SECRET", "CARGO_REGISTRY_TOKEN", "LD_PRELOAD", "BASH_ENV", "ENV", "PROMPT_COMMAND", "NODE_OPTIONS", "PYTHONSTARTUP", "PANDO_TOKEN",
		"UNKNOWN", "OLDPWD", "PWD", "_", "HTTP_PROXY", "https_proxy", "VSCODE_IPC_HOOK_CLI",
	} {
		f.env(name, "value-of-"+name)
	}
	f.env("LC_ALL", "C.UTF-8")
	f.env("GOFLAGS", "-mod=vendor")
	f.env("GOPROXY", "https://user:pw@proxy.example.com")
	f.env("PIP_INDEX_URL", "https://token@index.example.com")
	f.env("UV_INDEX_URL", "https://index.example.com")
	f.env("MAVEN_OPTS", "-Xmx1g -Dx=ghp_0123456789abcdefghij0123456789")
	f.env("MISE_ENV", "dev")
	f.env("EDITOR", "vi")
	p := f.plan()
	want := []string{"EDITOR=vi", "GOFLAGS=-mod=vendor", "HOME=/home/u", "LANG=C.UTF-8", "LC_ALL=C.UTF-8", "LOGNAME=u", "MISE_ENV=dev", "PATH=/usr/local/bin:/usr/bin:/bin", "SHELL=/bin/bash", "TERM=xterm", "USER=u", "UV_INDEX_URL=https://index.example.com"}
	if !slices.Equal(p.Env, want) {
		t.Errorf("environment\n%q, want\n%q", p.Env, want)
	}
	wantsNote(t, p, "MAVEN_OPTS", "secret", "--env MAVEN_OPTS")
	for _, n := range p.Notes {
		if strings.Contains(n.What+n.Fix, "ghp_") {
			t.Errorf("the note %+v holds the secret", n)
		}
	}
}

// No row of the table is one that never passes: it would be dead.
func TestEnvironmentTable(t *testing.T) {
	seen := map[string]bool{}
	for _, names := range variables {
		for _, n := range names {
			if neverPasses(strings.TrimSuffix(n, "*")) {
				t.Errorf("%s is listed and never passes", n)
			}
			if seen[n] {
				t.Errorf("%s is listed twice", n)
			}
			seen[n] = true
		}
	}
}

func TestEnvironmentPaths(t *testing.T) {
	f := newFake(t)
	f.prog("/opt/jdk/bin/java", "x")
	f.file("/etc/ssl/certs/ca.pem", "cert")
	f.file("/data/py/x.py", "x")
	f.dir(h + "/.cargo")
	f.env("JAVA_HOME", "/opt/jdk")
	f.env("SSL_CERT_FILE", "/etc/ssl/certs/ca.pem")
	f.env("CURL_CA_BUNDLE", "/data/corp.pem")
	f.file("/data/corp.pem", "x")
	f.file("/etc/corp/ca.pem", "x")
	f.env("GIT_SSL_CAINFO", "/etc/corp/ca.pem")
	f.env("CARGO_HOME", h+"/.cargo")
	f.env("GOBIN", proj+"/bin")
	f.env("GOWORK", "off")
	f.env("GOENV", h+"/.ssh/x")
	f.env("PYTHONPATH", "src:"+proj+"/lib:/data/py:/nowhere")
	f.env("ANDROID_HOME", "/nowhere")
	f.env("CUDA_HOME", h)
	f.env("GEM_HOME", h+"/.ssh")
	f.dir(h + "/.ssh")
	p := f.plan()
	f.wants(p, cell.Bind, "/opt/jdk")
	for name, want := range map[string]string{
		"JAVA_HOME": "/opt/jdk", "SSL_CERT_FILE": "/etc/ssl/certs/ca.pem", "CURL_CA_BUNDLE": "", "GIT_SSL_CAINFO": "/etc/corp/ca.pem", "CARGO_HOME": h + "/.cargo", "GOBIN": proj + "/bin", "GOWORK": "off", "GOENV": "",
		"PYTHONPATH": "src:" + proj + "/lib", "ANDROID_HOME": "", "CUDA_HOME": "", "GEM_HOME": "",
	} {
		// The home itself is there, but as the cell's own: CUDA is not in it.
		if got, _ := envOf(p, name); got != want && name != "CUDA_HOME" {
			t.Errorf("%s=%s, want %q", name, got, want)
		}
	}
	wantsNote(t, p, "PYTHONPATH", "/data/py", "--mount /data/py:/data/py")
	checkF60(f, p)
}

func TestTokenShapes(t *testing.T) {
	fill := strings.Repeat("x ", 1000)
	for _, s := range []string{
		"ghp_0123456789abcdefghij0123456789", "glpat-0123456789abcdefghij", "sk-ant-" + "api03-0123456789abcdef", "AKIA0123456789ABCDEF", "xoxb-1234567890-abc",
		"-----BEGIN RSA PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----", "https://u:p@example.com/x", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.x", "extraheader = AUTHORIZATION: basic eDp5",
		"npm_012345678901234567890123456789012345", "pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAwMDAw",
	} {
		if !hasToken(s) || !hasToken(fill+s+" "+fill) {
			t.Errorf("%q is not seen", s)
		}
	}
	for _, s := range []string{"", "https://example.com/a:b@c", "git@github.com:x/y", "-----BEGIN CERTIFICATE-----", "risk-free sky", "npm_config_cache=/x", "-Xmx1g", "/home/u/.npm_modules", "postgres://localhost:5432/x"} {
		if hasToken(s) {
			t.Errorf("%q is taken for a secret", s)
		}
	}
	for s, want := range map[string]bool{"token = \"x\"": true, "export API_KEY=x": true, "password: x": true, "//r/:_authToken=x": true, "[tools]\nnode = '20'": false, "token =\n": false} {
		if hasSecret(s) != want {
			t.Errorf("hasSecret(%q) = %v", s, !want)
		}
	}
}

func TestCachesNeedTheirTool(t *testing.T) {
	f := newFake(t)
	f.file(h+"/go/pkg/mod/x", "x")
	f.file(h+"/.cargo/registry/x", "x")
	f.file(h+"/.cache/pip/x", "x")
	f.wantsNone(f.plan(), h+"/go/pkg/mod", h+"/.cargo/registry", h+"/.cache/pip")
	f.prog("/usr/bin/go", "x")
	f.prog("/usr/bin/cargo", "x")
	f.prog("/usr/bin/pip", "x")
	f.wants(f.plan(), cell.Cache, h+"/go/pkg/mod", h+"/.cargo/registry", h+"/.cache/pip")
}

func TestCachesElsewhere(t *testing.T) {
	f := newFake(t)
	for _, p := range []string{"go", "npm", "uv", "gradle", "java"} {
		f.prog("/usr/bin/"+p, "x")
	}
	f.file("/data/gopath/pkg/mod/x", "x")
	f.file("/data/gobuild/x", "x")
	f.file(h+"/.config/go/env", "GOPATH=/data/gopath\nGOCACHE=/data/gobuild\n")
	f.file("/data/npm/_cacache/x", "x")
	f.file("/data/xdg/uv/x", "x")
	f.file("/data/gradle/caches/x", "x")
	f.file("/data/gradle/gradle.properties", "password="+canary)
	f.link(h+"/.m2/repository", "/data/m2")
	f.file("/data/m2/x", "x")
	f.env("npm_config_cache", "/data/npm")
	f.env("XDG_CACHE_HOME", "/data/xdg")
	f.env("GRADLE_USER_HOME", "/data/gradle")
	p := f.plan()
	for _, at := range []string{"/data/gopath/pkg/mod", "/data/gobuild", "/data/npm/_cacache", "/data/xdg/uv", "/data/gradle/caches", "/data/m2"} {
		if m, ok := mountAt(p, at); !ok || m.Kind != cell.Cache || m.Source != f.root+at {
			t.Errorf("%s: %+v", at, m)
		}
	}
	f.wantsLink(p, h+"/.m2/repository", "/data/m2")
	checkF60(f, p)
}

// Directories that are no cache of one tool are never its lower layer.
func TestCachesThatAreTooMuch(t *testing.T) {
	f := newFake(t)
	f.prog("/usr/bin/go", "x")
	f.prog("/usr/bin/uv", "x")
	f.file(h+"/diary", canary)
	f.env("GOCACHE", h)
	f.env("GOMODCACHE", h+"/.ssh")
	f.env("UV_CACHE_DIR", h+"/Documents")
	f.file(h+"/Documents/letter", canary)
	f.file(h+"/.ssh/id", canary)
	p := f.plan()
	f.wantsNone(p, h, h+"/.ssh", h+"/Documents")
	wantsNote(t, p, h+"/.ssh", "SSH keys")
	checkF60(f, p)
}

func TestSettingsWithSecretsStayOutside(t *testing.T) {
	f := newFake(t)
	f.prog("/usr/bin/go", "x")
	f.prog("/usr/bin/cargo", "x")
	f.file(h+"/.config/go/env", "GOPROXY=https://u:"+canary+"@proxy\n")
	f.file(h+"/.cargo/config.toml", "[source.crates-io]\nreplace-with = 'vendored'\n")
	p := f.plan()
	wantsNote(t, p, h+"/.config/go/env", "secret")
	f.wants(p, cell.Bind, h+"/.cargo/config.toml")
	checkF60(f, p)
}

func TestUserSite(t *testing.T) {
	f := newFake(t)
	f.prog("/usr/bin/python3", "x")
	f.file(h+"/.local/lib/python3.11/site-packages/m.pth", h+"/src/mine\n")
	f.file(h+"/src/mine/m.py", "x")
	f.file(h+"/.local/lib/other/x", canary)
	p := f.plan()
	f.wants(p, cell.Bind, h+"/.local/lib/python3.11", h+"/src/mine")
	checkF60(f, p)
}
