package namespace

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/need"
)

// The number of an ended command's namespace is no other command's as long as
// somebody may still ask who belongs to it: the kernel gives a number that is
// free to the next namespace, and what ends the rest of one command would end
// the other.
func TestAFamilysNumberIsHeld(t *testing.T) {
	need.Root(t) // makes cgroup namespaces without a user namespace around them
	start := func() *linux.Child {
		t.Helper()
		s := &linux.Script{}
		s.Stdio([3]*os.File{})
		s.Call("unshare cgroup", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)
		s.CaptureLink(familyLink, 64)
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
	held := holdFamily(first)
	end(first)
	if held == nil || held.name != first.Captured[familyLink] {
		t.Fatalf("held %+v of a command in %q", held, first.Captured[familyLink])
	}
	for range 20 {
		next := start()
		name := next.Captured[familyLink]
		end(next)
		if name == held.name {
			t.Fatalf("another command is in %s, too", name)
		}
	}
	held.hold.Close()
	// One that has ended has no namespace to hold.
	if f := holdFamily(first); f != nil {
		t.Errorf("held %s of a command that is gone", f.name)
	}
}
