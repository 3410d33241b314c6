package mem

import (
	"context"
	"maps"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// firstTask is greater than every PID of Linux, so that tasks and processes cannot be confused.
const firstTask = 1 << 22

// taskMemory is the reported memory of a task, in bytes.
const taskMemory = 1 << 20

// task is a process of a cell: a goroutine with a PID, arguments and signals.
type task struct {
	room    *room
	of      *command // the command that started it, perhaps indirectly
	number  int
	parent  int
	began   time.Time
	ctx     context.Context // ends with a signal that ends the task
	cancel  context.CancelFunc
	done    chan struct{} // closed when it has ended
	stopped chan struct{} // closed by the first signal that it handles

	// Host.mu guards the fields below.
	args     []string
	traps    map[string]string // actions by signal name; "" ignores the signal
	pending  []string          // actions to run next
	ended    string            // signal that ended it
	code     int               // exit code
	next     bool              // the next program runs in this task
	children []*task           // its background tasks
}

// newTask makes a task of a command. The caller holds Host.mu.
func (r *room) newTask(of *command, parent *task, args []string) *task {
	h := r.host
	h.last++
	t := &task{room: r, of: of, number: h.last, began: time.Now(), args: args, done: make(chan struct{}), stopped: make(chan struct{}), traps: map[string]string{}}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.ctx = context.WithValue(t.ctx, taskKey{}, t)
	if parent != nil {
		t.parent = parent.number
		for sig, do := range parent.traps {
			if do == "" { // ignored signals are inherited
				t.traps[sig] = ""
			}
		}
	}
	h.tasks[t.number], r.tasks[t.number] = t, t
	return t
}

type taskKey struct{}

// taskOf returns the task of a context.
func taskOf(ctx context.Context) *task { return ctx.Value(taskKey{}).(*task) }

// end removes a task that has ended.
func (t *task) end(code int) {
	h := t.room.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.code = code; t.ended != "" {
		t.code = 128 + int(unix.SignalNum(t.ended))
	}
	delete(h.tasks, t.number)
	delete(t.room.tasks, t.number)
	t.cancel()
	close(t.done)
}

// exit returns its exit status.
func (t *task) exit() cell.Exit {
	h := t.room.host
	h.mu.Lock()
	defer h.mu.Unlock()
	return cell.Exit{Code: t.code, Signal: t.ended}
}

// signal delivers a signal like the kernel: it is ignored, handled, or ends the task. In a frozen
// cell that waits for Thaw, as in a kernel of its own and on cgroups v1.
func (t *task) signal(name string) {
	h := t.room.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if thawed := t.room.frozen; thawed != nil {
		go func() {
			select {
			case <-thawed:
				t.signal(name)
			case <-t.ctx.Done():
			}
		}()
		return
	}
	do, trapped := t.traps[name]
	switch {
	case t.ended != "" || t.ctx.Err() != nil:
	case name == "SIGCHLD" || name == "SIGCONT" || name == "SIGWINCH" || name == "SIGURG":
	case trapped && do == "" && name != "SIGKILL":
	case trapped && name != "SIGKILL":
		if t.pending = append(t.pending, do); len(t.pending) == 1 {
			select {
			case <-t.stopped:
			default:
				close(t.stopped)
			}
		}
	default:
		t.ended = name
		t.cancel()
	}
}

// trap sets the action for a signal.
func (t *task) trap(name, do string) {
	h := t.room.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if do == "-" {
		delete(t.traps, name)
	} else {
		t.traps[name] = do
	}
}

// handles returns the action for pending signals.
func (t *task) handles() string {
	h := t.room.host
	h.mu.Lock()
	defer h.mu.Unlock()
	do := strings.Join(t.pending, "\n")
	if t.pending = nil; do != "" {
		t.stopped = make(chan struct{})
	}
	return do
}

// info describes the task. The caller holds Host.mu.
func (t *task) info() cell.ProcessInfo {
	state := "S"
	if t.room.frozen != nil {
		state = "T"
	}
	return cell.ProcessInfo{PID: t.number, PPID: t.parent, State: state, RSS: taskMemory, Started: t.began, Command: strings.Join(t.args, " ")}
}

// find returns a task of any cell by its PID.
func (h *Host) find(number int) *task {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tasks[number]
}

// numbered returns the arguments of all tasks of all cells, by PID.
func (h *Host) numbered() map[int][]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[int][]string{}
	for n, t := range maps.All(h.tasks) {
		all[n] = t.args
	}
	return all
}

// signalName returns a signal's full name, or "" for an unknown one.
func signalName(s string) string {
	if s = strings.ToUpper(s); !strings.HasPrefix(s, "SIG") {
		s = "SIG" + s
	}
	if unix.SignalNum(s) == 0 {
		return ""
	}
	return s
}
