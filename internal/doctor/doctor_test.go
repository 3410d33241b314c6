package doctor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/paths"
)

// machine makes a host of files.
func machine(t *testing.T, kernel string, files map[string]string) host {
	t.Helper()
	h := host{root: t.TempDir(), kernel: kernel}
	for name, text := range files {
		p := filepath.Join(h.root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// Each host on which cells can't be made is recognised, and gets the remedy
// for its cause.
func TestF56NamespacesAreExplained(t *testing.T) {
	no := errors.New("cannot make a user namespace: operation not permitted")
	for _, c := range []struct {
		name, kernel string
		files        map[string]string
		root         bool
		found, fix   string
	}{
		{"Ubuntu", "6.8.0-45-generic", map[string]string{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}, false,
			"AppArmor", "/etc/apparmor.d/pando"},
		{"Ubuntu as root fails for another cause", "6.8.0", map[string]string{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}, true,
			"not permitted", ""},
		{"Debian's switch", "5.10.0", map[string]string{"/proc/sys/kernel/unprivileged_userns_clone": "0\n"}, false,
			"switched off", "kernel.unprivileged_userns_clone=1"},
		{"none allowed", "6.1.0", map[string]string{"/proc/sys/user/max_user_namespaces": "0\n"}, true,
			"allows no user namespaces", "user.max_user_namespaces=15000"},
		{"WSL 1", "4.4.0-19041-Microsoft", nil, false, "WSL 1", "wsl --set-version"},
		{"Docker", "6.1.0", map[string]string{"/.dockerenv": ""}, true, "Docker container", "--security-opt"},
		{"anything else says what the kernel said", "6.1.0", nil, false, "not permitted", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := &examination{host: machine(t, c.kernel, c.files), root: c.root}
			x.namespaces(no)
			f := x.out.Checks[0]
			if f.Status != broken || !strings.Contains(f.Found, c.found) || !strings.Contains(f.Fix, c.fix) || f.Fix == "" {
				t.Errorf("%+v, want found %q and fix %q", f, c.found, c.fix)
			}
		})
	}
}

// The remedy for AppArmor is a command that writes the profile that the kernel
// asks for, for this program alone.
func TestF56AppArmorRemedyRuns(t *testing.T) {
	out := filepath.Join(t.TempDir(), "profile")
	cmd := exec.Command("/bin/sh", "-c", `
		sudo() { "$@"; }
		tee() { test "$1" = /etc/apparmor.d/pando && cat > "$OUT"; }
		apparmor_parser() { test "$1 $2" = "-r /etc/apparmor.d/pando"; }
		`+apparmorProfile())
	cmd.Env = append(os.Environ(), "OUT="+out)
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	exe, _ := os.Executable()
	want := "abi <abi/4.0>,\ninclude <tunables/global>\nprofile pando " + exe + " flags=(unconfined) {\n  userns,\n}\n"
	if string(b) != want {
		t.Errorf("%q, want %q", b, want)
	}
}

func TestHostNames(t *testing.T) {
	release := "NAME=x\nPRETTY_NAME=\"Ubuntu 24.04 LTS\"\n"
	for _, c := range []struct {
		kernel string
		files  map[string]string
		want   string
	}{
		{"6.1.0", nil, "Linux"},
		{"6.1.0", map[string]string{"/etc/os-release": release}, "Ubuntu 24.04 LTS"},
		{"5.15.0-microsoft-standard-WSL2", map[string]string{"/etc/os-release": release}, "Ubuntu 24.04 LTS in WSL"},
		{"6.1.0", map[string]string{"/run/.containerenv": ""}, "Linux in a Podman container"},
		{"6.1.0", map[string]string{"/proc/1/environ": "A=b\x00container=lxc\x00"}, "Linux in a lxc container"},
		{"6.1.0", map[string]string{"/.dockerenv": "", "/proc/1/cgroup": "0::/kubepods/burstable/x\n"}, "Linux in a Kubernetes container"},
	} {
		if got := machine(t, c.kernel, c.files).name(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

type healthy struct{ backend.Backend }

func (healthy) Name() string                                { return "namespace" }
func (healthy) Probe(context.Context) (backend.Caps, error) { return backend.Caps{}, nil }

// A healthy host gets no failure, and whatever would add something says what
// and how.
func TestF56HealthyHost(t *testing.T) {
	d := New(Config{
		Home: paths.Home{State: t.TempDir()}, Backend: healthy{}, Machines: nothing{},
		Disk: func(context.Context, bool) (api.Disk, error) { return api.Disk{Free: 50 << 30}, nil },
	})(context.Background())
	if !d.OK {
		t.Errorf("%+v", d.Checks)
	}
	for _, f := range d.Checks {
		switch {
		case f.Status == broken:
			t.Errorf("%s is broken: %s", f.Name, f.Found)
		case f.Status == missing && (f.Adds == "" || f.Fix == ""):
			t.Errorf("%s is missing, and it is not said what it would add or how: %+v", f.Name, f)
		}
	}
}

// What does not work makes the diagnosis fail.
func TestF56BrokenHost(t *testing.T) {
	d := New(Config{
		Home: paths.Home{State: t.TempDir()}, Backend: healthy{},
		Disk: func(context.Context, bool) (api.Disk, error) { return api.Disk{Free: 1 << 20}, nil },
	})(context.Background())
	if d.OK {
		t.Errorf("no room is no failure: %+v", d.Checks)
	}
}

// connected is a host with cells that are connected by a link, or by none.
type connected struct {
	healthy
	link string
}

func (c connected) Link(context.Context) (string, error) {
	if c.link == "" {
		return "", cell.Errorf(cell.Unsupported, "test", "load a module", "cannot connect a cell: there is nothing")
	}
	return c.link, nil
}

// Whether cells may talk here is said with the link, or with what is missing and
// its remedy; a host without is no broken one.
func TestNetwork(t *testing.T) {
	for link, want := range map[string]api.Finding{
		"tun":    {Name: "network", Status: ok, Found: "cells with a network rule talk through a gateway, over a TUN"},
		"veth":   {Name: "network", Status: ok, Found: "cells with a network rule talk through a gateway, over a veth pair"},
		"socket": {Name: "network", Status: ok, Found: "cells with a network rule talk through a gateway, over a socket"},
		"":       {Name: "network", Status: missing, Found: "cannot connect a cell: there is nothing", Adds: "cells that talk, as far as a policy allows", Fix: "load a module"},
	} {
		d := New(Config{Home: paths.Home{State: t.TempDir()}, Backend: connected{link: link},
			Disk: func(context.Context, bool) (api.Disk, error) { return api.Disk{Free: 50 << 30}, nil }})(context.Background())
		i := slices.IndexFunc(d.Checks, func(f api.Finding) bool { return f.Name == "network" })
		if i < 0 || d.Checks[i] != want || !d.OK {
			t.Errorf("%q: ok %v, %+v", link, d.OK, d.Checks)
		}
	}
}

// tried is a backend of gVisor that is there, and works or fails when it is tried.
type tried struct {
	healthy
	err error
}

func (t tried) Try(context.Context) error { return t.err }

// That the programs of gVisor are there is not enough: doctor makes a cell, and
// hands on why it can't. A host without is no broken one.
func TestGvisorIsTried(t *testing.T) {
	why := cell.Errorf(cell.Unsupported, "test", "allow it", "cannot start gVisor: nobody may trace")
	for _, c := range []struct {
		err  error
		want api.Finding
	}{
		{nil, api.Finding{Name: "gvisor", Status: ok, Found: "a cell with gVisor's application kernel was made, and ran a command: --backend gvisor"}},
		{why, api.Finding{Name: "gvisor", Status: missing, Found: "cannot start gVisor: nobody may trace", Adds: "cells with a kernel of their own: --backend gvisor", Fix: "allow it"}},
	} {
		d := New(Config{Home: paths.Home{State: t.TempDir()}, Backend: healthy{}, Gvisor: tried{err: c.err},
			Disk: func(context.Context, bool) (api.Disk, error) { return api.Disk{Free: 50 << 30}, nil }})(context.Background())
		i := slices.IndexFunc(d.Checks, func(f api.Finding) bool { return f.Name == "gvisor" })
		if i < 0 || d.Checks[i] != c.want || !d.OK {
			t.Errorf("%v: ok %v, %+v", c.err, d.OK, d.Checks)
		}
	}
}
