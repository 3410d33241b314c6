package linux

import "runtime"

// A Thread runs functions on one thread of the operating system, which lives
// as long as the process: for what the kernel ties to a thread. A child that
// asked for a signal at its parent's death gets it when the thread that forked
// it ends, and the threads of the Go runtime come and go (one that Spawn could
// not bring back from another pid namespace is thrown away).
type Thread struct{ work chan func() }

// NewThread starts a thread.
func NewThread() *Thread {
	t := &Thread{make(chan func())}
	go func() {
		runtime.LockOSThread()
		for f := range t.work {
			f()
		}
	}()
	return t
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
