package isolation

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux"
)

// Bounds of an observer.
const (
	// observedAtOnce is how many processes of a command are waited for: each takes a descriptor.
	observedAtOnce = 2048
	// observedBacklog is how much of what happened may wait to be recorded, in bytes and in events.
	observedBacklog = 8 << 20
	observedEvents  = 16 << 10
	// searchTime is how long the tries of one search take. An event is recorded after it.
	searchTime = 100 * time.Millisecond
	// quietTime is how long, at the end of a command, nothing may happen before what is left of it is taken
	// for what goes on.
	quietTime = 20 * time.Millisecond
	// settleTime is the most that the end of a command waits for its observer.
	settleTime = 500 * time.Millisecond
)

// An observer tells of the processes that a command starts. They inherit its seccomp filter, which has each execve
// wait for an answer, and the answer is always to go on. One goroutine answers and waits for the ends of processes; it
// goes on for as long as one of them lives, also after the end of the command, when nothing is told any more. A second one
// records, so that no process waits for a disk.
type observer struct {
	starts *server.Starts
	own    cell.Process // the command: its memory is the keeper's until it has executed

	mu      sync.Mutex // guards what follows
	queue   []*seen
	bytes   int
	drained bool // nothing is queued any more
	more    chan struct{}
	over    chan struct{} // closed when the queue is recorded, and drained

	settling int           // an eventfd
	settled  chan struct{} // closed when the answering goroutine tells nothing more
}

// seen is the start or the end of a process.
type seen struct {
	exec *server.Exec
	end  *server.End
	call linux.ExecCall
	at   time.Time
	size int
}

// observe serves the listener that comes through socket. It returns at once.
func observe(socket *os.File, p cell.Process, starts *server.Starts) (*observer, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		unix.Close(event)
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	o := &observer{starts: starts, own: p, settling: event, more: make(chan struct{}, 1), over: make(chan struct{}), settled: make(chan struct{})}
	go o.record()
	go func() {
		listener := linux.ReceiveFile(socket)
		socket.Close()
		if listener != nil {
			w := &watching{o: o, poll: poll, listener: int(listener.Fd()), l: linux.NewExecListener(int(listener.Fd())), byPID: map[int]*tracked{}, byFD: map[int32]*tracked{}}
			w.serve()
			listener.Close()
		} else {
			starts.Unseen("starts and ends of processes", "the kernel refused a second listener of seccomp")
			o.close()
		}
		unix.Close(poll)
		o.mu.Lock()
		unix.Close(o.settling)
		o.settling = -1
		o.mu.Unlock()
	}()
	return o, nil
}

// Settle implements server.Settler.
func (o *observer) Settle() {
	o.mu.Lock()
	if o.settling >= 0 {
		unix.Write(o.settling, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	o.mu.Unlock()
	late := time.NewTimer(settleTime)
	defer late.Stop()
	select {
	case <-o.settled:
	case <-late.C:
		o.starts.Lost(0, 0, "the observer was late")
	}
	o.close()
	select {
	case <-o.over:
	case <-late.C:
		o.mu.Lock()
		for _, e := range o.queue {
			o.starts.Lost(e.counts("the observer was late"))
		}
		o.queue = nil
		o.mu.Unlock()
	}
}

// close has the queue recorded to its end.
func (o *observer) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.drained {
		o.drained = true
		close(o.more)
	}
}

func (e *seen) counts(why string) (starts, ends int64, because string) {
	if e.exec != nil {
		return 1, 0, why
	}
	return 0, 1, why
}

// tell queues what happened.
func (o *observer) tell(e *seen) {
	if e.exec != nil {
		e.size += len(e.exec.Path)
		for _, w := range e.exec.Args {
			e.size += len(w) + 16
		}
	}
	e.size += 200
	e.at = time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.drained {
		return
	}
	if o.bytes+e.size > observedBacklog || len(o.queue) >= observedEvents {
		o.starts.Lost(e.counts("there were more at once than can be recorded"))
		e.exec = nil
		return
	}
	o.queue, o.bytes = append(o.queue, e), o.bytes+e.size
	select {
	case o.more <- struct{}{}:
	default:
	}
}

// again notes that the last start of a process was a try that failed. It reports false when that is recorded
// already.
func (o *observer) again(last *seen, path string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if last.exec == nil || len(last.exec.Tried) >= server.MaxTried { // recorded, or lost
		return false
	}
	last.exec.Tried = append(last.exec.Tried, last.exec.Path)
	last.exec.Path = path
	return true
}

// record records what is queued, in order, until close.
func (o *observer) record() {
	defer close(o.over)
	for {
		o.mu.Lock()
		var wait time.Duration
		var list []*seen
		for len(o.queue) > 0 {
			e := o.queue[0]
			if wait = searchTime - time.Since(e.at); wait > 0 && !o.drained {
				break
			}
			wait = 0
			o.queue, o.bytes = o.queue[1:], o.bytes-e.size
			list = append(list, &seen{exec: e.exec, end: e.end})
			e.exec = nil
		}
		drained := o.drained
		o.mu.Unlock()
		for _, e := range list {
			if e.exec != nil {
				o.starts.Exec(*e.exec)
			} else {
				o.starts.Ended(*e.end)
			}
		}
		switch {
		case drained:
			return
		case len(list) > 0:
		case wait > 0:
			time.Sleep(wait)
		default:
			<-o.more
		}
	}
}

// watching is what the answering goroutine has.
type watching struct {
	o        *observer
	poll     int
	listener int
	l        *linux.ExecListener
	byPID    map[int]*tracked
	byFD     map[int32]*tracked
	own      linux.ExecCall // of the command itself
	tries    int            // its own
	number   int32          // of the last process that was tracked
	quiet    bool           // nothing is told any more
	refused  bool           // that memory can't be read was told
}

// tracked is a process that is waited for.
type tracked struct {
	linux.ProcessHandle
	last   *seen
	number int32
}

// serve answers until the last process that could ask is gone.
func (w *watching) serve() {
	defer w.forget()
	defer w.settle()
	w.add(w.listener, unix.EPOLLIN, 0)
	w.add(w.o.settling, unix.EPOLLIN, 0)
	events := make([]unix.EpollEvent, 128)
	timeout, until := -1, time.Time{}
	alone := false // no process is left that could ask; those that ended are not all reaped
	for {
		n, err := unix.EpollWait(w.poll, events, timeout)
		if err != nil && err != unix.EINTR {
			n = 0 // impossible; whatever it is, those that wait are answered
			w.answer()
		}
		for _, ev := range events[:max(n, 0)] {
			switch int(ev.Fd) {
			case w.listener:
				if ev.Events&unix.EPOLLIN != 0 {
					w.answer()
				} else if ev.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
					unix.EpollCtl(w.poll, unix.EPOLL_CTL_DEL, w.listener, nil)
					alone = true
				}
			case w.o.settling:
				timeout, until = int(quietTime.Milliseconds()), time.Now().Add(settleTime/2)
				unix.EpollCtl(w.poll, unix.EPOLL_CTL_DEL, w.o.settling, nil)
			default:
				w.ends(ev)
			}
		}
		if timeout >= 0 && (n == 0 || len(w.byPID) == 0 || time.Now().After(until)) {
			w.settle()
			timeout = -1
		}
		if alone && (w.quiet || len(w.byPID) == 0) {
			return
		}
	}
}

// settle ends the telling, and goes on with the answers.
func (w *watching) settle() {
	if w.quiet {
		return
	}
	w.quiet = true
	w.forget()
	close(w.o.settled)
}

func (w *watching) forget() {
	for fd := range w.byFD {
		unix.Close(int(fd))
	}
	w.byFD, w.byPID = map[int32]*tracked{}, map[int]*tracked{}
}

// add waits for a descriptor. number tells it from an earlier one of its number: events of that may be read already.
func (w *watching) add(fd int, events uint32, number int32) bool {
	return unix.EpollCtl(w.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd), Pad: number}) == nil
}

// answer lets one process go on, and tells of it.
func (w *watching) answer() {
	n, err := w.l.Receive()
	if err != nil {
		return // ENOENT: it was killed meanwhile
	}
	defer w.l.Continue(n)
	if w.quiet {
		return
	}
	path, words, more, err := n.Read()
	if err != nil && (w.tries == 0 || n.Call == w.own) && w.tries < len(w.o.own.Path) {
		// The command itself, in memory of the keeper's.
		w.own = n.Call
		path, words, more = w.o.own.Path[w.tries], w.o.own.Args, false
		w.tries++
	}
	if err != nil && path == "" && !w.refused {
		w.refused = true
		w.o.starts.Unseen("files and words of processes", "the kernel refuses to read their memory: "+err.Error())
	}
	t, fresh := w.process(n)
	if !w.l.Valid(n) { // it was killed, and its number may be that of any other process by now
		if fresh && t.FD >= 0 {
			w.drop(t)
		}
		return
	}
	if t.FD < 0 {
		w.o.starts.Lost(0, 1, "there were more processes at once than are waited for")
	}
	if t.last != nil && t.last.call == n.Call && w.o.again(t.last, path) {
		return
	}
	e := &server.Exec{PID: t.PID, Parent: t.Parent, Args: words, Path: path, As: server.Asked}
	if more {
		e.Cut = -1
	}
	t.last = &seen{exec: e, call: n.Call}
	w.o.tell(t.last)
}

// process is the process of a notice. It is waited for from now on, unless its FD is below 0; fresh: it was not before.
func (w *watching) process(n linux.ExecNotice) (t *tracked, fresh bool) {
	if t := w.byPID[n.TID]; t != nil {
		if t.Still() {
			return t, false
		}
		w.over(t)
	}
	w.number++
	t = &tracked{ProcessHandle: n.Process(), number: w.number}
	if old := w.byPID[t.PID]; old != nil { // of a thread that is not the first
		unix.Close(t.FD)
		if old.Still() {
			return old, false
		}
		w.over(old)
		t.FD = -1
	}
	if t.FD >= 0 && len(w.byPID) < observedAtOnce && w.add(t.FD, unix.EPOLLIN|unix.EPOLLET, w.number) {
		w.byPID[t.PID], w.byFD[int32(t.FD)] = t, t
		return t, true
	}
	if t.FD >= 0 {
		unix.Close(t.FD)
		t.FD = -1
	}
	return t, true
}

// ends handles a process that has ended, or was reaped: then it is known how it ended.
func (w *watching) ends(ev unix.EpollEvent) {
	t := w.byFD[ev.Fd]
	if t == nil || t.number != ev.Pad {
		return
	}
	if ev.Events&unix.EPOLLHUP != 0 || !linux.TellsExits() { // there, nothing more will be known of it
		w.over(t)
	}
}

// over tells of the end of a process.
func (w *watching) over(t *tracked) {
	e := server.End{PID: t.PID, As: server.NotSeen}
	if ws, ok := linux.ExitOfHandle(t.FD); ok {
		exit := linux.ExitOf(ws)
		e.Code, e.Signal, e.As = exit.Code, exit.Signal, server.Observed
	}
	w.drop(t)
	w.o.tell(&seen{end: &e})
}

func (w *watching) drop(t *tracked) {
	delete(w.byPID, t.PID)
	delete(w.byFD, int32(t.FD))
	unix.Close(t.FD)
}
