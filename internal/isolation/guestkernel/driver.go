// Package guestkernel is the keeper's half of cells that have a kernel of their own. Such a cell is
// one of package isolation with a kernel for its commands on its stage. Inside that kernel pando-guest
// starts the commands (package guest). The backend provides the kernel (Kernel): gVisor's in
// user space, or Linux in a virtual machine. Everything here is the same for all of them.
//
//	server.Server ── Driver.Create ── isolation.Driver.Create, Stage; Kernel.Boot, greeting of the guest
//	              ── Driver.Start ─── guest.Client.Start
//	              ── Driver.Freeze ── guest.Client.Hold; Kernel.Pause
//	              ── Driver.Capture ─ Kernel.Capture
package guestkernel

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/guest"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/keeper/server"
)

// A Kernel runs the commands of one cell, on the cell's stage. After a failure it is booted
// again: the cell's files still exist.
type Kernel interface {
	// Boot starts the kernel. conn is the guest's end of the connection with the keeper. The
	// caller closes it, and the files of image, which Capture filled. With an image its
	// processes resume. failed receives one value: the reason why the kernel does not start, or
	// nil.
	Boot(st *isolation.Stage, conn *os.File, image []*os.File) (failed <-chan error, err error)
	// Said returns the kernel's output before it failed, for an error.
	Said() string
	// Pause stops everything in the kernel, and Resume ends that.
	Pause() error
	Resume() error
	// Rest makes the kernel use no processor, and Wake ends that. Capture is not called
	// meanwhile.
	Rest() error
	Wake() error
	// Capture writes the paused kernel's state into the files of an image. It fails with
	// unix.ENOSPC if there is no room.
	Capture(files []*os.File) (Captured, error)
	// Prepare starts to write into the same files while the kernel runs; it may do nothing.
	// With own the files may contain only the difference to base, which Prepare then returns.
	Prepare(files []*os.File, own bool) (base *os.File, err error)
	// Refresh announces changes of the files from outside: of paths, or of any file.
	Refresh(paths ...string) error
	// Programs returns the PIDs of its processes on the host. It is nil if their memory cannot
	// be attributed.
	Programs() []int
	// Close frees the kernel's resources in the keeper. Its processes end with the cell.
	Close()
}

// Captured is the result of Kernel.Capture.
type Captured struct {
	Like  json.RawMessage // for the kernel of a copy
	Taken string          // how the memory was captured, in words; "" if there is only one way
}

// A Watcher is a Kernel that observes which processes commands start.
type Watcher interface {
	// Watch tells starts of the processes of the command with a number, from its start on. settle is
	// called when the command has ended, and returns when what has happened up to then was told; or, with false,
	// when it did not start. Nothing is told afterwards.
	Watch(number int64, starts *server.Starts) (settle func(started bool))
}

// Made is the input to make a cell's kernel.
type Made struct {
	ID    cell.ID
	Spec  cell.Spec
	Talks bool            // the cell gets an interface
	Files []*os.File      // opened by the backend's Above.Open, without the image; the kernel owns them
	More  json.RawMessage // further data of Above.Open
	Like  json.RawMessage // in a copy: Captured.Like of its source
}

// Kind is a backend's kind of kernel.
type Kind struct {
	Name  string // backend name
	Title string // product name, such as "gVisor"
	// Files is the number of files for a kernel. Those after them belong to an image.
	Files int
	// Images is the number of files of an image.
	Images int
	// Patience is the time limit for a guest to answer after its kernel starts; 0 is bootGrace.
	// Again is the number of retries with another kernel, each with twice the limit.
	Patience time.Duration
	Again    int
	// Introduced says that a guest must be told its identity and the time.
	Introduced bool
	// Rehearses says that code runs faster after its first execution.
	Rehearses bool
	// New makes the kernel of a cell, which Boot starts, and returns the content of its stage.
	// It closes its input when it fails.
	New func(m Made) (k Kernel, on isolation.Scene, err error)
}

// Driver is the driver of package isolation with a kernel in each cell.
type Driver struct {
	kind  Kind
	cells *isolation.Driver

	mu     sync.Mutex // guards staged
	staged map[cell.ID]*sandbox
}

// New prepares what all cells of a keeper share.
func New(kind Kind) (*Driver, error) {
	d, err := isolation.NewDriver(nil)
	if err != nil {
		return nil, err
	}
	return &Driver{kind: kind, cells: d, staged: map[cell.ID]*sandbox{}}, nil
}

func (d *Driver) sandbox(id cell.ID) (*sandbox, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.staged[id]; s != nil {
		return s, nil
	}
	return nil, cell.Errorf(cell.NotFound, d.kind.Name, "", "no cell %s in this keeper", id)
}

// Kernel returns the kernel of a cell, or nil if there is no such cell.
func (d *Driver) Kernel(id cell.ID) Kernel {
	if s, err := d.sandbox(id); err == nil {
		return s.kernel
	}
	return nil
}

// Guest returns the guest of a cell's kernel, or nil if there is none.
func (d *Driver) Guest(id cell.ID) *guest.Client {
	if s, err := d.sandbox(id); err == nil {
		return s.guest()
	}
	return nil
}

// Create implements server.Driver.
func (d *Driver) Create(id cell.ID, spec json.RawMessage, files []*os.File) (measured json.RawMessage, err error) {
	var in isolation.Inner
	var more More
	var like known
	err = json.Unmarshal(spec, &in)
	if err == nil {
		err = json.Unmarshal(in.More, &more)
	}
	if err == nil && len(more.Image) > 0 {
		err = json.Unmarshal(more.Image, &like)
	}
	if err != nil || in.Files < d.kind.Files || len(files) < in.Files || (len(like.Token) > 0) != (in.Files > d.kind.Files) {
		isolation.CloseFiles(files)
		return nil, cell.Errorf(cell.Invalid, d.kind.Name+".Create", "", "cannot read what to make: %w", err)
	}
	s := &sandbox{kind: &d.kind, id: id, spec: in.Spec, named: in.Spec.Hostname, counted: func() (cell.Stats, error) { return d.cells.Counted(id) }}
	image := files[d.kind.Files:in.Files] // the memory image from which the cell continues
	defer isolation.CloseFiles(image)
	kernel, scene, err := d.kind.New(Made{id, in.Spec, in.Talks, files[:d.kind.Files], more.Kernel, like.Kernel})
	if err != nil {
		isolation.CloseFiles(files[in.Files:])
		return nil, err
	}
	s.kernel = kernel
	if measured, err = d.cells.Create(id, in.Wire, files[in.Files:]); err != nil {
		s.close()
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.cells.Remove(id))
			s.close()
		}
	}()
	if s.stage, err = d.cells.Stage(id, scene); err != nil {
		return nil, err
	}
	if err := s.begin(image, like); err != nil {
		return nil, err
	}
	if st, err := s.counted(); err == nil {
		s.booted = st.CPU
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.staged[id] = s
	return measured, nil
}

// Start implements server.Driver.
func (d *Driver) Start(id cell.ID, p cell.Process, stdio [3]*os.File, begins func()) (server.Started, error) {
	return d.StartWatched(id, p, stdio, begins, nil)
}

// StartWatched implements server.StartWatcher. Where the kernel is no Watcher, it says so.
func (d *Driver) StartWatched(id cell.ID, p cell.Process, stdio [3]*os.File, begins func(), starts *server.Starts) (server.Started, error) {
	s, err := d.sandbox(id)
	if err != nil {
		return server.Started{}, err
	}
	if _, ok := s.kernel.(Watcher); !ok && starts != nil {
		starts.Unseen("starts and ends of processes", "the backend "+d.kind.Name+" does not observe them")
		starts = nil
	}
	proc, err := s.start(p, nil, stdio, nil, begins, starts)
	if err != nil {
		return server.Started{}, err
	}
	return server.Started{Process: proc, Terminal: proc.Terminal(), Measured: proc.Measured()}, nil
}

// StartInterpreter implements server.Interpreting.
func (d *Driver) StartInterpreter(id cell.ID, p cell.Process, i *server.Interpreter, stdio [3]*os.File, control *os.File) error {
	s, err := d.sandbox(id)
	if err != nil {
		return err
	}
	input, err := contents(stdio[0])
	if err != nil {
		return err
	}
	if input != nil {
		stdio[0] = nil
	}
	proc, err := s.start(p, input, stdio, control, nil, nil)
	if err != nil {
		return err
	}
	i.Process, i.Layer = proc, s.spec.Layer
	return nil
}

// start starts a process through the guest. If the kernel is lost, or can no longer read the
// cell's files because its file server ended, another kernel is booted first.
func (s *sandbox) start(what cell.Process, input []byte, stdio [3]*os.File, control *os.File, begins func(), starts *server.Starts) (*process, error) {
	g, err := s.revive()
	if err != nil {
		return nil, err
	}
	p, err := s.startIn(g, what, input, stdio, control, begins, starts)
	if err == nil || !blind(g, err) {
		return p, err
	}
	g.Close() // which ends the kernel
	if g, err = s.revive(); err != nil {
		return nil, err
	}
	return s.startIn(g, what, input, stdio, control, begins, starts)
}

// blind reports whether a process did not start because the kernel cannot read any file, not
// even the guest's program.
func blind(g *guest.Client, err error) bool {
	if !errors.Is(err, unix.EIO) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), blindGrace)
	defer cancel()
	err = g.ReadFiles(ctx, GuestPath, io.Discard)
	return err != nil
}

// blindGrace is the time limit for reading the guest's program.
const blindGrace = 5 * time.Second

// startIn starts a process through one guest. begins, unless nil, is called before the first
// instruction of the process. starts, unless nil, is told of its processes.
func (s *sandbox) startIn(g *guest.Client, what cell.Process, input []byte, stdio [3]*os.File, control *os.File, begins func(), starts *server.Starts) (*process, error) {
	u := s.spec.User
	caps := uint64(0)
	if u.UID == 0 {
		caps = confine.CapsIn(s.spec.WritesOutside(), confine.RootCaps)
	}
	at := s.stage.Place()
	proof, err := s.stage.Announce()
	if err != nil {
		return nil, err
	}
	defer proof.End()
	pass := func() error {
		err := proof.Complete()
		if err == nil && begins != nil {
			begins()
		}
		return err
	}
	before, _ := s.counted()
	number := s.procs.Add(1)
	settle := func(bool) {}
	if w, ok := s.kernel.(Watcher); ok && starts != nil {
		settle = w.Watch(number, starts)
	}
	ended := make(chan struct{})
	go s.attend(g, ended)
	p, err := g.Start(context.Background(), guest.Command{
		ID: strconv.FormatInt(number, 10), Process: what, Input: input, UID: u.UID, GID: u.GID, Caps: caps, NoSetID: s.spec.WritesOutside(),
		Limits: confine.Limits{OpenFiles: openFiles, FileSize: s.spec.MaxFile(control != nil), Processes: s.spec.Limits.PIDs}, Place: &at, Attempts: proof.Attempts, Skipped: proof.Skipped, Gate: pass, Gated: begins != nil,
	}, stdio, control)
	over := sync.OnceFunc(func() { close(ended) })
	if err != nil || control != nil { // an interpreter's evaluations have their own time limits
		over()
	}
	if err != nil && s.deaf.Load() {
		err = cell.Errorf(cell.Unavailable, s.kind.Name+".Start", "try again: another one is started", "cannot start it: %s does not answer", s.kind.Title)
	}
	if err != nil {
		settle(false)
		return nil, err
	}
	return &process{p, s, before, over, settle}, nil
}

// process is a process inside the kernel. It has no PID on the host.
type process struct {
	*guest.Process
	s      *sandbox
	before cell.Stats
	over   func() // ends the polling of the guest
	settle func(started bool)
}

// Settle implements server.Settler.
func (p *process) Settle() { p.settle(true) }

// Wait implements server.Process.
func (p *process) Wait(ended func()) (cell.Exit, cell.Usage) {
	exit, usage := p.Process.Wait(ended)
	p.over()
	if exit.Cause == guest.CauseLost { // its kernel failed, hung, or was killed for the cell's memory
		exit = cell.Exit{Code: 128 + int(unix.SIGKILL), Signal: "SIGKILL", Cause: p.s.kind.Title + " ended"}
		if p.s.deaf.Load() {
			exit.Cause = p.s.kind.Title + " did not answer any more"
		}
	}
	if after, err := p.s.counted(); err == nil {
		usage = bounded(usage, p.before, after)
	}
	return exit, usage
}

// bounded limits a process's CPU usage to that of the cell on the host. The kernel's clock also
// counts while the host delays a thread.
func bounded(u cell.Usage, before, after cell.Stats) cell.Usage {
	all, most := u.UserMS+u.SystemMS, (after.CPU-before.CPU)/1000
	if !slices.Contains(after.Measured, "cpu_us") || all <= most {
		return u
	}
	u.UserMS = u.UserMS * most / all
	u.SystemMS = most - u.UserMS
	return u
}

// Signal implements server.Process.
func (p *process) Signal(name string) error {
	err := p.Process.Signal(name)
	if k := cell.KindOf(err); k == cell.NotFound || k == cell.Unavailable { // it has ended
		return nil
	}
	return err
}

// EndRest implements server.Process.
func (p *process) EndRest() (int, error) {
	n, err := p.Process.EndRest()
	if cell.KindOf(err) == cell.Unavailable { // all have ended
		return 0, nil
	}
	return n, err
}

// PID implements server.Process.
func (p *process) PID() int { return 0 }

// Programs implements server.Guest.
func (p *process) Programs() []int { return p.s.kernel.Programs() }

// openFiles is the limit of open files of a process, applied by the kernel.
const openFiles = 65536

// contents returns the contents of a regular file, or nil for another file.
func contents(f *os.File) ([]byte, error) {
	if f == nil {
		return nil, nil
	}
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return nil, err
	}
	b := make([]byte, st.Size())
	_, err = f.ReadAt(b, 0)
	return b, err
}

// List implements server.Driver. The kernel lists the processes.
func (d *Driver) List(id cell.ID) ([]cell.ProcessInfo, error) {
	s, err := d.sandbox(id)
	if err != nil {
		return nil, err
	}
	for until := time.Now().Add(listGrace); ; time.Sleep(glance) {
		s.freezing.Lock()
		if !s.frozen || !s.brief || time.Now().After(until) {
			break
		}
		s.freezing.Unlock() // for an instant
	}
	defer s.freezing.Unlock()
	g := s.guest()
	switch {
	case s.frozen: // and the guest too
		return s.still, nil
	case g == nil, s.resting:
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), listGrace)
	defer cancel()
	return g.List(ctx)
}

// briefly is the maximum time between Prepare and its capture. A later freeze has another
// reason.
const briefly = 10 * time.Second

// glance is a poll interval.
const glance = time.Millisecond

// listGrace is the time limit for a guest to list processes. One hung cell must not delay a
// list of all cells.
const listGrace = 5 * time.Second

// KillAll implements server.Driver.
func (d *Driver) KillAll(id cell.ID) (int, error) {
	s, err := d.sandbox(id)
	if err != nil {
		return 0, err
	}
	if err := d.Thaw(id); err != nil { // a frozen guest does not answer
		return 0, err
	}
	if err := s.wake(); err != nil {
		return 0, err
	}
	g := s.guest()
	if g == nil {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), killGrace)
	defer cancel()
	n, err := g.KillAll(ctx)
	if err != nil && ctx.Err() != nil { // it hangs and counts as lost; the next command boots another kernel
		g.Close()
		return n, nil
	}
	return n, err
}

// killGrace is the time limit for a guest to kill all processes, before its kernel counts as
// lost.
const killGrace = 10 * time.Second

// syncGrace is the time limit for a guest to write its commands' data, before a freeze fails. A disk may
// be busy.
const syncGrace = 5 * time.Minute

// Sync implements server.Syncer.
func (d *Driver) Sync(id cell.ID) error {
	s, err := d.sandbox(id)
	if err != nil {
		return err
	}
	g := s.guest()
	if g == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), holdGrace)
	defer cancel()
	return g.Sync(ctx)
}

// Refresh implements server.Refresher. A kernel that stands still looks when it goes on.
func (d *Driver) Refresh(id cell.ID) error {
	s, err := d.sandbox(id)
	if err != nil {
		return err
	}
	if _, still := s.stops(); still || s.guest() == nil {
		return nil
	}
	return s.kernel.Refresh()
}

// Freeze implements server.Driver. It first writes the commands' data to the cell's files.
func (d *Driver) Freeze(id cell.ID) error {
	s, err := d.sandbox(id)
	if err != nil {
		return err
	}
	s.freezing.Lock()
	defer s.freezing.Unlock()
	if s.frozen {
		return nil
	}
	s.still = nil
	s.brief = time.Since(s.prepared) < briefly
	s.prepared = time.Time{}
	if g := s.guest(); g != nil {
		written, cancel := context.WithTimeout(context.Background(), syncGrace)
		err := g.Sync(written)
		if cancel(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), holdGrace)
		defer cancel()
		if !s.brief { // otherwise it is over before List is called
			if s.still, err = g.List(ctx); err != nil {
				return err
			}
		}
		if err := s.stop(g); err != nil {
			return err
		}
	}
	s.frozen = true
	s.froze++
	return nil
}

// Thaw implements server.Driver.
func (d *Driver) Thaw(id cell.ID) error {
	s, err := d.sandbox(id)
	if err != nil {
		return err
	}
	s.freezing.Lock()
	defer s.freezing.Unlock()
	if !s.frozen {
		return nil
	}
	s.frozen = false
	if g := s.guest(); g != nil {
		return s.goOn(g)
	}
	return nil
}

// Root implements server.Driver.
func (d *Driver) Root(id cell.ID) (*os.File, error) { return d.cells.Root(id) }

// Mapped implements server.Mapper: a kernel that maps a file for its cell does so on the host.
func (d *Driver) Mapped(id cell.ID) ([]cell.MappedFile, error) { return d.cells.Mapped(id) }

// Stats implements server.Driver. It includes the kernel.
func (d *Driver) Stats(id cell.ID) (cell.Stats, error) {
	list, err := d.List(id)
	if err != nil {
		return cell.Stats{}, err
	}
	st, err := d.cells.Stats(id)
	st.Processes = len(list)
	return st, err
}

// Counted implements server.Counter. It excludes the boot of the kernel.
func (d *Driver) Counted(id cell.ID) (cell.Stats, error) {
	st, err := d.cells.Counted(id)
	if s, serr := d.sandbox(id); serr == nil {
		st.CPU -= min(st.CPU, s.booted)
	}
	return st, err
}

// Killed implements server.Counter.
func (d *Driver) Killed(id cell.ID) int64 { return d.cells.Killed(id) }

// Held implements server.Counter.
func (d *Driver) Held(id cell.ID) int64 { return d.cells.Held(id) }

// Link implements server.Linker.
func (d *Driver) Link(id cell.ID) (cell.NetworkLink, *os.File, error) { return d.cells.Link(id) }

// Witness implements server.Linker.
func (d *Driver) Witness(id cell.ID, n server.Network) { d.cells.Witness(id, n) }

// Remove implements server.Driver.
func (d *Driver) Remove(id cell.ID) error {
	d.mu.Lock()
	s := d.staged[id]
	delete(d.staged, id)
	d.mu.Unlock()
	err := d.cells.Remove(id)
	if s != nil {
		s.close()
	}
	return err
}
