package image

import (
	"path"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// checkF60 asserts FAILURES H60 of a plan, with none of the package's own
// rules: no mount's source is a home, above one or a place of secrets, and
// nothing the cell sees is a canary, a socket or a device.
func checkF60(f *fake, p *HostPlan) {
	f.t.Helper()
	for _, m := range p.Mounts {
		if m.Kind != cell.Bind && m.Kind != cell.Cache || strings.HasPrefix(m.Source, f.etc+"/") || m.Kept != "" && m.Source == "" {
			continue
		}
		src, ok := strings.CutPrefix(m.Source, f.root)
		if !ok {
			f.t.Errorf("the source of %+v is not on the host", m)
			continue
		}
		for _, home := range []string{"/home/u", "/home/other", "/root"} {
			if src == home || strings.HasPrefix(home+"/", strings.TrimSuffix(src, "/")+"/") {
				f.t.Errorf("%s is mounted: the home %s or one above it", src, home)
			}
		}
		low := strings.ToLower(src) + "/"
		for _, s := range []string{"/.ssh/", "/.aws/", "/.gnupg/", "/.config/gcloud/", "/.kube/", "/.docker/c", "/proc/", "/sys/", "/dev/", "/run/", "/boot/", "/pando/"} {
			if strings.Contains(low, s) {
				f.t.Errorf("%s is mounted: it is a place of secrets", src)
			}
		}
		if m.Kind == cell.Bind && !m.ReadOnly && m.Why != "--mount" {
			f.t.Errorf("%s is mounted writable", src)
		}
		var st unix.Stat_t
		f.must(unix.Lstat(m.Source, &st))
		if typ := st.Mode & unix.S_IFMT; typ != unix.S_IFDIR && typ != unix.S_IFREG {
			f.t.Errorf("%s is mounted: its type is %o", src, typ)
		}
	}
	for at, content := range f.view(p) {
		if strings.Contains(content, canary) || strings.HasPrefix(content, "special ") {
			f.t.Errorf("the cell sees %s: %q\n%s", at, content, show(p))
		}
	}
}

// plantSecrets fills a home with every place of secrets there is, and the host
// with its sockets.
func plantSecrets(f *fake, home string) {
	for _, s := range secretPlaces {
		if at := path.Join(home, s.name); !f.exists(at) {
			f.file(at+"/secret", canary)
		}
	}
	for _, at := range []string{"/run/docker.sock", "/run/user/1000/bus", "/tmp/.X11-unix/X0", "/tmp/ssh-x/agent.1", home + "/.local/run/agent.sock", "/var/lib/app/app.sock"} {
		f.socket(at)
	}
	for _, at := range []string{home + "/diary", home + "/Documents/letter", "/home/other/x", "/root/x", "/etc/sudoers", "/etc/ssh/ssh_host_rsa_key", "/etc/ssl/private/x.key", "/etc/gshadow", "/boot/grub.cfg", "/var/lib/docker/x", home + "/.local/share/pando/keys/k", home + "/.cache/pando/x"} {
		f.file(at, canary)
	}
}

// Everything at once: all managers on PATH, all secrets planted, all sockets.
func TestF60NothingOfTheHomeIsSeen(t *testing.T) {
	f := newFake(t)
	var dirs []string
	f.lenient = true // two cases may make the same file
	for _, c := range managerCases {
		c.make(f)
		dirs = append(dirs, c.path...)
		for _, kv := range c.env {
			k, v, _ := strings.Cut(kv, "=")
			f.env(k, v)
		}
	}
	plantSecrets(f, "/home/u")
	f.path(dirs...)
	checkF60(f, f.plan())
}
