package bench

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// hybridCgroups is where hosts with both kinds of cgroups mount the second.
const hybridCgroups = "/sys/fs/cgroup/unified"

// privateHost is a thread of root's in a mount namespace of its own, made for
// runtimes that want another host: the second cgroup hierarchy of a hybrid host
// is not mounted there (crun refuses to start where that has controllers), and
// directories can be shown where a container's ids get to. Programs are forked
// from the thread, so that being there costs them nothing.
type privateHost struct {
	work chan func()
	done chan struct{}
}

func newPrivateHost() (*privateHost, error) {
	h := &privateHost{work: make(chan func()), done: make(chan struct{})}
	ready := make(chan error)
	go func() {
		defer close(h.done)
		runtime.LockOSThread() // never unlocked: the thread ends with this function
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil && hybrid() {
			err = unix.Unmount(hybridCgroups, unix.MNT_DETACH)
		}
		ready <- err
		if err != nil {
			return
		}
		for f := range h.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("cannot make a mount namespace for it: %w", err)
	}
	return h, nil
}

// hybrid reports whether this host has both kinds of cgroups, with controllers
// in the second.
func hybrid() bool {
	b, err := os.ReadFile(hybridCgroups + "/cgroup.controllers")
	return err == nil && len(b) > 0
}

// show makes a directory visible at an empty one, there alone.
func (h *privateHost) show(dir, at string) error {
	if err := h.do(func() error { return unix.Mount(dir, at, "", unix.MS_BIND, "") }); err != nil {
		return fmt.Errorf("cannot show %s at %s: %w", dir, at, err)
	}
	return nil
}

// do does something there, such as starting a program.
func (h *privateHost) do(f func() error) error {
	err := make(chan error)
	h.work <- func() { err <- f() }
	return <-err
}

func (h *privateHost) close() {
	close(h.work)
	<-h.done
}
