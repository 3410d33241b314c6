package image

import (
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// mountFake has every place that --mount must refuse.
func mountFake(t *testing.T) *fake {
	f := newFake(t)
	plantSecrets(f, h)
	for _, d := range []string{"/srv/app", "/data/d", "/var/lib/app2", "/srv/sockets", "/sys", "/work"} {
		f.dir(d)
	}
	f.file("/data/d/x", "data")
	f.socket("/srv/sockets/agent.sock")
	f.dir("/srv/backup/.ssh")
	f.file("/data/.env", canary)
	f.file(h+"/src/other/x", "other")
	f.link("/data/tohome", h)
	f.link("/data/tokeys", "../home/u/.ssh")
	f.link("/data/tosock", "/run/docker.sock")
	f.link("/data/todocker", "/var/lib/docker")
	f.link(h+"/linkhome", "..")
	f.link("/proc/self", "123")
	f.dir("/proc/123")
	f.link("/proc/123/cwd", h+"/.ssh")
	f.link("/proc/123/root", "/data/d")
	f.link("/data/toproc", "/proc/self")
	f.must(unix.Mkfifo(f.root+"/data/pipe", 0o600))
	return f
}

func TestF60MountRefusesHomesAndSecrets(t *testing.T) {
	f := mountFake(t)
	for _, src := range []string{
		"/", "/home", h, "/home/other", "/root", "/root/x", "..", "../..", ".", // relative to the source
		h + "/.ssh", h + "/.aws", h + "/.gnupg", h + "/.config/gcloud", h + "/.docker", h + "/.kube", h + "/.config", h + "/.local/share", h + "/.local", h + "/.m2", h + "/.cargo",
		h + "/.npmrc", h + "/.netrc", h + "/.local/share/pando", h + "/.local/share/pando/keys", h + "/.cache/pando", h + "/.cache",
		"/etc", "/etc/ssl", "/run", "/run/user", "/run/docker.sock", "/var", "/var/run", "/proc", "/sys", "/dev", "/boot", "/tmp", "/tmp/.X11-unix", "/tmp/ssh-x/agent.1", "/tmp/ssh-x",
		"/var/lib", "/var/lib/docker", "/srv/sockets", "/srv/sockets/agent.sock", "/srv/backup", "/data/.env", "/data/pipe", "/var/lib/app",
		"/data/tohome", "/data/tokeys", "/data/tosock", "/data/todocker", h + "/linkhome",
	} {
		f.req.Mounts = []string{src + ":/m"}
		f.fails(cell.Denied)
		f.req.Mounts = []string{src + ":/m:rw"}
		f.fails(cell.Denied)
	}
}

func TestF60MountSaysWhy(t *testing.T) {
	f := mountFake(t)
	f.dir("/data/states/pando")
	f.req.State = []string{"/data/states/pando"}
	for src, words := range map[string]string{
		h: "the home directory", "/home": "the home directory", "/home/other": "a home directory", "/root/x": "root's home", h + "/.ssh": "SSH keys", "/data/states": "pando's own state", "/data/states/pando": "pando's own state",
		"/data/toproc/root": "goes through /proc", "/proc/self/root": "goes through /proc", "/data/pipe": "a pipe", "/srv/sockets": "a socket", "/srv/backup": "SSH keys: .ssh", "/data/.env": "a secret's", "..": "the source",
	} {
		f.req.Mounts = []string{src + ":/m"}
		if err := f.fails(cell.Denied); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %q", src, err, words)
		}
	}
}

func TestSecretNames(t *testing.T) {
	for at, want := range map[string]bool{
		"/home/u/.ssh": true, "/x/.SSH/y": true, "/data/x.ssh/y": false, "/data/.sshx": false, "/data/.ssh.bak": false, "/data/.x/y.ssh/z": false, "/home/u/.config/gcloud/x": true, "/home/u/.config/gcloudx": false, "/home/u/config/gcloud": false,
		"/home/u/.fly/bin/flyctl": false, "/home/u/.fly/x": true, "/home/u/.fly": true, "/a/.docker/b/.docker/bin": true, "/home/u/.cargo/bin": false, "/home/u/.cargo/credentials.toml": true, "/": false,
	} {
		if got := secretIn(at); (got != "") != want {
			t.Errorf("secretIn(%s) = %q", at, got)
		}
	}
	for name, want := range map[string]bool{
		".env": true, ".env.local": true, ".ENV": true, ".envrc": true, ".env.example": false, ".env.sample.local": false, ".environment": false, "env": false, "id_rsa": true, "id_rsa.pub": false, "x.p12": true, "x.pem": false, ".npmrc": true,
	} {
		if secretFile(name) != want {
			t.Errorf("secretFile(%s) = %v", name, !want)
		}
	}
}

// F64: one decision for one file, however it is written.
func TestF64MountCanonicalises(t *testing.T) {
	f := mountFake(t)
	f.dir(h + "/src/proj/a")
	f.link(h+"/src/proj/l", h+"/.config/gcloud")
	for _, src := range []string{
		h + "/.ssh/", h + "//.ssh", h + "/./.ssh", h + "/src/../.ssh", "../../.ssh", "a/../../../.ssh", "./a/../../../.ssh", "~/.ssh", "/data/tohome/.ssh", "/data/tokeys/.", "/data/tohome/src/../.ssh",
		"/proc/self/cwd", "/proc/self/cwd/../.ssh", "/proc/123/cwd", "/data/toproc/cwd", "/../proc/self/cwd", "l/..", "l/../gcloud",
		h + "/linkhome/u/.ssh", "/data/d/../tokeys",
	} {
		f.req.Mounts = []string{src + ":/m"}
		f.fails(cell.Denied)
	}
	// ".." after a symlink is where the kernel goes, not where the text looks.
	f.link("/data/jump", h+"/src/other")
	f.req.Mounts = []string{"/data/jump/../other:/m"}
	if m, _ := mountAt(f.plan(), "/m"); m.Source != f.root+h+"/src/other" {
		t.Errorf("source = %s", m.Source)
	}
	// A place of secrets that is a symlink is one at both ends.
	f.must(os.RemoveAll(f.root + h + "/.azure"))
	f.file("/data/cloud/azure/token", canary)
	f.link(h+"/.azure", "/data/cloud/azure")
	for _, src := range []string{h + "/.azure", "/data/cloud/azure", "/data/cloud/azure/token", "/data/cloud"} {
		f.req.Mounts = []string{src + ":/m"}
		f.fails(cell.Denied)
	}
	f.file(h+"/.SSH/id", canary)
	f.file("/data/.AWS/credentials", canary)
	for _, src := range []string{h + "/.SSH", "/data/.AWS", "/data/.Aws/credentials"} {
		f.req.Mounts = []string{src + ":/m"}
		if _, err := Host(f.req); err == nil {
			t.Errorf("%s is mounted", src)
		}
	}
}

// A bind mount of the home under another name is the home.
func TestF60AliasIsRecognised(t *testing.T) {
	f := newFake(t)
	f.file(h+"/.ssh/id", canary)
	tr := newTree(f.root)
	g := newGuard(tr, h, nil, nil)
	for _, at := range []string{h, h + "/.ssh", "/home"} {
		i := tr.lstat(at)
		if why := g.refuse(place{path: "/mnt/alias", info: i}); !strings.Contains(why, "under another name") {
			t.Errorf("%s under another name: %q", at, why)
		}
	}
	if why := g.refuse(place{path: "/mnt/fine", info: tr.lstat(h + "/src")}); why != "" {
		t.Error(why)
	}
}

func TestF60DevicesAndSocketsAreRefused(t *testing.T) {
	g := newGuard(newTree(t.TempDir()), h, nil, nil)
	for _, typ := range []uint32{unix.S_IFBLK, unix.S_IFCHR, unix.S_IFSOCK, unix.S_IFIFO} {
		if g.refuse(place{path: "/data/x", info: info{mode: typ | 0o666}}) == "" {
			t.Errorf("type %o is mounted", typ)
		}
	}
}

func TestMountIsDone(t *testing.T) {
	f := mountFake(t)
	f.file("/data/with/.env", canary)
	f.file("/data/with/sub/.npmrc", canary)
	f.file("/data/with/x", "x")
	f.socket("/data/with/sub/s.sock")
	f.req.Mounts = []string{"/data/d:/m", "../other:/home/u/other:rw", "/data/with:/data/with:ro", "/data/d/x:/home/u/.toolrc", "~/src/other/x:/srv/x"}
	p := f.plan()
	for target, want := range map[string]cell.Mount{
		"/m":              {Source: "/data/d", ReadOnly: true},
		"/home/u/other":   {Source: h + "/src/other"},
		"/data/with":      {Source: "/data/with", ReadOnly: true},
		"/home/u/.toolrc": {Source: "/data/d/x", ReadOnly: true},
		"/srv/x":          {Source: h + "/src/other/x", ReadOnly: true},
		"/data/with/.env": {Source: "", ReadOnly: true},
	} {
		m, ok := mountAt(p, target)
		if !ok || m.Kind != cell.Bind || m.ReadOnly != want.ReadOnly || want.Source != "" && (m.Source != f.root+want.Source || !m.Owned || m.Why != "--mount") {
			t.Errorf("mount at %s = %+v, want %+v", target, m, want)
		}
	}
	if want := []string{"writable mount /home/u/other is outside rollback"}; !slices.Equal(p.Downgrades, want) {
		t.Errorf("downgrades %q", p.Downgrades)
	}
	wantsNote(t, p, "/data/with/.env", "empty in the cell")
	checkF60(f, p)
}

func TestMountIsRefused(t *testing.T) {
	f := mountFake(t)
	f.dir(proj + "/sub")
	for spec, kind := range map[string]cell.Kind{
		"":                       cell.Invalid,
		"/data/d":                cell.Invalid,
		"/data/d:":               cell.Invalid,
		":/m":                    cell.Invalid,
		"/data/d:/m:rx":          cell.Invalid,
		"/data/d:/m:rw:x":        cell.Invalid,
		"/data/d:m":              cell.Invalid,
		"/data/d:/m/../x":        cell.Invalid,
		"/data/d:/m/":            cell.Invalid,
		"/data/d:/./m":           cell.Invalid,
		"/data/none:/m":          cell.NotFound,
		"/data/d:/":              cell.Denied,
		"/data/d:/proc/x":        cell.Denied,
		"/data/d:/dev/x":         cell.Denied,
		"/data/d:/sys":           cell.Denied,
		"/data/d:/usr/bin":       cell.Denied,
		"/data/d:/bin":           cell.Denied,
		"/data/d:/bin/x":         cell.Denied,
		"/data/d:/lib64/x":       cell.Denied,
		"/data/d/x:/etc/passwd":  cell.Denied,
		"/data/d:/etc":           cell.Denied,
		"/data/d:/home":          cell.Denied,
		"/data/d:/home/u":        cell.Denied,
		"/data/d:/home/u/src":    cell.Denied, // above the workspace
		"/data/d:" + proj:        cell.Denied,
		"/data/d:/tmp":           cell.Denied,
		"/data/d:/run":           cell.Denied,
		"/data/d:/var":           cell.Denied,
		"/data/d:/var/tmp":       cell.Denied,
		"/data/d:/run/pando/x":   cell.Denied,
		"/data/d:" + proj + "/x": cell.Invalid, // nothing to mount it on
		"sub:/m:rw":              cell.Denied,  // part of the source
	} {
		f.req.Mounts = []string{spec}
		f.fails(kind)
	}
	f.req.Mounts = []string{"/data/d:/m", "/srv/app:/m"}
	f.fails(cell.Invalid)
	for _, spec := range []string{"sub:/m", "/data/d:" + proj + "/sub", "/data/d:/var/lib/x", "/data/d:/tmp/x", "/data/d:/library/x"} {
		f.req.Mounts = []string{spec}
		f.plan()
	}
}

func TestMountWithoutACurrentDirectory(t *testing.T) {
	f := mountFake(t)
	f.req.Cwd = ""
	f.req.Mounts = []string{"x:/m"}
	f.fails(cell.Invalid)
}

// A target that a symlink of the host leads to lies where the link ends.
func TestMountThroughALink(t *testing.T) {
	f := mountFake(t)
	f.link("/here", "/data")
	f.req.Mounts = []string{"/data/d:/here/new"}
	p := f.plan()
	f.wantsLink(p, "/here", "/data")
	if m, ok := mountAt(p, "/data/new"); !ok || m.Source != f.root+"/data/d" {
		t.Error(show(p))
	}
	f.link("/sneaky", "/usr")
	f.req.Mounts = []string{"/data/d:/sneaky/bin"}
	f.fails(cell.Denied)
}

func TestMountIntoSystemDirectories(t *testing.T) {
	f := mountFake(t)
	f.must(os.Remove(f.root + "/lib"))
	f.dir("/lib/x")
	f.req.Mounts = []string{"/data/d:/lib/x"}
	f.fails(cell.Denied)
}

// What was asked for stands in the way of what is automatic.
func TestMountReplacesACache(t *testing.T) {
	f := mountFake(t)
	f.prog("/usr/bin/go", "x")
	f.file(h+"/go/pkg/mod/x", "x")
	f.req.Mounts = []string{"/data/d:/home/u/go/pkg/mod"}
	p := f.plan()
	if m, _ := mountAt(p, h+"/go/pkg/mod"); m.Source != f.root+"/data/d" {
		t.Errorf("mount = %+v", m)
	}
	f.req.Mounts = []string{"/data/d:/home/u/go"}
	p = f.plan()
	f.wantsNone(p, h+"/go/pkg/mod")
}

func TestF60SourceIsChecked(t *testing.T) {
	f := mountFake(t)
	f.dir(h + "/src/proj/.pando")
	f.dir("/usr/src/linux")
	f.dir("/tmp/work")
	f.link("/data/dev", "/dev")
	state := []string{h + "/.local/share/pando", h + "/src/withstate/.pando"}
	f.dir(h + "/src/withstate/.pando")
	g := newGuard(newTree(f.root), h, nil, state)
	for src, kind := range map[string]cell.Kind{
		h:                           cell.Denied,
		h + "/":                     cell.Denied,
		h + "/src/../":              cell.Denied,
		"/home":                     cell.Denied,
		"/":                         cell.Denied,
		"/home/other":               cell.Denied,
		"/root":                     cell.Denied,
		"/etc":                      cell.Denied,
		"/usr":                      cell.Denied,
		"/bin":                      cell.Denied,
		"/tmp":                      cell.Denied,
		"/var":                      cell.Denied,
		"/var/tmp":                  cell.Denied,
		"/run":                      cell.Denied,
		"/proc/self/cwd":            cell.Denied,
		"/data/dev":                 cell.Denied,
		"/data/tohome":              cell.Denied,
		h + "/.ssh":                 cell.Denied,
		h + "/.config":              cell.Denied,
		h + "/.local/share/pando/x": cell.NotFound,
		h + "/.local/share/pando":   cell.Denied,
		h + "/src/withstate":        cell.Denied,
		h + "/nothing":              cell.NotFound,
		h + "/src/proj/main.txt":    cell.Invalid,
		"relative":                  cell.Invalid,
		proj:                        "",
		h + "/src":                  cell.Denied, // holds the state
		"/tmp/work":                 "",
		"/usr/src/linux":            "",
		"/work":                     "",
		"/srv/backup":               "", // what is in it the import leaves out
	} {
		if err := g.checkSource(src); cell.KindOf(err) != kind {
			t.Errorf("source %s: %v, want kind %q", src, err, kind)
		}
	}
	f.req.Source = h
	f.fails(cell.Denied)
	f.req.Source = "/home"
	f.fails(cell.Denied)

	// The exported function looks at the real host.
	home := t.TempDir()
	if err := CheckSource(home, home); cell.KindOf(err) != cell.Denied {
		t.Error(err)
	}
	sub := path.Join(home, "p")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := CheckSource(sub, home, path.Join(home, "state")); err != nil {
		t.Error(err)
	}
}
