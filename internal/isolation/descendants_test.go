package isolation

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/testenv"
)

// The number of an ended command's namespace is no other command's as long as
// its processes may still be looked for: the kernel gives a free number to the next
// namespace, and what ends the rest of one command would end the other.
func TestAFamilysNumberIsHeld(t *testing.T) {
	testenv.Root(t) // makes cgroup namespaces without a user namespace around them
	start := func() *linux.Child {
		t.Helper()
		s := &linux.Script{}
		s.Stdio([3]*os.File{})
		s.Call("unshare cgroup", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)
		s.CaptureLink(cgroupNSLink, 64)
		s.Report()
		s.Exec([]string{"/bin/sleep", "/usr/bin/sleep"}, []string{"sleep", "60"}, nil)
		c, err := linux.Spawn(s, linux.SpawnOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	end := func(c *linux.Child) {
		c.Kill()
		c.Wait()
		c.PIDFD.Close()
	}
	first := start()
	held := openDescendants(first)
	end(first)
	if held == nil || held.name != first.Captured[cgroupNSLink] {
		t.Fatalf("held %+v of a command in %q", held, first.Captured[cgroupNSLink])
	}
	for range 20 {
		next := start()
		name := next.Captured[cgroupNSLink]
		end(next)
		if name == held.name {
			t.Fatalf("another command is in %s, too", name)
		}
	}
	held.ns.Close()
	// One that has ended has no namespace to hold.
	if f := openDescendants(first); f != nil {
		t.Errorf("held %s of a command that is gone", f.name)
	}
}
