package main

import (
	"encoding/json"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	pb "gvisor.dev/gvisor/pkg/sentry/seccheck/points/points_go_proto"
)

// processes writes what the processes of commands execute, and how they end, into gVisor's log
// for users. What it writes is a JSON object (report) in one or more lines, since a line of at most
// PIPE_BUF is never mixed with those of others:
//
//	part TEXT   more of it follows
//	proc TEXT   the rest
//
// A command begins where a child of the guest that still has the guest's memory says its number
// (markOp). Its descendants are followed here, in the kernel, where no clone is missed; what has no room on
// the way is counted, and the counts are written as soon as there is room. No process ever waits
// for that. A copy of the kernel follows no process that it was copied with.
//
// Lock order: gVisor's set of tasks, then mu.
type processes struct {
	seccheck.SinkDefaults
	fd int // non-blocking

	mu     sync.Mutex // guards the fields below
	known  map[*kernel.ThreadGroup]*process
	queue  []report
	size   int               // of queue, in bytes
	losing map[*command]bool // those with counts to write
	gone   bool              // the reader is
	wake   chan struct{}
}

// markOp is the operation of freezeCall with which a child of the guest begins a command, and the number is the
// argument after it. internal/guest/freezer_unsafe.go has the same.
const markOp = 7

const (
	queueRoom = 1 << 20  // bytes of reports that wait for the reader
	wordsRoom = 48 << 10 // bytes of a command's words; one that does not fit is left out as a whole, so that no part of a credential is taken for a word
	wordsMost = 1 << 10
	lineRoom  = unix.PathMax - 16 // bytes of a report in a line: PIPE_BUF is as much
	pipeRoom  = 32 << 10          // bytes in the pipe beyond which nothing is added: other lines are lost without room
	roomPause = time.Millisecond
	roomMost  = 20 * time.Millisecond
)

// report is one report. Its kinds are exec, end and lost. internal/backend/gvisor/processes.go reads it.
type report struct {
	Kind    string   `json:"kind"`
	Command uint64   `json:"command"`
	PID     int32    `json:"pid,omitempty"`    // in the cell
	Parent  int32    `json:"parent,omitempty"` // 0: outside of the cell
	Argv    []string `json:"argv,omitempty"`
	Path    string   `json:"path,omitempty"`
	Cut     int64    `json:"cut,omitempty"`    // bytes of words that were left out
	Status  uint32   `json:"status,omitempty"` // as wait4 returns it
	Silent  bool     `json:"silent,omitempty"` // it has executed nothing
	Own     bool     `json:"own,omitempty"`    // it was the command's first process
	Left    int      `json:"left,omitempty"`   // processes of the command that are left
	Starts  int64    `json:"starts,omitempty"` // lost ones
	Ends    int64    `json:"ends,omitempty"`

	of *command
}

// command is one that a process of is known.
type command struct {
	number       uint64
	ns           *kernel.PIDNamespace // the cell's
	left         int
	starts, ends int64 // lost
}

// process is one of a command.
type process struct {
	of       *command
	pid      kernel.ThreadID
	own      bool
	executed bool
}

// begin registers the sink, before there is a kernel.
func (p *processes) begin() {
	p.known, p.losing, p.wake = map[*kernel.ThreadGroup]*process{}, map[*command]bool{}, make(chan struct{}, 1)
	seccheck.Global.AppendSink(p, []seccheck.PointReq{
		{Pt: seccheck.GetPointForSyscall(seccheck.SyscallRawEnter, freezeCall)},
		{Pt: seccheck.PointClone}, {Pt: seccheck.PointExecve}, {Pt: seccheck.PointExitNotifyParent},
	})
	go p.write()
}

// Name implements seccheck.Sink.
func (*processes) Name() string { return "pando-processes" }

// RawSyscall implements seccheck.Sink.
func (p *processes) RawSyscall(ctx context.Context, _ seccheck.FieldSet, c *pb.Syscall) error {
	if c.Sysno != freezeCall || c.Arg1 != freezeMagic || c.Arg2 != markOp || c.Exit != nil {
		return nil
	}
	t := kernel.TaskFromContext(ctx)
	if t == nil {
		return nil
	}
	tg, guest := t.ThreadGroup(), t.Kernel().GlobalInit()
	if guest == nil || tg == guest {
		return nil
	}
	same := false
	own := t.MemoryManager()
	guest.Leader().WithMuLocked(func(g *kernel.Task) { same = g.MemoryManager() == own })
	if !same { // a program of the cell says so
		return nil
	}
	of := &command{number: c.Arg3, ns: tg.PIDNamespace(), left: 1}
	pid := of.ns.IDOfThreadGroup(tg)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known[tg] == nil && !p.gone {
		p.known[tg] = &process{of: of, pid: pid, own: true}
	}
	return nil
}

// of returns what is known of a process.
func (p *processes) of(tg *kernel.ThreadGroup) *process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[tg]
}

// Clone implements seccheck.Sink. The child has not run yet.
func (p *processes) Clone(ctx context.Context, _ seccheck.FieldSet, info *pb.CloneInfo) error {
	t := kernel.TaskFromContext(ctx)
	if t == nil || info.GetFlags()&linux.CLONE_THREAD != 0 {
		return nil
	}
	by := p.of(t.ThreadGroup())
	if by == nil {
		return nil
	}
	tg := t.Kernel().RootPIDNamespace().ThreadGroupWithID(kernel.ThreadID(info.GetCreatedThreadGroupId()))
	if tg == nil {
		return nil
	}
	pid := by.of.ns.IDOfThreadGroup(tg)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone {
		by.of.left++
		p.known[tg] = &process{of: by.of, pid: pid}
	}
	return nil
}

// Execve implements seccheck.Sink. The program is loaded, and what was before is about to go.
func (p *processes) Execve(ctx context.Context, _ seccheck.FieldSet, info *pb.ExecveInfo) error {
	t := kernel.TaskFromContext(ctx)
	if t == nil {
		return nil
	}
	k := p.of(t.ThreadGroup())
	if k == nil {
		return nil
	}
	r := report{Kind: "exec", Command: k.of.number, PID: int32(k.pid), Path: info.GetBinaryPath(), of: k.of}
	if parent := t.Parent(); parent != nil {
		r.Parent = int32(k.of.ns.IDOfThreadGroup(parent.ThreadGroup()))
	}
	if r.Path == "" {
		r.Path = info.GetExecfn()
	}
	r.words(info.GetArgv())
	p.mu.Lock()
	defer p.mu.Unlock()
	k.executed = true
	p.add(r)
	p.rouse()
	return nil
}

// words sets the words that have room.
func (r *report) words(argv []string) {
	room := wordsRoom
	for _, w := range argv {
		if len(w) > room || len(r.Argv) == wordsMost {
			r.Cut += int64(len(w))
			continue
		}
		r.Argv, room = append(r.Argv, w), room-len(w)
	}
}

// ExitNotifyParent implements seccheck.Sink. gVisor's set of tasks is locked. It is not called for a process that its
// own parent traces; the filter of commands refuses ptrace.
func (p *processes) ExitNotifyParent(ctx context.Context, _ seccheck.FieldSet, info *pb.ExitNotifyParentInfo) error {
	if t := kernel.TaskFromContext(ctx); t != nil {
		p.ended(t.ThreadGroup(), uint32(info.GetExitStatus()))
	}
	return nil
}

func (p *processes) ended(tg *kernel.ThreadGroup, status uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.known[tg]
	if k == nil {
		return
	}
	delete(p.known, tg)
	k.of.left--
	if k.executed || k.own || k.of.left == 0 { // the last two tell when all was told
		p.add(report{Kind: "end", Command: k.of.number, PID: int32(k.pid), Status: status, Silent: !k.executed, Own: k.own, Left: k.of.left, of: k.of})
		p.rouse()
	}
}

// add queues a report, or counts what it says as lost. mu is held.
func (p *processes) add(r report) {
	if p.gone {
		return
	}
	size := r.size()
	if p.size+size > queueRoom && (r.Kind == "exec" || !r.Own && r.Left > 0) {
		if r.Kind == "exec" {
			r.of.starts++
		} else {
			r.of.ends++
		}
		p.losing[r.of] = true
		return
	}
	p.queue, p.size = append(p.queue, r), p.size+size
}

// rouse wakes the writer.
func (p *processes) rouse() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (r *report) size() int {
	n := 200 + len(r.Path)
	for _, w := range r.Argv {
		n += 16 + len(w)
	}
	return n
}

// next takes the report that is to be written next. What was lost comes before a report that may
// be the last of a command, and when no other waits.
func (p *processes) next() (r report, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		for c := range p.losing {
			return p.lost(c), true
		}
		p.queue = nil
		return r, false
	}
	r = p.queue[0]
	if (r.Own || r.Left == 0 && r.Kind == "end") && p.losing[r.of] {
		return p.lost(r.of), true
	}
	p.queue[0] = report{}
	p.queue, p.size = p.queue[1:], p.size-r.size()
	return r, true
}

func (p *processes) lost(c *command) report {
	r := report{Kind: "lost", Command: c.number, Starts: c.starts, Ends: c.ends}
	c.starts, c.ends = 0, 0
	delete(p.losing, c)
	return r
}

// write writes what is queued, until the reader is gone.
func (p *processes) write() {
	for {
		r, ok := p.next()
		if !ok {
			<-p.wake
			continue
		}
		b, err := json.Marshal(r)
		if err != nil { // impossible
			continue
		}
		for kind := "part "; len(b) > 0; {
			n := min(len(b), lineRoom)
			if n == len(b) {
				kind = "proc "
			}
			if !p.line(append(append([]byte(kind), b[:n]...), '\n')) {
				p.mu.Lock()
				p.gone, p.queue, p.known, p.losing = true, nil, nil, nil
				p.mu.Unlock()
				return
			}
			b = b[n:]
		}
	}
}

// line waits until there is room for a line, and writes it. It reports whether there is a reader.
func (p *processes) line(b []byte) bool {
	for pause := roomPause; ; pause = min(2*pause, roomMost) {
		if n, err := unix.IoctlGetInt(p.fd, linux.FIONREAD); err != nil || n <= pipeRoom {
			switch _, err := unix.Write(p.fd, b); err {
			case nil:
				return true
			case unix.EAGAIN, unix.EINTR:
			default:
				return false
			}
		}
		time.Sleep(pause)
	}
}
