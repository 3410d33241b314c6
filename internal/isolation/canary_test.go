package isolation

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/testenv"
)

// claiming is a gateway that says of itself more than is true: that it denies
// everything, or that it has seen nothing.
type claiming struct {
	server.Network
	what string
}

func (c claiming) Try(list []cell.Access) (server.Trial, error) {
	t, err := c.Network.Try(list)
	return claim{t, c.what}, err
}

type claim struct {
	server.Trial
	what string
}

func (c claim) Denied() []bool {
	list := c.Trial.Denied()
	if c.what == "all denied" {
		list = slices.Repeat([]bool{true}, len(list))
	}
	return list
}

func (c claim) Seen() []bool {
	list := c.Trial.Seen()
	if c.what == "nothing seen" {
		clear(list)
	}
	return list
}

// try starts `true` in a cell and returns what its canaries found.
func try(t *testing.T, driver string, change func(*cell.Spec)) (cell.Assurance, error) {
	t.Helper()
	cfg := config(t)
	b := NewHost(cfg)
	b.keepers.Backend = driver
	defer b.Close()
	spec := backendtest.Little(t)
	change(&spec)
	i, err := b.Create(t.Context(), spec)
	if err != nil {
		return cell.Assurance{}, err
	}
	defer func() {
		if err := i.Remove(context.Background(), "done"); err != nil {
			t.Error(err)
		}
		if list := backendtest.Left(t, cfg.Keepers, cfg.Installation); len(list) > 0 {
			t.Errorf("left over: %v", list)
		}
	}()
	p, err := i.Start(t.Context(), "p", cell.Start{Process: cell.Process{Args: []string{"touch", "ran"}, Path: []string{"/usr/bin/touch"}, Workdir: "/work"}}, [3]*os.File{})
	if err != nil {
		if _, serr := os.Stat(filepath.Join(spec.Writes[0], "ran")); serr == nil {
			t.Error("it was refused, and has run")
		}
		return cell.Assurance{}, err
	}
	if st, err := p.Wait(t.Context()); err != nil || st.Exit.Code != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	said, err := os.ReadFile(filepath.Join(cfg.Keepers, "keeper.log"))
	if err != nil || strings.Contains(string(said), "decision") {
		t.Errorf("canaries are decisions of the cell: %s, %v", said, err)
	}
	return p.Assurance(), nil
}

// Before a command of a talking cell starts, everything that its policy denies
// was tried and came to the gateway.
func TestCanaries(t *testing.T) {
	for _, driver := range []string{plain, vethOnly} {
		a, err := try(t, driver, func(s *cell.Spec) { s.Network = backendtest.Allowing(t, "example.com") })
		if err != nil {
			t.Fatal(err)
		}
		c := a.Canaries
		if c.Passed != c.Total || c.Total < 31 || len(c.Skipped) > 0 || !c.Fresh || c.At.IsZero() || !slices.Contains(c.Bites, "gateway") {
			t.Errorf("%s: %+v", a.Network, c)
		}
		t.Logf("%s: %d/%d by %v", a.Network, c.Passed, c.Total, c.Bites)
	}
	a, err := try(t, plain, func(*cell.Spec) {})
	if c := a.Canaries; err != nil || c.Total < 31 || slices.Contains(c.Bites, "gateway") || !slices.Contains(c.Bites, "network namespace") {
		t.Errorf("a silent cell: %+v, %v", c, err)
	}
}

// What the policy allows is not tried, and is named; where there is another
// target, that one is.
func TestCanariesLeaveOutWhatIsAllowed(t *testing.T) {
	for _, tc := range []struct {
		allow []string
		want  []string
	}{
		{[]string{"192.0.2.0/24:443"}, nil},
		{[]string{"192.0.2.0/24:443", "198.51.100.0/24:443", "203.0.113.0/24:443"}, []string{"a host by address"}},
		{[]string{"169.254.169.254:80"}, []string{"the metadata service"}},
		{[]string{"*.pando-canary.invalid"}, []string{"a host by name"}},
	} {
		a, err := try(t, plain, func(s *cell.Spec) { s.Network = backendtest.Allowing(t, tc.allow...) })
		if err != nil || !slices.Equal(a.Canaries.Skipped, tc.want) || a.Canaries.Passed != a.Canaries.Total {
			t.Errorf("%v: %+v, %v, want %v", tc.allow, a.Canaries, err, tc.want)
		}
	}
}

// capable names a driver that leaves commands their capabilities.
const capable = "capable"

func capableDriver() (server.Driver, error) {
	d, err := NewDriver(nil)
	if err != nil {
		return nil, err
	}
	d.rootCaps |= 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_SYS_RESOURCE
	return d, nil
}

// One enforcement is taken away at a time: the start is refused, naming the
// canary that found out, and the command has not run.
func TestF65EachCanaryFindsOut(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{filepath.Dir(file), filepath.Dir(filepath.Dir(file))} { // as root, the keeper is "nobody" here
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	show := func(at string) func(*cell.Spec) {
		return func(s *cell.Spec) {
			s.Network = backendtest.Allowing(t, "example.com")
			s.Mounts = append(s.Mounts, cell.Mount{Kind: cell.Bind, Source: file, Target: at, ReadOnly: true})
		}
	}
	lets := func(allow ...string) func(*cell.Spec) { // the gateway knows less than it says
		return func(s *cell.Spec) {
			s.Network = backendtest.Allowing(t, allow...)
			s.Network.Resolvers = []string{"all denied"}
		}
	}
	root := func(s *cell.Spec) {
		s.Network = backendtest.Allowing(t, "example.com")
		s.User.UID, s.User.GID = 0, 0
	}
	for _, tc := range []struct {
		name, driver, canary string
		change               func(*cell.Spec)
	}{
		{"no filter of system calls", lax, "", func(s *cell.Spec) { s.Network = backendtest.Allowing(t, "example.com") }},
		{"rights over interfaces", capable, "change an interface", root},
		{"Docker's socket", plain, "Docker's socket", show("/run/docker.sock")},
		{"containerd's socket", plain, "containerd's socket", show("/run/containerd/containerd.sock")},
		{"Podman's socket", plain, "Podman's socket", show("/run/podman/podman.sock")},
		{"D-Bus", plain, "D-Bus", show("/run/dbus/system_bus_socket")},
		{"passwords", plain, "read /etc/shadow", show("/etc/shadow")},
		{"a host's key", plain, "the host's SSH key", show("/etc/ssh/ssh_host_ed25519_key")},
		{"a decoy", plain, "root's .netrc", show("/root/.netrc")},
		{"cgroups", plain, "write a cgroup's limits", func(s *cell.Spec) { show("/sys/fs/cgroup/cgroup.procs")(s); s.Mounts[len(s.Mounts)-1].ReadOnly = false }},
		{"a name", plain, "a host by name", lets("*.pando-canary.invalid")},
		{"an address", plain, "a host by address", lets("192.0.2.0/24:443")},
		{"metadata", plain, "the metadata service", lets("169.254.169.254:80")},
		{"private", plain, "a private network", lets("10.0.0.0/8:443")},
		{"IPv6", plain, "a host over IPv6", lets("[2001:db8::/32]:443")},
		{"metadata over IPv6", plain, "the metadata service over IPv6", lets("[fd00:ec2::254]:80")},
		{"a gateway that saw nothing", plain, "nothing of it came to the gateway", func(s *cell.Spec) {
			s.Network = backendtest.Allowing(t, "example.com")
			s.Network.Resolvers = []string{"nothing seen"}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.driver == capable {
				testenv.Root(t)
			}
			_, err := try(t, tc.driver, tc.change)
			if cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), tc.canary) || cell.HintOf(err) == "" {
				t.Errorf("%v (%s)", err, cell.KindOf(err))
			}
		})
	}
}

var _ backend.Connector = (*Host)(nil)
