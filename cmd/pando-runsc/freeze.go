package main

import (
	gocontext "context"
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	pb "gvisor.dev/gvisor/pkg/sentry/seccheck/points/points_go_proto"
	"gvisor.dev/gvisor/pkg/state"
)

// The freezer of the application kernel, which has none of its own. It uses the stops with
// which gVisor pauses a kernel, for each task but those of the first process, which is
// pando-guest: a task stops before its next instruction of the application, no signal is
// sent, and no process notices.
//
// The guest calls sched_get_priority_max(freezeMagic, operation, pid, answer). answer is
// the address of 8 bytes: 1 plus the result in the machine's byte order. Nothing is written
// for another caller, by another kernel, or by a pando-runsc without a freezer. The same
// numbers are in internal/guest/freezer.go.
const (
	freezeCall  = unix.SYS_SCHED_GET_PRIORITY_MAX
	freezeMagic = 0x70616e64

	freezeProbe = 1 // result: 0
	freezeHold  = 2 // freezeTasks, and tasks of copies that are captured now begin frozen
	freezeTasks = 3 // freezes all; result: how many have not stopped within stopLimit
	freezeThaw  = 4 // resumes all
	freezeRests = 5 // result: 1 when each thread of pid, in the cell's numbering, is frozen and has stopped
	freezeMop   = 6 // lets killed tasks end
)

// stopLimit bounds the wait for tasks to stop: one may wait for the host. mopFor is how long
// killed tasks are looked for frequently, after a call that may kill and after the end of a
// task, which may kill others. mopRarely is the interval otherwise, while something is frozen.
const (
	stopLimit = 2 * time.Second
	stopPause = 50 * time.Microsecond
	mopFor    = 200 * time.Millisecond
	mopOften  = time.Millisecond
	mopRarely = time.Second
)

// freezer is the sink that the guest's calls reach.
//
// Lock order: mu, then gVisor's set of tasks, then its locks of signals. None of gVisor's
// locks is held where it calls the freezer: at the two ends of a system call, where a task
// begins to exit, and where it does its work before it returns to the application.
type freezer struct {
	seccheck.SinkDefaults

	mu     sync.Mutex
	frozen map[*kernel.Task]bool
	parked map[*kernel.Task]bool // has a park of this kernel that was not executed yet
	thawed bool                  // a copy's tasks that have not begun yet are no longer to be frozen
	mops   bool                  // a goroutine looks for killed tasks
	often  time.Time             // end of the time in which it does so frequently
	mop    chan struct{}         // wakes it
}

// theFreezer is the freezer of the process, which has one kernel. Objects loaded with a kernel
// find it here.
var theFreezer = &freezer{frozen: map[*kernel.Task]bool{}, parked: map[*kernel.Task]bool{}, mop: make(chan struct{}, 1)}

// killing are the calls that may kill a task.
var killing = []uintptr{unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_PIDFD_SEND_SIGNAL}

// begin registers the sink, before there is a kernel.
func (f *freezer) begin() {
	state.Register((*park)(nil))
	points := []seccheck.PointReq{{Pt: seccheck.GetPointForSyscall(seccheck.SyscallRawEnter, freezeCall)}, {Pt: seccheck.PointTaskExit}}
	for _, nr := range killing {
		points = append(points, seccheck.PointReq{Pt: seccheck.GetPointForSyscall(seccheck.SyscallRawExit, nr)})
	}
	seccheck.Global.AppendSink(f, points)
}

// Name implements seccheck.Sink.
func (*freezer) Name() string { return "pando-freezer" }

// RawSyscall implements seccheck.Sink.
func (f *freezer) RawSyscall(ctx context.Context, _ seccheck.FieldSet, c *pb.Syscall) error {
	t := kernel.TaskFromContext(ctx)
	switch {
	case t == nil:
	case slices.Contains(killing, uintptr(c.Sysno)):
		if c.Exit != nil {
			f.look()
		}
	case c.Sysno == freezeCall && c.Arg1 == freezeMagic && c.Exit == nil && t.ThreadGroup() == t.Kernel().GlobalInit():
		var b [8]byte
		binary.NativeEndian.PutUint64(b[:], 1+f.do(t, c.Arg2, kernel.ThreadID(c.Arg3)))
		_, err := t.CopyOutBytes(hostarch.Addr(c.Arg4), b[:])
		return err
	}
	return nil
}

// TaskExit implements seccheck.Sink. A task that ends may have others killed.
func (f *freezer) TaskExit(context.Context, seccheck.FieldSet, *pb.TaskExit) error {
	f.look()
	return nil
}

func (f *freezer) do(t *kernel.Task, op uint64, pid kernel.ThreadID) uint64 {
	switch op {
	case freezeHold:
		left := f.freeze(t)
		f.park()
		return left
	case freezeTasks:
		return f.freeze(t)
	case freezeThaw:
		f.thaw()
	case freezeRests:
		return f.rests(t, pid)
	case freezeMop:
		f.look()
	}
	return 0
}

// freeze stops all tasks but those of the caller's process, and returns how many have not
// stopped. All have stopped when two passes in a row find that, and the second finds no new
// task: one that had not stopped in the first may have made another.
func (f *freezer) freeze(caller *kernel.Task) (left uint64) {
	all := false
	for until := time.Now().Add(stopLimit); ; time.Sleep(stopPause) {
		var fresh bool
		left, fresh = f.freezeOnce(caller)
		if all && left == 0 && !fresh || time.Now().After(until) {
			return left
		}
		all = left == 0
	}
}

func (f *freezer) freezeOnce(caller *kernel.Task) (left uint64, fresh bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range caller.Kernel().RootPIDNamespace().Tasks() {
		if t.ThreadGroup() == caller.ThreadGroup() || t.ExitState() != kernel.TaskExitNone || t.Killed() {
			continue // an ending task runs no application code
		}
		fresh = f.stop(t) || fresh
		if t.TaskGoroutineState() != kernel.TaskGoroutineStopped {
			left++
		}
	}
	f.release() // it may have been killed just before
	return left, fresh
}

// stop freezes a task, unless it is frozen. mu is held.
func (f *freezer) stop(t *kernel.Task) (fresh bool) {
	if f.frozen[t] {
		return false
	}
	f.frozen[t] = true
	t.BeginExternalStop()
	if !f.mops {
		f.mops = true
		go f.mopUp()
	}
	return true
}

func (f *freezer) thaw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.thawed = true
	for t := range f.frozen {
		t.EndExternalStop()
	}
	clear(f.frozen)
}

// park makes frozen tasks begin frozen in copies. A task that is stopped for long, by SIGSTOP
// for instance, does no work: it keeps its park.
func (f *freezer) park() {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.parked, func(t *kernel.Task, _ bool) bool { return t.ExitState() != kernel.TaskExitNone })
	for t := range f.frozen {
		if !f.parked[t] {
			f.parked[t] = true
			t.RegisterWork(new(park))
		}
	}
}

// unparked notes that a task has executed the park that this kernel gave it.
func (f *freezer) unparked(t *kernel.Task) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.parked, t)
}

// begins freezes a task of a copy before it first runs.
func (f *freezer) begins(t *kernel.Task) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.thawed {
		f.stop(t)
		f.release() // it may have been killed just before
	}
}

// rests is 1 when each task of a process is frozen and has stopped. pid is its number in the
// cell's namespace.
func (f *freezer) rests(caller *kernel.Task, pid kernel.ThreadID) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := false
	for _, t := range caller.Kernel().RootPIDNamespace().Tasks() {
		if t.ThreadGroup() == caller.ThreadGroup() || t.PIDNamespace().IDOfThreadGroup(t.ThreadGroup()) != pid {
			continue
		}
		if !f.frozen[t] || t.TaskGoroutineState() != kernel.TaskGoroutineStopped {
			return 0
		}
		found = true
	}
	if !found {
		return 0
	}
	return 1
}

// look lets killed tasks end, since SIGKILL ends a stop: those killed now, and those killed in a
// moment because a parent or the first process of a namespace ends.
func (f *freezer) look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.frozen) == 0 {
		return
	}
	f.release()
	f.often = time.Now().Add(mopFor)
	select {
	case f.mop <- struct{}{}:
	default: // it is already waking up
	}
}

// mopUp lets killed tasks end until nothing is frozen.
func (f *freezer) mopUp() {
	for {
		f.mu.Lock()
		f.release()
		if len(f.frozen) == 0 {
			f.mops = false
			f.mu.Unlock()
			return
		}
		pause := mopRarely
		if time.Now().Before(f.often) {
			pause = mopOften
		}
		f.mu.Unlock()
		select {
		case <-time.After(pause):
		case <-f.mop:
		}
	}
}

// release ends the stops of killed tasks. mu is held.
func (f *freezer) release() {
	for t := range f.frozen {
		if t.Killed() {
			t.EndExternalStop()
			delete(f.frozen, t)
		}
	}
}

// park is work that a task does before it runs application code: nothing in the kernel that
// registered it; in a copy, which is loaded with it, it freezes the task. gVisor saves no stops
// in a checkpoint but this one.
type park struct{ loaded bool }

// TaskWork implements kernel.TaskWorker.
func (p *park) TaskWork(t *kernel.Task) {
	if p.loaded {
		theFreezer.begins(t)
	} else {
		theFreezer.unparked(t)
	}
}

// StateTypeName implements state.Type.
func (*park) StateTypeName() string { return "pando.park" }

// StateFields implements state.Type.
func (*park) StateFields() []string { return nil }

// StateSave implements state.SaverLoader.
func (*park) StateSave(state.Sink) {}

// StateLoad implements state.SaverLoader.
func (p *park) StateLoad(gocontext.Context, state.Source) { p.loaded = true }
