package microvm

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/testenv"
	"github.com/pando-dev/pando/internal/vmm/boot"
)

// A machine that is booted in the place of another has the link that that one had:
// what its commands try comes to the same gateway.
func TestMachineThatIsBootedAgainTalks(t *testing.T) {
	testenv.Program(t, "qemu-system-x86_64")
	if _, err := boot.Find(boot.Images, boot.Modules); err != nil {
		t.Skip("needs a kernel for machines")
	}
	b := New(config(t, t.TempDir()))
	defer b.Close()
	spec := backendtest.Little(t)
	spec.Network = backendtest.Allowing(t, "a.test")
	spec.Network.Resolvers = []string{"127.0.0.1:9"}
	i, err := b.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Remove(t.Context(), "done")
	first := talks(t, i, "first")
	machines := machinesOf(t, os.Getpid())
	if len(machines) != 1 {
		t.Fatalf("the machines of this test are %v", machines)
	}
	if err := unix.Kill(machines[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if second := talks(t, i, "second"); second == first {
		t.Errorf("it is the machine %s that was killed", second)
	}
}

// talks runs a command, before which the gateway has seen what was tried, and returns
// which boot of a kernel it ran on.
func talks(t *testing.T, i backend.Instance, name string) string {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	start := cell.Start{LogLimit: 1 << 20, Process: cell.Process{Args: []string{"cat", "/proc/sys/kernel/random/boot_id"}, Path: []string{"/usr/bin/cat"}, Workdir: "/work"}}
	p, err := i.Start(t.Context(), name, start, [3]*os.File{out, out, nil})
	for n := 0; cell.KindOf(err) == cell.Unavailable && n < 100; n++ { // until it is seen that the machine is gone
		time.Sleep(20 * time.Millisecond)
		p, err = i.Start(t.Context(), name+strconv.Itoa(n), start, [3]*os.File{out, out, nil})
	}
	if err != nil {
		t.Fatal(err)
	}
	st, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	said, err := os.ReadFile(out.Name())
	if err != nil || st.Exit.Code != 0 {
		t.Fatalf("%+v, %s, %v", st.Exit, said, err)
	}
	if a := p.Assurance().Canaries; a.Total == 0 || a.Passed != a.Total || !slices.Contains(a.Bites, "gateway") {
		t.Errorf("canaries of the %s: %+v", name, a)
	}
	return string(said)
}

// machinesOf are the machines of keepers that are children of a process.
func machinesOf(t *testing.T, pid int) (list []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		t.Fatal(err)
	}
	parent := func(path string) (name string, up int) {
		b, _ := os.ReadFile(path) // it may have ended
		up, _ = strconv.Atoi(linux.StatusField(b, "PPid"))
		return linux.StatusField(b, "Name"), up
	}
	for _, path := range all {
		name, keeper := parent(path)
		if !strings.HasPrefix(name, "qemu-system") {
			continue
		}
		if _, up := parent("/proc/" + strconv.Itoa(keeper) + "/status"); up == pid {
			n, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			list = append(list, n)
		}
	}
	return list
}
