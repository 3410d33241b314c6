package kvm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
)

// reapGrace is how long it is waited for a process that was killed. One that the
// kernel does not let go of is left to a goroutine.
const reapGrace = 2 * time.Second

// Run makes a virtual machine and lets it run, in a forked child that is killed
// when limit is over. nil means that the machine computed what it should. It
// returns at the latest when limit and a little are over, whatever the kernel does.
func Run(limit time.Duration) error {
	s, free, err := machine()
	if err != nil {
		return err
	}
	return run(s, limit, free)
}

// run is Run of any script with a gate; free is called when nothing uses its
// memory any more.
func run(s *linux.Script, limit time.Duration, free func()) error {
	w := &watch{limit: limit}
	done := make(chan error, 1)
	go func() { // which has the child's parent, a thread, for as long as it lives
		defer free()
		c, err := linux.Spawn(s, linux.SpawnOptions{Gate: w.begin})
		if err == nil {
			_, _, err = c.Wait()
			c.PIDFD.Close()
		}
		w.end()
		done <- err
	}()
	// The child may be long in coming to its gate on a busy machine, which is no
	// fault of the device: the time that counts begins there, and this is the rest.
	over := time.NewTimer(limit + startGrace + reapGrace)
	defer over.Stop()
	select {
	case err := <-done:
		if w.late() {
			return fmt.Errorf("one did not come to its end within %v, and was killed", limit)
		}
		return plain(err)
	case <-over.C:
		return fmt.Errorf("one did not come to its end within %v, and can't be killed", limit)
	}
}

// startGrace is how long a child may take until it begins.
const startGrace = 10 * time.Second

// watch kills a child that takes too long.
type watch struct {
	limit time.Duration

	mu     sync.Mutex // guards what follows
	pidfd  int
	timer  *time.Timer
	over   bool // the child has ended
	killed bool
}

// begin is the gate: the child stands still before it touches the device, so that
// its number is its own.
func (w *watch) begin(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pidfd = fd
	w.timer = time.AfterFunc(w.limit, w.kill)
	return nil
}

func (w *watch) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.killed = true
		unix.PidfdSendSignal(w.pidfd, unix.SIGKILL, nil, 0)
	}
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.timer != nil {
		w.timer.Stop()
		unix.Close(w.pidfd)
	}
}

func (w *watch) late() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.killed
}

// plain says what a script's error means here.
func plain(err error) error {
	e, ok := errors.AsType[*linux.ScriptError](err)
	switch {
	case !ok:
		return err
	case e.Errno == 0:
		return errors.New(e.Call + " is not what it should be")
	case e.Errno == unix.ECHILD:
		return errors.New("the process that made one was ended by the kernel")
	}
	return fmt.Errorf("cannot %s: %w", e.Call, e.Errno)
}

// The calls of the device that every processor has, of linux/kvm.h.
const (
	createVM   = 0xAE01
	createVCPU = 0xAE41
)

// begin is the part of a machine's script that every processor has: a process that
// has nothing but the device open, ends with its parent, and waits at its gate.
func begin() (s *linux.Script, vm linux.Slot) {
	s = &linux.Script{Gated: true}
	s.Stdio([3]*os.File{})
	s.Call("follow its parent's death", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, int(unix.SIGKILL), 0, 0, 0)
	s.Gate()
	dev := s.Call("open "+Device, unix.SYS_OPENAT, linux.AtCWD, Device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	return s, s.Call("make one", unix.SYS_IOCTL, dev, createVM, 0)
}
