package linux

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// A Thread runs functions on one thread of the operating system, which lives
// as long as the process: for what the kernel ties to a thread. A child that
// asked for a signal at its parent's death gets it when the thread that forked
// it ends, and the threads of the Go runtime come and go.
type Thread struct{ work chan func() }

// NewThread starts a thread. It is never the process's first one, because that one's
// namespaces and working directory are shown as the process's own.
func NewThread() *Thread {
	t := &Thread{make(chan func())}
	go t.live(func() {})
	return t
}

func (t *Thread) live(begun func()) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		other := make(chan struct{})
		go t.live(func() { close(other) })
		<-other // it is on another thread, as this one is taken
		runtime.UnlockOSThread()
		return
	}
	begun()
	for f := range t.work {
		f()
	}
}

// Do runs f on the thread and returns when it has.
func (t *Thread) Do(f func()) {
	done := make(chan struct{})
	t.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

// Close ends the thread, when it has done what it does.
func (t *Thread) Close() { close(t.work) }

// elsewhere runs f on a thread of its own, which may go into any pid namespace. A
// process that has no rights in its own, as keepers have none in the host's,
// can't bring a thread back: whatever else was forked from it would be born in
// the wrong place.
func elsewhere(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with this
		f()
	}()
	<-done
}
