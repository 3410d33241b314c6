package backendtest

import (
	"os"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/policy"
)

// Little describes a cell with the host's programs and a directory of its own at /work.
func Little(t testing.TB) cell.Spec {
	t.Helper()
	dir := t.TempDir()
	spec := cell.Spec{ID: cell.NewID(), Hostname: "x", User: cell.User{UID: os.Getuid(), GID: os.Getgid(), Name: "x", Home: "/home/x"}, Workdir: "/work",
		Limits: cell.Limits{Memory: 256 << 20, CPUs: 1, PIDs: 100, Disk: 1 << 30}, Writes: []string{dir},
		Mounts: []cell.Mount{{Kind: cell.Bind, Source: "/usr", Target: "/usr", ReadOnly: true}, {Kind: cell.Tmpfs, Target: "/run"},
			{Kind: cell.Bind, Source: dir, Target: "/work", Owned: true}}}
	for _, d := range []string{"/bin", "/lib", "/lib64"} {
		if to, err := os.Readlink(d); err == nil {
			spec.Mounts = append(spec.Mounts, cell.Mount{Kind: cell.Link, Source: to, Target: d})
		}
	}
	return spec
}

// Allowing returns a governance that allows some hosts.
func Allowing(t testing.TB, allow ...string) *cell.Governance {
	t.Helper()
	r, err := policy.Merge(policy.Effective{Secrets: policy.SecretsName, Isolation: policy.Isolation{Least: "none"}}, nil, policy.Flags{Allow: allow})
	if err != nil {
		t.Fatal(err)
	}
	return &cell.Governance{Policy: r.Canonical()}
}

// Left lists what the cells of an installation leave behind: files of keepers in a directory,
// and cgroups.
func Left(t testing.TB, keepers, installation string) []string {
	t.Helper()
	list := KeeperFiles(keepers)
	groups, err := linux.FindCgroups(installation)
	if err != nil || groups.Caps().Group != "" { // without cgroups there are none to leave
		return list
	}
	names, err := groups.Leftovers()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if n != "keepers" { // it is removed with the last daemon
			list = append(list, "cgroup "+n)
		}
	}
	return list
}
