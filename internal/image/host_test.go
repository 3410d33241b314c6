package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

func TestHostBase(t *testing.T) {
	f := newFake(t)
	p := f.plan()
	f.wantsLink(p, "/bin", "usr/bin")
	f.wantsLink(p, "/lib64", "usr/lib64")
	f.wantsLink(p, "/var/run", "/run")
	f.wants(p, cell.Bind, "/usr")
	for _, at := range []string{"/run", "/var/tmp"} {
		if m, ok := mountAt(p, at); !ok || m.Kind != cell.Tmpfs {
			t.Errorf("%s: %+v", at, m)
		}
	}
	f.wantsNone(p, "/opt", "/srv", "/mnt", "/media", "/var", "/root", "/home", "/home/u", "/tmp", "/proc", "/dev", "/sys")
	if p.Home != h || p.Tmp != "/tmp" || p.Workspaces[0] != proj || p.Workdir != proj || len(p.Notes) != 0 || len(p.Downgrades) != 0 {
		t.Errorf("%+v", p)
	}
}

func TestHostWithoutMergedUsr(t *testing.T) {
	f := newFake(t)
	f.must(os.Remove(f.root + "/lib"))
	f.file("/lib/x.so", "lib")
	f.wants(f.plan(), cell.Bind, "/lib", "/usr")
}

func TestHostOnNixOS(t *testing.T) {
	f := newFake(t)
	f.must(os.Remove(f.root + "/bin"))
	f.prog("/nix/store/abc-bash/bin/sh", "x")
	f.link("/bin/sh", "/nix/store/abc-bash/bin/sh")
	f.prog("/nix/store/def-sw/bin/git", "x")
	f.link("/run/current-system", "/nix/store/ghi-system")
	f.link("/nix/store/ghi-system/sw", "/nix/store/def-sw")
	f.env("PATH", "/run/current-system/sw/bin")
	p := f.plan()
	f.wants(p, cell.Bind, "/bin", "/nix/store")
	f.wantsLink(p, "/run/current-system", "/nix/store/ghi-system")
	if files, err := p.LookPath("git", "/"); err != nil || files[0] != "/run/current-system/sw/bin/git" {
		t.Error(files, err)
	}
}

// A home that is a symlink: everything lies where it really is, and both
// paths work.
func TestHostHomeOnAnotherDisk(t *testing.T) {
	f := newFake(t)
	f.must(os.RemoveAll(f.root + "/home/u"))
	f.link("/home/u", "/data/homes/u")
	f.file("/data/homes/u/src/proj/x", "x")
	f.prog("/data/homes/u/.nvm/versions/node/v20.1.0/bin/node", "x")
	f.file("/data/homes/u/.ssh/id", canary)
	f.path("/home/u/.nvm/versions/node/v20.1.0/bin")
	p := f.plan()
	if p.Home != "/data/homes/u" || p.Workspaces[0] != "/data/homes/u/src/proj" {
		t.Errorf("home %s, workspace %s", p.Home, p.Workspaces[0])
	}
	f.wantsLink(p, "/home/u", "/data/homes/u")
	if m, ok := mountAt(p, "/data/homes/u/.nvm/versions/node/v20.1.0"); !ok || !m.Owned {
		t.Error(show(p))
	}
	if got, _ := envOf(p, "HOME"); got != "/home/u" {
		t.Errorf("HOME=%s", got)
	}
	if _, err := p.LookPath("node", "/"); err != nil {
		t.Error(err)
	}
	for _, src := range []string{"/data", "/data/homes", "/data/homes/u", "/data/homes/u/.ssh"} {
		f.req.Mounts = []string{src + ":/m"}
		f.fails(cell.Denied)
	}
	f.req.Mounts = nil
	checkF60(f, p)
}

// The cell's own places are never links, whatever the host has there.
func TestHostWhoseTmpIsALink(t *testing.T) {
	f := newFake(t)
	f.must(os.Remove(f.root + "/tmp"))
	f.link("/tmp", "/private/tmp")
	f.dir("/private/tmp/work/p")
	f.req.Source, f.req.Workdir = "/tmp/work/p", "/tmp/work/p"
	p := f.plan()
	f.wantsNone(p, "/tmp")
	if p.Workspaces[0] != "/private/tmp/work/p" {
		t.Errorf("workspace %s", p.Workspaces[0])
	}
}

func TestHostHomeLinkAlone(t *testing.T) {
	f := newFake(t)
	f.must(os.RemoveAll(f.root + "/home/u"))
	f.link("/home/u", "/data/homes/u")
	f.dir("/data/homes/u")
	f.dir("/work/p")
	f.req.Source, f.req.Workdir = "/work/p", "/work/p"
	f.wantsLink(f.plan(), "/home/u", "/data/homes/u")
}

func TestHostRefusesImpossibleHomes(t *testing.T) {
	f := newFake(t)
	for _, home := range []string{"", "/", "relative", "/."} {
		f.req.Home = home
		f.fails(cell.Invalid)
	}
	for _, home := range []string{"/usr/home/u", "/etc", "/tmp", "/dev/shm", "/run/user/1"} {
		f.req.Home = home
		f.fails(cell.Unsupported)
	}
	f.req.Home = "/nonexistent"
	f.plan()
	f.req.Home, f.req.Source, f.req.Workdir = h, "", ""
	if p := f.plan(); len(p.Workspaces) > 0 {
		t.Errorf("workspace %s", p.Workspaces)
	}
	f.req.State = []string{"/usr/local/pando"}
	f.fails(cell.Unsupported)
	if err := os.RemoveAll(f.root + "/usr"); err != nil {
		t.Fatal(err)
	}
	f.req.State = nil
	f.fails(cell.Unsupported)
}

// The same request gives the same plan.
func TestHostIsDeterministic(t *testing.T) {
	f := newFake(t)
	f.lenient = true
	var dirs []string
	for _, c := range managerCases {
		c.make(f)
		dirs = append(dirs, c.path...)
	}
	f.path(dirs...)
	first := f.plan()
	for range 10 {
		p := f.plan()
		if show(p) != show(first) || !slices.Equal(p.Env, first.Env) {
			t.Fatalf("two plans:\n%s\n%s", show(first), show(p))
		}
	}
}

func TestLookPath(t *testing.T) {
	f := newFake(t)
	f.prog("/opt/a/bin/tool", "x")
	f.prog("/usr/bin/tool", "x")
	f.prog(proj+"/bin/tool", "x")
	f.file("/usr/bin/data", "not a program")
	f.prog("/snap/bin/code", "x")
	f.prog("/data/x/run", "x")
	f.prog("/data/y/run2", "x")
	f.link("/data/l", "/usr/bin") // nothing in the cell leads there
	f.path(proj+"/bin", "/opt/a/bin", h+"/go/bin", "/snap/bin")
	f.req.Mounts = []string{"/data/x:/m"}
	p := f.plan()
	for _, c := range []struct {
		name, workdir string
		want          []string
	}{
		{"tool", "/", []string{proj + "/bin/tool", "/opt/a/bin/tool"}},
		{"git", "/", []string{proj + "/bin/git", h + "/go/bin/git", "/usr/bin/git"}},
		{"./script", proj, []string{proj + "/./script"}},
		{"../x", proj, []string{proj + "/../x"}}, // in the home, where it may appear
		{proj + "/new", "/", []string{proj + "/new"}},
		{"/tmp/x", "/", []string{"/tmp/x"}},
		{h + "/x", "/", []string{h + "/x"}},
		{"/bin/git", "/", []string{"/bin/git"}},
		{"/m/run", "/", []string{"/m/run"}},
		{"/proc/self/exe", "/", []string{"/proc/self/exe"}},
	} {
		got, err := p.LookPath(c.name, c.workdir)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("LookPath(%s) = %q, %v; want %q", c.name, got, err, c.want)
		}
	}
	for name, words := range map[string][]string{
		"/usr/bin/data":  {"no such file"},
		"/nowhere/x":     {"no such file"},
		"/data/y/run2":   {"--mount /data/y:/data/y"},
		"/root/x":        {"no such file"},
		"/data/l/git":    {"no such file"},
		"/m/none":        {"no such file"},
		"/usr/bin/other": {"no such file"},
	} {
		_, err := p.LookPath(name, "/")
		checkNotFound(t, err, words...)
	}
	checkNotFound(t, p.NotFound("nothing"), "not found in "+proj+"/bin, /opt/a/bin, ", "/usr/bin")
	checkNotFound(t, p.NotFound("code"), "without snap")
	if _, err := p.LookPath("", "/"); cell.KindOf(err) != cell.Invalid {
		t.Error(err)
	}

	f.env("PATH", "/data/y:"+h+"/.ssh")
	f.prog(h+"/.ssh/keytool", "x")
	f.prog(h+"/loose", "x")
	f.env("PATH", "/usr/bin:"+h+":"+h+"/.ssh")
	p = f.plan()
	_, err := p.LookPath("loose", "/")
	checkNotFound(t, err, "not found in /usr/bin, /usr/local/bin, /bin", "--mount "+h+"/loose:"+h+"/loose")
	_, err = p.LookPath("keytool", "/")
	checkNotFound(t, err, "may not be shown")

	// A plan sees what the host has now.
	if _, err := p.LookPath("late", "/"); err == nil {
		t.Error("found before it is there")
	}
	f.prog("/usr/bin/late", "x")
	if got, err := p.LookPath("late", "/"); err != nil || got[0] != "/usr/bin/late" {
		t.Error(got, err)
	}
}

func checkNotFound(t *testing.T, err error, words ...string) {
	t.Helper()
	if cell.KindOf(err) != cell.NoSuchBinary {
		t.Errorf("%v is no %s", err, cell.NoSuchBinary)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error()+" "+cell.HintOf(err), w) {
			t.Errorf("%q, hint %q: lacks %q", err, cell.HintOf(err), w)
		}
	}
}

func realRequest(t testing.TB) HostRequest {
	home, err := os.UserHomeDir()
	if err != nil {
		t.Skip("no home directory: ", err)
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckSource(wd, home); err != nil {
		t.Skip(err)
	}
	return HostRequest{
		Root: "/", Env: os.Environ(), Home: home, Cwd: wd, Source: wd, Workdir: wd, EtcDir: t.TempDir(),
		User: cell.User{UID: os.Getuid(), GID: os.Getgid(), Name: "u", Home: home}, Command: []string{"go", "test"},
	}
}

// On the machine this runs on, each tool that is on PATH resolves to a file
// the cell sees, as does the program behind it.
func TestRealHost(t *testing.T) {
	req := realRequest(t)
	p, err := Host(req)
	if err != nil {
		t.Fatal(err)
	}
	checkOrder(t, p.Mounts)
	for _, m := range p.Mounts {
		if m.Kind == cell.Link || m.Kind == cell.Tmpfs || strings.HasPrefix(m.Source, req.EtcDir) {
			continue
		}
		if m.Source == "/" || m.Source == req.Home || strings.HasPrefix(req.Home, m.Source+"/") {
			t.Errorf("%+v is the home or above it", m)
		}
		if _, err := os.Stat(m.Source); err != nil {
			t.Error(err)
		}
	}
	checked := 0
	for _, name := range []string{"go", "python3", "node", "npm", "cargo", "rustc", "git", "gcc", "make", "sh"} {
		host, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		checked++
		files, err := p.LookPath(name, "/")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		last := files[len(files)-1]
		if last != host {
			t.Errorf("%s is %s in the cell and %s on the host", name, last, host)
		}
		real, err := filepath.EvalSymlinks(last)
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := p.LookPath(real, "/"); err != nil {
			t.Errorf("%s leads to %s: %v", last, real, err)
		}
	}
	if checked < 3 {
		t.Errorf("only %d tools on this machine", checked)
	}
	t.Logf("%d tools, %d mounts, notes %+v", checked, len(p.Mounts), p.Notes)
}

func BenchmarkHost(b *testing.B) {
	req := realRequest(b)
	if _, err := Host(req); err != nil {
		b.Fatal(err)
	}
	time.Sleep(time.Duration(settle) + 100*time.Millisecond) // or what was just prepared is read again
	if _, err := Host(req); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Host(req); err != nil {
			b.Fatal(err)
		}
	}
}
