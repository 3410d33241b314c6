package mem

import (
	"context"
	"maps"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// firstTask is above every number that Linux gives to a process, so that a task
// and a process are never mistaken for each other.
const firstTask = 1 << 22

// taskMemory is what a task is said to take, in bytes.
const taskMemory = 1 << 20

// task is a process of a cell: a goroutine with a number, a name and signals.
type task struct {
	room    *room
	of      *command // that began it, directly or not
	number  int
	parent  int
	began   time.Time
	ctx     context.Context // ends when a signal ends the task
	cancel  context.CancelFunc
	done    chan struct{} // closed when it has ended
	stopped chan struct{} // closed by the first signal that it handles

	// Host.mu guards what follows.
	args     []string
	traps    map[string]string // what it does at a signal, by its name; "": nothing
	pending  []string          // what it is to do next for signals
	ended    string            // the signal that ended it
	code     int               // its exit code
	next     bool              // it becomes the program that it starts next
	children []*task           // begun in the background
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
			if do == "" { // what is ignored stays so
				t.traps[sig] = ""
			}
		}
	}
	h.tasks[t.number], r.tasks[t.number] = t, t
	return t
}

type taskKey struct{}

// taskOf is the task that a context belongs to.
func taskOf(ctx context.Context) *task { return ctx.Value(taskKey{}).(*task) }

// end removes a task that has come to its end, or was ended by a signal.
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

// exit is how it ended.
func (t *task) exit() cell.Exit {
	h := t.room.host
	h.mu.Lock()
	defer h.mu.Unlock()
	return cell.Exit{Code: t.code, Signal: t.ended}
}

// signal does what the kernel does: nothing, what the task wants, or its end.
func (t *task) signal(name string) {
	h := t.room.host
	h.mu.Lock()
	defer h.mu.Unlock()
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

// trap sets what the task does at a signal.
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

// handles returns what the task is to do now for signals that have come.
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

// info is its line in a list of processes. The caller holds Host.mu.
func (t *task) info() cell.ProcessInfo {
	state := "S"
	if t.room.frozen != nil {
		state = "T"
	}
	return cell.ProcessInfo{PID: t.number, PPID: t.parent, State: state, RSS: taskMemory, Started: t.began, Command: strings.Join(t.args, " ")}
}

// find returns a task of any cell by its number.
func (h *Host) find(number int) *task {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tasks[number]
}

// numbered are the tasks of all cells, with the arguments of each.
func (h *Host) numbered() map[int][]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[int][]string{}
	for n, t := range maps.All(h.tasks) {
		all[n] = t.args
	}
	return all
}

// signalName is a signal's full name; "" if it is none.
func signalName(s string) string {
	if s = strings.ToUpper(s); !strings.HasPrefix(s, "SIG") {
		s = "SIG" + s
	}
	if unix.SignalNum(s) == 0 {
		return ""
	}
	return s
}
