package image

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/cell"
)

// rootedFake is a host with a root file system at /srv/root.
func rootedFake(t *testing.T) (*fake, RootedRequest) {
	f := newFake(t)
	for _, d := range []string{"usr/bin", "etc", "var", "home", "root", "proc", "dev", "run/old", "tmp/old", "sys/x"} {
		f.dir("/srv/root/" + d)
	}
	f.prog("/srv/root/usr/bin/tool", "x")
	f.file("/srv/root/usr/bin/data", "x")
	f.link("/srv/root/bin", "usr/bin")
	f.link("/srv/root/var/run", "/run")
	f.file("/srv/root/entry.sh", "x")
	f.file("/srv/root/etc/passwd", "root:x:0:0:root:/root:/bin/sh")
	f.file("/srv/root/etc/hosts", "")
	return f, RootedRequest{HostRequest: f.req, Dir: f.root + "/srv/root"}
}

func rootedPlan(t *testing.T, f *fake, req RootedRequest) *HostPlan {
	t.Helper()
	req.HostRequest.Mounts = f.req.Mounts
	req.Dir = strings.TrimPrefix(req.Dir, f.root)
	in := req
	in.Kept = true // where it lies was looked at by its own test
	in.Dir = f.root + req.Dir
	p, err := Rooted(in)
	if err != nil {
		t.Fatal(err)
	}
	checkOrder(t, p.Mounts)
	return p
}

func TestRootedShowsTheImageAndNothingElse(t *testing.T) {
	f, req := rootedFake(t)
	p := rootedPlan(t, f, req)
	got := map[string]string{}
	for _, m := range p.Mounts {
		text := string(m.Kind)
		if m.Kind == cell.Overlay {
			text += " " + strings.TrimPrefix(m.Lower[0], f.root)
		} else if m.Source != "" {
			text += " " + strings.TrimPrefix(m.Source, f.root)
		}
		got[m.Target] = text
	}
	want := map[string]string{
		"/bin": "link usr/bin", "/entry.sh": "bind /srv/root/entry.sh", "/run": "tmpfs",
		"/etc": "overlay /srv/root/etc", "/home": "overlay /srv/root/home", "/root": "overlay /srv/root/root", "/usr": "overlay /srv/root/usr", "/var": "overlay /srv/root/var",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("mounts (-want +got):\n%s", d)
	}
	if RootOf(p.Mounts) != f.root+"/srv/root" {
		t.Errorf("RootOf = %s", RootOf(p.Mounts))
	}
	if p.Home != "/home/u" || p.Workspaces[0] != "/home/u/src/proj" {
		t.Errorf("home %s, workspace %s", p.Home, p.Workspaces[0])
	}
	seeds := map[string]string{}
	for _, s := range p.Seeds {
		seeds[s.Path] = s.Text
	}
	if !strings.Contains(seeds["/etc/passwd"], "root:x:0:0:root:/root:/bin/sh\nu:x:1000:1000::/home/u:/bin/sh\n") || seeds["/etc/group"] == "" {
		t.Errorf("the cell's user has no name in the image: %q", seeds)
	}
	if _, hosts := seeds["/etc/hosts"]; hosts {
		t.Error("/etc/hosts of the image was replaced")
	}
}

func TestRootedEnvironmentIsTheImages(t *testing.T) {
	f, req := rootedFake(t)
	f.env("GOFLAGS", "-x")
	f.env("NO_COLOR", "1")
	f.env("CI", "yes")
	req.HostRequest.Env = f.req.Env
	req.Settings.Env = []string{"PATH=/opt/bin:/usr/bin", "LANG=C.UTF-8", "CI=no", "=x", "bad", "NUL=\x00"}
	p := rootedPlan(t, f, req)
	if d := cmp.Diff([]string{"CI=no", "LANG=C.UTF-8", "NO_COLOR=1", "PATH=/opt/bin:/usr/bin"}, p.Env); d != "" {
		t.Errorf("environment (-want +got):\n%s", d)
	}
	for name, want := range map[string][]string{"tool": {"/usr/bin/tool"}, "/bin/tool": {"/bin/tool"}, "./x": {"/home/u/src/proj/x"}} {
		if got, err := p.LookPath(name, p.Workdir); err != nil || !slices.Equal(got, want) {
			t.Errorf("LookPath(%s) = %v, %v, want %v", name, got, err, want)
		}
	}
	for _, name := range []string{"data", "git", "/usr/bin/git", ""} { // git is the host's
		if got, err := p.LookPath(name, p.Workdir); cell.KindOf(err) != cell.NoSuchBinary {
			t.Errorf("LookPath(%q) = %v, %v, want an error", name, got, err)
		}
	}
	req.Used = true
	if got, err := rootedPlan(t, f, req).LookPath("git", "/"); err != nil || len(got) != 2 {
		t.Errorf("what a cell may have installed is not tried: %v, %v", got, err)
	}
}

// What a symlink of the image says decides where the cell's places lie, and
// never leads out of the image.
func TestRootedFollowsTheImagesLinks(t *testing.T) {
	f, req := rootedFake(t)
	f.must(os.Remove(f.root + "/srv/root/home"))
	f.link("/srv/root/home", "../../../../var/homes")
	f.link("/srv/root/etc/resolv.conf", "/run/resolved/resolv.conf")
	f.link("/srv/root/etc/ssl/certs/ca-certificates.crt", "../../../../../../../etc/shadow")
	f.file("/srv/root/etc/shadow", "the image's own")
	p := rootedPlan(t, f, req)
	if p.Home != "/var/homes/u" || p.Workspaces[0] != "/var/homes/u/src/proj" {
		t.Errorf("home %s, workspace %s", p.Home, p.Workspaces[0])
	}
	p.Talk("/talk")
	targets := map[string]string{}
	for _, m := range p.Mounts {
		if m.Role == cell.RoleNetwork {
			targets[m.Target] = filepath.Base(m.Source)
		}
	}
	if targets["/run/resolved/resolv.conf"] != "resolv.conf" || targets["/etc/shadow"] != "bundle.pem" {
		t.Errorf("network files at %v", targets)
	}
	for _, evil := range []string{"/proc/1", "/", "/dev/shm", "/oldroot/home"} {
		f.must(os.Remove(f.root + "/srv/root/home"))
		f.link("/srv/root/home", evil)
		in := req
		in.Kept = true
		if evil == "/" {
			in.Home = "/home"
			in.Source = ""
		}
		if _, err := Rooted(in); cell.KindOf(err) != cell.Denied {
			t.Errorf("home -> %s: %v, want it to be refused", evil, err)
		}
	}
}

// A cell on an image trusts the authorities of the host, those of the image, and its own.
func TestRootedTrustsTheHostsAuthoritiesToo(t *testing.T) {
	f, req := rootedFake(t)
	f.file("/etc/ssl/certs/ca-certificates.crt", "the host's\n")
	f.file("/srv/root/etc/ssl/certs/ca-certificates.crt", "the image's\n")
	f.file("/srv/root/etc/more.pem", "more of the image's\n")
	f.file("/etc/more.pem", canary)
	req.Settings.Env = []string{"SSL_CERT_FILE=/etc/more.pem"}
	p := rootedPlan(t, f, req)
	dir := t.TempDir() + "/talk"
	lists := p.Talk(dir)
	authority := "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"
	if err := WriteTalk(f.root, dir, p.Mounts, lists, nil, authority); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(dir + "/bundle.pem")
	if want := "the host's\nthe image's\nmore of the image's\n" + authority; err != nil || string(b) != want {
		t.Errorf("the list is %q, %v, want %q", b, err, want)
	}
}

func TestRootedRefusesWhatNoCellMaySee(t *testing.T) {
	f, req := rootedFake(t)
	f.dir("/srv/empty")
	f.link("/srv/tohome", "/home/u")
	f.file("/srv/file", "x")
	f.dir("/home/u/.local/share/pando/layers")
	f.file("/srv/holds/.ssh/id", canary)
	for dir, kind := range map[string]cell.Kind{
		"/": cell.Denied, "/home/u": cell.Denied, "/home": cell.Denied, "/srv/tohome": cell.Denied, "/etc": cell.Denied, "/proc": cell.Denied, "/tmp": cell.Denied,
		"/home/u/src": cell.Denied, "/home/u/src/proj": cell.Denied, "/home/u/.local/share/pando/layers": cell.Denied, "/srv/holds": cell.Denied,
		"/srv/file": cell.Invalid, "/srv/none": cell.NotFound, "srv/root": cell.Invalid,
	} {
		r := req
		r.Dir = dir
		if _, err := Rooted(r); cell.KindOf(err) != kind {
			t.Errorf("image dir:%s: %v, want %s", dir, err, kind)
		}
	}
	r := req
	r.Dir, r.Kept = f.root+"/srv/empty", true
	if _, err := Rooted(r); cell.KindOf(err) != cell.Invalid {
		t.Errorf("an empty image: %v", err)
	}
}

// --mount is judged as for the host image, and lies where the image says.
func TestRootedMounts(t *testing.T) {
	f, req := rootedFake(t)
	f.file("/data/d/x", "x")
	f.file("/data/d/.env", canary)
	f.dir("/home/u/.ssh")
	f.req.Mounts = []string{"/data/d:/bin/d:rw"}
	p := rootedPlan(t, f, req)
	i := slices.IndexFunc(p.Mounts, func(m cell.Mount) bool { return m.Target == "/usr/bin/d" })
	if i < 0 || p.Mounts[i].ReadOnly || p.Mounts[i].Source != f.root+"/data/d" {
		t.Errorf("no writable mount at /usr/bin/d: %+v", p.Mounts)
	}
	if !slices.ContainsFunc(p.Mounts, func(m cell.Mount) bool { return m.Target == "/usr/bin/d/.env" && m.Why == "hidden" }) {
		t.Error("a secret of a mounted directory is not covered")
	}
	for mount, kind := range map[string]cell.Kind{
		"/home/u/.ssh:/x": cell.Denied, "/data/d:/proc/x": cell.Denied, "/data/d:/home": cell.Denied, "/data/d:/var/run/pando": cell.Denied, "/data/d:/bin": cell.Denied, "/data/no:/x": cell.NotFound,
	} {
		r := req
		r.Kept, r.Mounts = true, []string{mount}
		if _, err := Rooted(r); cell.KindOf(err) != kind {
			t.Errorf("--mount %s: %v, want %s", mount, err, kind)
		}
	}
}

func TestParseName(t *testing.T) {
	for in, want := range map[string]string{"": "host", "host": "host", "dir:/a/../b": "dir:/b", "dir:r": "dir:/w/r", "oci:python:3.12": "oci:python:3.12"} {
		if n, err := ParseName(in, "/w"); err != nil || n.String() != want {
			t.Errorf("ParseName(%q) = %s, %v, want %s", in, n, err, want)
		}
	}
	for _, in := range []string{"python", "dir:", "oci:", "docker:x", "dir", "dir:\x00"} {
		if n, err := ParseName(in, "/w"); cell.KindOf(err) != cell.Invalid {
			t.Errorf("ParseName(%q) = %s, %v, want an error", in, n, err)
		}
	}
}

// Without a network the resolver of musl waits for a second and not for five; with one, the
// image's own file is below the mount again.
func TestX40RootedResolverGivesUpSoon(t *testing.T) {
	const at = "/etc/resolv.conf"
	of := func(p *HostPlan) (list []Seed) {
		for _, s := range p.Seeds {
			if s.Path == at {
				list = append(list, s)
			}
		}
		return list
	}
	for image, want := range map[string]int{"": 1, "nameserver 192.0.2.1\n": 1, silentResolv: 0} {
		f, req := rootedFake(t)
		if image != "" {
			f.file("/srv/root"+at, image)
		}
		silent, talking := rootedPlan(t, f, req), rootedPlan(t, f, req)
		silent.Silent()
		talking.Talk("/talk")
		if got := of(silent); len(got) != want || want == 1 && got[0] != (Seed{Path: at, Text: silentResolv}) {
			t.Errorf("%q: without a network %+v", image, got)
		}
		if got := of(talking); len(got) != want || want == 1 && got[0] != (Seed{Path: at, Instead: silentResolv}) {
			t.Errorf("%q: with a network %+v", image, got)
		}
	}
}

// In a cell without a network the files are the last source of hosts, and with one the image's
// own sources are back.
func TestRootedNamesAreNotThereWithoutANetwork(t *testing.T) {
	const at = "/etc/nsswitch.conf"
	for _, tc := range []struct{ image, silent string }{
		{"passwd: files systemd\nhosts: files dns # as usual\n", "passwd: files systemd\nhosts: files dns files # as usual\n"},
		{"hosts:\tfiles resolve [!UNAVAIL=return] dns", "hosts:\tfiles resolve [!UNAVAIL=return] dns files\n"},
		{"", nsswitch("files dns files")},
		{"hosts: files\n", ""},
		{"hosts: dns files\n", ""},
	} {
		f, req := rootedFake(t)
		if tc.image != "" {
			f.file("/srv/root"+at, tc.image)
		}
		silent, talking := rootedPlan(t, f, req), rootedPlan(t, f, req)
		silent.Silent()
		talking.Talk("/talk")
		of := func(p *HostPlan) (s Seed) {
			for _, x := range p.Seeds {
				if x.Path == at {
					s = x
				}
			}
			return s
		}
		if got := of(silent); got.Text != tc.silent || got.Instead != "" {
			t.Errorf("%q: without a network %+v, want %q", tc.image, got, tc.silent)
		}
		if got := of(talking); got.Instead != tc.silent || got.Text != "" {
			t.Errorf("%q: with a network %+v takes not away %q", tc.image, got, tc.silent)
		}
	}
}
