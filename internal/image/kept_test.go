package image

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

func TestKeptCaches(t *testing.T) {
	f := newFake(t)
	f.prog("/usr/bin/go", "x")
	f.file(h+"/go/pkg/mod/x", "x")
	f.file(h+"/.cache/pip/x", "x")
	f.req.Caches = []string{"go", "pnpm", "~/.cache/tool", "/data/own"}
	f.file("/data/own/x", "x")
	f.env("GOCACHE", "/data/gobuild")
	p := f.plan()
	want := map[string]cell.Mount{
		h + "/go/pkg/mod":              {Source: f.root + h + "/go/pkg/mod", Kept: "go"},
		"/data/gobuild":                {Kept: "go"},
		h + "/.local/share/pnpm/store": {Kept: "pnpm"},
		h + "/.cache/pnpm":             {Kept: "pnpm"},
		h + "/.cache/tool":             {Kept: "~/.cache/tool"},
		"/data/own":                    {Source: f.root + "/data/own", Kept: "/data/own"},
	}
	for at, w := range want {
		if m, ok := mountAt(p, at); !ok || m.Kind != cell.Cache || m.Source != w.Source || m.Kept != w.Kept || !m.Owned || m.Why == "" {
			t.Errorf("%s: %+v, want %+v", at, m, w)
		}
	}
	for _, kv := range []string{"GOCACHE=/data/gobuild", "npm_config_store_dir=" + h + "/.local/share/pnpm/store", "pnpm_config_store_dir=" + h + "/.local/share/pnpm/store"} {
		if !slices.Contains(p.Env, kv) {
			t.Errorf("%s is not in the environment", kv)
		}
	}
	f.wantsNone(p, h+"/.cache/pip") // nothing asked for it, and there is no pip
}

// What is no cache, holds secrets or is the cell's own is none that is kept either.
func TestKeptCachesThatAreNone(t *testing.T) {
	for _, x := range []struct{ name, env, value string }{
		{"go", "GOCACHE", h}, {"go", "GOMODCACHE", h + "/.ssh"}, {"uv", "UV_CACHE_DIR", h + "/Documents"}, {"go", "GOCACHE", proj + "/.gocache"}, {"go", "GOCACHE", "/etc/cache"},
		{name: "~/.ssh"}, {name: "~/.ssh/deep/er"}, {name: "~/.aws"}, {name: h}, {name: proj}, {name: proj + "/target"}, {name: "/home"}, {name: "/etc/x"}, {name: "/usr/lib"}, {name: "/proc/x"}, {name: "/tmp"},
		{name: "~/file"}, {name: "/run/pando/x"}, {name: "/state/x"},
	} {
		f := newFake(t)
		f.file(h+"/Documents/letter", canary)
		f.file(h+"/.ssh/id", canary)
		f.file(h+"/.aws/credentials", canary)
		f.file(h+"/file", "x")
		f.req.State = []string{"/state"}
		f.req.Caches = []string{x.name}
		if x.env != "" {
			f.env(x.env, x.value)
		}
		if err := f.fails(cell.Denied); err == nil || !strings.Contains(err.Error(), "cannot keep cache "+x.name) {
			t.Errorf("%v: %v", x, err)
		}
	}
}

// A symlink of the source leads no cache to another place of the host.
func TestKeptCachesAreNotRedirected(t *testing.T) {
	f := newFake(t)
	f.file("/data/private/x", canary)
	f.link(proj+"/link", "/data/private")
	f.req.Caches = []string{proj + "/link"}
	f.fails(cell.Denied)
	f.req.Caches = []string{"go"}
	f.env("GOCACHE", proj+"/link/deeper")
	f.fails(cell.Denied)
}

func TestCheckKept(t *testing.T) {
	got, err := CheckKept([]string{"npm", "go", "~/x/y", "go", "/a/b"})
	if err != nil || !slices.Equal(got, []string{"/a/b", "go", "npm", "~/x/y"}) {
		t.Error(got, err)
	}
	for _, bad := range []string{"", "off", "Go", "x", "../x", "a/b", "~", "~/", "~x", "~/../x", "/", "/a/../b", "/a//b", "/a:b", "/a\nb", "~/a\x00"} {
		if _, err := CheckKept([]string{bad}); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for name, list := range kept {
		for _, s := range list {
			if !slices.ContainsFunc(stores, func(o store) bool { return o.name == s }) {
				t.Errorf("%s: there is no store %s", name, s)
			}
		}
	}
}

// In another image nothing of the host's caches is seen, and its links decide where they are.
func TestKeptCachesOfAnImage(t *testing.T) {
	f := newFake(t)
	f.file(h+"/go/pkg/mod/x", canary)
	dir := t.TempDir()
	for _, d := range []string{"/bin", "/etc", "/var/real"} {
		f.must(os.MkdirAll(dir+d, 0o755))
	}
	f.must(os.Symlink("real", dir+"/var/link"))
	f.req.Caches = []string{"go", "/var/link/c"}
	p, err := Rooted(RootedRequest{HostRequest: f.req, Dir: dir, Kept: true})
	f.must(err)
	for _, at := range []string{h + "/go/pkg/mod", h + "/.cache/go-build", "/var/real/c"} {
		if m, ok := mountAt(p, at); !ok || m.Kind != cell.Cache || m.Source != "" || m.Kept == "" {
			t.Errorf("%s: %+v", at, m)
		}
	}
	for _, bad := range []string{proj, proj + "/x", "/proc/x", "/bin", "/run/pando/x"} {
		f.req.Caches = []string{bad}
		if _, err := Rooted(RootedRequest{HostRequest: f.req, Dir: dir, Kept: true}); cell.KindOf(err) != cell.Denied {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
