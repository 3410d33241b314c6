package engine

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"math"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/backend/mem"
	"github.com/pando-dev/pando/internal/cell"
)

// toyHost adds interpreters of a toy language to the fake's cells. They live as
// long as the test, whatever daemon looks at them.
type toyHost struct {
	host     *mem.Host
	creating func(context.Context) error // goes before each creation of a cell; nil: nothing does
	started  func(run cell.RunID)        // follows each start of a command, before its caller knows; nil: nothing does

	mu      sync.Mutex // guards what follows
	cells   map[cell.ID]*toy
	specs   map[cell.ID]cell.Spec // of those without an interpreter
	lost    map[cell.ID]bool      // their keepers are gone
	died    []cell.Death
	wake    chan struct{}
	refuse  map[string]error // what fails, by act
	refused map[string]int   // how often that was asked for and failed
	changed chan struct{}    // closed when that changes
	forked  int              // how many forks were ever made
	slow    chan struct{}    // forks wait for it, if it is there
	held    map[string]*hold // acts that wait until the daemon that asks is dead
	ending  func()           // called when all in a cell is about to be ended, if it is there
	stops   func()           // called when a cell is about to be frozen, if it is there
	goes    func()           // called when a cell was thawed, if it is there
}

func newToyHost(h *mem.Host) *toyHost {
	return &toyHost{host: h, cells: map[cell.ID]*toy{}, specs: map[cell.ID]cell.Spec{}, lost: map[cell.ID]bool{}, held: map[string]*hold{}, refuse: map[string]error{}, refused: map[string]int{}, changed: make(chan struct{}), wake: make(chan struct{})}
}

// made is how many forks were ever made.
func (h *toyHost) made() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.forked
}

// toy is an interpreter. A line of its language is one of
//
//	x = EXPR    EXPR    print TEXT    write FILE TEXT    read FILE
//	sleep       die CAUSE             raise TEXT         pid
//
// and an expression is a number, a variable, or A + B.
type toy struct {
	h       *toyHost
	spec    cell.Spec
	vars    map[string]string
	warmth  cell.Warmth
	adopted bool
	env     map[string]string

	one sync.Mutex // one evaluation at a time
}

func (h *toyHost) fails(act string) error {
	h.mu.Lock()
	x, err := h.held[act], h.refuse[act]
	if err != nil {
		h.refused[act]++
	}
	h.mu.Unlock()
	if x != nil {
		x.reached()
		<-x.over
		if !x.works {
			err = errors.New("the daemon that asked is dead")
		}
	}
	return err
}

// hold is an act that waits, or in which a daemon dies.
type hold struct {
	begun   chan struct{} // closed when it is asked for
	reached func()
	over    chan struct{} // closed when it may go on, and fails
	works   bool          // it does not fail
}

// hold has an act wait until the daemon is dead: see bed.die.
func (h *toyHost) hold(act string) *hold {
	x := &hold{begun: make(chan struct{}), over: make(chan struct{})}
	x.reached = sync.OnceFunc(func() { close(x.begun) })
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held[act] = x
	return x
}

func (h *toyHost) timesRefused(act string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refused[act]
}

func (h *toyHost) fail(act string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse[act] = err
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *toyHost) toy(id cell.ID) *toy {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cells[id]
}

func (t *toy) busy() bool {
	if t.one.TryLock() {
		t.one.Unlock()
		return false
	}
	return true
}

// kill ends an interpreter from outside.
func (h *toyHost) kill(id cell.ID, cause string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cells[id] == nil {
		return
	}
	delete(h.cells, id)
	h.died = append(h.died, cell.Death{Cell: id, Cause: cause})
	close(h.wake)
	h.wake = make(chan struct{})
}

// lose ends all interpreters with their keepers; nothing is told of it.
func (h *toyHost) lose() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.cells {
		h.lost[id] = true
	}
	clear(h.cells)
}

type toyBackend struct {
	backend.Backend
	h *toyHost
}

func (b *toyBackend) Probe(ctx context.Context) (backend.Caps, error) {
	c, err := b.Backend.Probe(ctx)
	c.Eval, c.Fork, c.LiveBranch = "", "", ""
	return c, err
}

func (b *toyBackend) Living(ctx context.Context) ([]cell.Held, error) {
	list, err := b.Backend.Living(ctx)
	for i, l := range list {
		if t := b.h.toy(l.ID); t != nil {
			list[i].Family = t.spec.Family
		}
	}
	return list, err
}

func (b *toyBackend) Create(ctx context.Context, spec cell.Spec) (backend.Instance, error) {
	if f := b.h.creating; f != nil {
		if err := f(ctx); err != nil {
			return nil, err
		}
	}
	i, err := b.Backend.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	b.h.mu.Lock()
	defer b.h.mu.Unlock()
	b.h.specs[spec.ID] = spec
	return &toyInstance{Instance: i, h: b.h, b: b, spec: spec}, nil
}

func (b *toyBackend) Attach(ctx context.Context, id, family cell.ID) (backend.Instance, error) {
	if err := b.h.fails("attach"); err != nil {
		return nil, err
	}
	i, err := b.Backend.Attach(ctx, id, "")
	if err != nil {
		return nil, err
	}
	b.h.mu.Lock()
	t := &toyInstance{Instance: i, h: b.h, b: b, spec: b.h.specs[id]}
	b.h.mu.Unlock()
	if it := b.h.toy(id); it != nil {
		if it.spec.Family != family {
			i.Close()
			return nil, cell.Errorf(cell.NotFound, "toy.Attach", "", "cell %s is not in family %s", id, family)
		}
		t.spec = it.spec
	}
	return t, nil
}

type toyInstance struct {
	backend.Instance
	h    *toyHost
	b    *toyBackend
	spec cell.Spec
}

func (i *toyInstance) toy() (*toy, error) {
	if t := i.h.toy(i.ID()); t != nil {
		return t, nil
	}
	return nil, cell.Errorf(cell.NotFound, "toy", "", "cell %s has no interpreter", i.ID())
}

func (i *toyInstance) Alive(ctx context.Context) bool {
	i.h.mu.Lock()
	defer i.h.mu.Unlock()
	return !i.h.lost[i.ID()] && i.Instance.Alive(ctx)
}

func (i *toyInstance) Remove(ctx context.Context, cause string) error {
	if err := i.h.fails("remove"); err != nil {
		return err
	}
	i.h.mu.Lock()
	delete(i.h.cells, i.ID())
	i.h.mu.Unlock()
	return i.Instance.Remove(ctx, cause)
}

func (i *toyInstance) KillAll(ctx context.Context, cause string) (int, error) {
	i.h.mu.Lock()
	delete(i.h.cells, i.ID())
	ending := i.h.ending
	i.h.mu.Unlock()
	if ending != nil {
		ending()
	}
	return i.Instance.KillAll(ctx, cause)
}

// List counts the interpreter among the processes.
func (i *toyInstance) List(ctx context.Context) ([]cell.ProcessInfo, error) {
	if err := i.h.fails("list"); err != nil {
		return nil, err
	}
	list, err := i.Instance.List(ctx)
	if err == nil && i.h.toy(i.ID()) != nil {
		list = append(list, cell.ProcessInfo{PID: 1, Command: "toy"})
	}
	return list, err
}

func (i *toyInstance) Names(ctx context.Context) ([]string, error) {
	if err := i.h.fails("names"); err != nil {
		return nil, err
	}
	return i.Instance.Names(ctx)
}

func (i *toyInstance) Freeze(ctx context.Context) error {
	i.h.mu.Lock()
	stops := i.h.stops
	i.h.mu.Unlock()
	if stops != nil {
		stops()
	}
	return i.Instance.Freeze(ctx)
}

func (i *toyInstance) Thaw(ctx context.Context) error {
	if err := i.h.fails("thaw"); err != nil {
		return err
	}
	i.h.mu.Lock()
	goes := i.h.goes
	i.h.mu.Unlock()
	err := i.Instance.Thaw(ctx)
	if goes != nil {
		goes()
	}
	return err
}

func (i *toyInstance) Process(ctx context.Context, name string) (backend.Process, error) {
	if err := i.h.fails("process"); err != nil {
		return nil, err
	}
	p, err := i.Instance.Process(ctx, name)
	return &toyProcess{p, i.h}, err
}

func (i *toyInstance) Start(ctx context.Context, name string, s cell.Start, logs [3]*os.File) (backend.Process, error) {
	p, err := i.Instance.Start(ctx, name, s, logs)
	if f := i.h.started; f != nil {
		f(s.Run)
	}
	return &toyProcess{p, i.h}, err
}

// real is where a path of the cell is on the host.
func (i *toyInstance) real(p string) string {
	for _, m := range slices.Backward(i.spec.Mounts) {
		if rest, below := strings.CutPrefix(p+"/", m.Target+"/"); below && m.Kind == cell.Bind && m.Owned {
			return filepath.Join(m.Source, rest)
		}
	}
	panic(p + " is no path of a cell's own")
}

// WriteFiles takes files, folders and nothing else.
func (i *toyInstance) WriteFiles(ctx context.Context, path string, u cell.User, in io.Reader) error {
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		at := filepath.Join(i.real(path), h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(at, 0o755)
		} else {
			var b []byte
			if b, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(at, b, 0o644)
			}
		}
		if err != nil {
			return err
		}
	}
}

// Manage removes, and nothing else.
func (i *toyInstance) Manage(ctx context.Context, a cell.FileAct, in io.Reader, out io.Writer) error {
	if a.Act != cell.FileRemove {
		return i.Instance.Manage(ctx, a, in, out)
	}
	return os.RemoveAll(i.real(a.Path))
}

// toyProcess is a process of the fake's, of which the keeper may not answer questions.
type toyProcess struct {
	backend.Process
	h *toyHost
}

func (p *toyProcess) Status(ctx context.Context) (cell.Status, error) {
	if err := p.h.fails("status"); err != nil {
		return cell.Status{}, err
	}
	return p.Process.Status(ctx)
}

// Wait fails while it is to fail, also in the middle.
func (p *toyProcess) Wait(ctx context.Context) (cell.Status, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		for {
			p.h.mu.Lock()
			err, changed := p.h.refuse["wait"], p.h.changed
			p.h.mu.Unlock()
			if err != nil {
				p.h.fails("wait")
				cancel(err)
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return p.Process.Wait(ctx)
}

func (p *toyProcess) InnerPID() int {
	return p.Process.(interface{ InnerPID() int }).InnerPID()
}

func (i *toyInstance) Warm(ctx context.Context, w cell.Warm, out func(cell.Output)) (cell.Warmth, error) {
	if i.h.toy(i.ID()) != nil {
		return cell.Warmth{}, cell.Errorf(cell.Exists, "toy.Warm", "", "cell %s has an interpreter", i.ID())
	}
	if err := i.h.fails("warm"); err != nil {
		return cell.Warmth{}, err
	}
	t := &toy{h: i.h, spec: i.spec, vars: map[string]string{}, adopted: true, env: map[string]string{}, warmth: cell.Warmth{Kind: w.Kind, Version: "Toy 1", PID: 1, Started: time.Now().UTC(), Layer: i.spec.Layer}}
	for _, kv := range w.Process.Env {
		k, v, _ := strings.Cut(kv, "=")
		t.env[k] = v
	}
	if ev := t.run(ctx, w.Setup, w.Timeout, out); ev.Error != nil {
		return cell.Warmth{}, cell.Errorf(cell.Invalid, "toy.Warm", "", "cannot warm: %s", ev.Error.Traceback)
	}
	if w.Ready != "" { // nothing in a toy changes by itself: what is not ready now never is
		if ev := t.run(ctx, w.Ready, w.Timeout, out); ev.Value == nil || ev.Value.Repr == "0" {
			return cell.Warmth{}, cell.Errorf(cell.Timeout, "toy.Warm", "", "cannot warm: it was not ready in time")
		}
	}
	i.h.mu.Lock()
	i.h.cells[i.ID()] = t
	i.h.mu.Unlock()
	return t.warmth, nil
}

func (i *toyInstance) Warmth(ctx context.Context) (cell.Warmth, error) {
	t, err := i.toy()
	if err == nil {
		err = i.h.fails("warmth")
	}
	if err != nil {
		return cell.Warmth{}, err
	}
	i.h.mu.Lock()
	defer i.h.mu.Unlock()
	return t.warmth, nil
}

func (i *toyInstance) Eval(ctx context.Context, ev cell.Eval, out func(cell.Output)) (cell.Evaluated, error) {
	t, err := i.toy()
	if err == nil {
		err = i.h.fails("eval")
	}
	if err != nil {
		return cell.Evaluated{}, err
	}
	if t.warmth.Sealed || !t.adopted {
		return cell.Evaluated{}, cell.Errorf(cell.Conflict, "toy.Eval", "", "cell %s is only forked, or not adopted", i.ID())
	}
	t.one.Lock()
	defer t.one.Unlock()
	done := t.run(ctx, ev.Code, ev.Timeout, out)
	i.h.mu.Lock()
	t.warmth.Evals++
	done.N = t.warmth.Evals
	i.h.mu.Unlock()
	if done.Cause == "ended" {
		i.h.kill(i.ID(), done.Error.Message)
	}
	return done, nil
}

func (i *toyInstance) Dismiss(ctx context.Context) error {
	t, err := i.toy()
	if err != nil {
		return err
	}
	if !t.one.TryLock() {
		return cell.Errorf(cell.Conflict, "toy.Dismiss", "wait for it", "an evaluation is under way")
	}
	defer t.one.Unlock()
	i.h.mu.Lock()
	defer i.h.mu.Unlock()
	delete(i.h.cells, i.ID())
	return nil
}

func (i *toyInstance) Seal(ctx context.Context) (cell.Warmth, error) {
	t, err := i.toy()
	if err != nil {
		return cell.Warmth{}, err
	}
	if err := i.h.fails("seal"); err != nil {
		return cell.Warmth{}, err
	}
	i.h.mu.Lock()
	defer i.h.mu.Unlock()
	t.warmth.Sealed = true
	return t.warmth, nil
}

func (i *toyInstance) Fork(ctx context.Context, spec cell.Spec) (backend.Warmer, error) {
	t, err := i.toy()
	if err != nil {
		return nil, err
	}
	if !t.warmth.Sealed {
		return nil, cell.Errorf(cell.Conflict, "toy.Fork", "", "cell %s is not sealed", i.ID())
	}
	if err := i.h.fails("fork"); err != nil {
		return nil, err
	}
	i.h.mu.Lock()
	slow := i.h.slow
	i.h.forked++
	i.h.mu.Unlock()
	if slow != nil {
		select {
		case <-slow:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return i.copy(ctx, t, spec)
}

func (i *toyInstance) copy(ctx context.Context, t *toy, spec cell.Spec) (*toyInstance, error) {
	inst, err := i.b.Backend.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	i.h.mu.Lock()
	defer i.h.mu.Unlock()
	if i.h.cells[i.ID()] != t { // a keeper that dies takes along what it is about to make
		return nil, errors.Join(cell.Errorf(cell.NotFound, "toy", "", "cell %s has no interpreter any more", i.ID()), inst.Remove(ctx, "undone"))
	}
	next := &toy{h: i.h, spec: spec, vars: maps.Clone(t.vars), env: maps.Clone(t.env), warmth: t.warmth}
	next.warmth.Sealed, next.warmth.Evals, next.warmth.Depth, next.warmth.Layer = false, 0, t.warmth.Depth+1, spec.Layer
	next.warmth.IsCell = true
	next.warmth.Started, next.warmth.Memory = time.Now().UTC(), 1<<20
	i.h.cells[spec.ID] = next
	return &toyInstance{Instance: inst, h: i.h, b: i.b, spec: spec}, nil
}

func (i *toyInstance) Adopt(ctx context.Context, a cell.Adoption) (cell.Certificate, error) {
	t, err := i.toy()
	if err != nil {
		return cell.Certificate{}, err
	}
	if err := i.h.fails("adopt " + a.Hostname); err != nil {
		return cell.Certificate{}, errors.Join(err, i.Remove(ctx, "it could not be adopted"))
	}
	i.h.mu.Lock()
	defer i.h.mu.Unlock()
	t.adopted = true
	for k, v := range a.Env {
		t.env[k] = v
	}
	return cell.Certificate{Cell: i.ID(), At: time.Now().UTC(), Hazards: []cell.Hazard{{Name: "hostname", Seen: "outside", Value: a.Hostname}}}, nil
}

func (i *toyInstance) Branch(ctx context.Context, b cell.Branching) ([]backend.Warmer, cell.Pause, error) {
	t, err := i.toy()
	if err != nil {
		return nil, cell.Pause{}, err
	}
	if err := i.h.fails("branch"); err != nil {
		return nil, cell.Pause{}, err
	}
	t.one.Lock()
	defer t.one.Unlock()
	began := time.Now()
	if b.Paused != nil {
		if err := b.Paused(); err != nil {
			return nil, cell.Pause{}, err
		}
	}
	var out []backend.Warmer
	for n, spec := range b.Cells {
		w, err := i.copy(ctx, t, spec)
		if err == nil && n > 0 {
			if err = i.h.fails("second branch"); err != nil {
				w.Remove(ctx, "undone")
			}
		}
		if err != nil {
			for _, w := range out {
				w.Remove(ctx, "undone")
			}
			return nil, cell.Pause{}, err
		}
		out = append(out, w)
	}
	i.h.mu.Lock()
	t.spec, t.warmth.Layer = b.Self, b.Self.Layer
	t.warmth.Depth++
	i.h.mu.Unlock()
	pause := cell.Pause{Gap: time.Since(began), Dropped: []string{"nothing"}}
	if err := i.h.fails("complete a branch"); err != nil {
		for _, w := range out {
			w.Remove(ctx, "undone")
		}
		return nil, pause, err
	}
	return out, pause, nil
}

func (i *toyInstance) Deaths(ctx context.Context, since int64) ([]cell.Death, int64, error) {
	wait, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for {
		i.h.mu.Lock()
		n, wake := int64(len(i.h.died)), i.h.wake
		list := append([]cell.Death(nil), i.h.died[min(since, n):]...)
		i.h.mu.Unlock()
		if len(list) > 0 {
			return list, n, nil
		}
		select {
		case <-wake:
		case <-wait.Done():
			return nil, n, context.Cause(ctx)
		}
	}
}

func (t *toy) run(ctx context.Context, code string, limit time.Duration, out func(cell.Output)) (done cell.Evaluated) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done.OK = true
	fail := func(kind, text string) cell.Evaluated {
		return cell.Evaluated{Error: &cell.EvalError{Type: kind, Message: text, Traceback: kind + ": " + text}}
	}
	for line := range strings.SplitSeq(code, "\n") {
		line = strings.TrimSpace(line)
		word, rest, _ := strings.Cut(line, " ")
		done.Value = nil
		switch {
		case line == "":
		case word == "print":
			out(cell.Output{Stream: 1, Data: []byte(rest + "\n")})
			done.Stdout += int64(len(rest) + 1)
		case word == "raise":
			return fail("Error", rest)
		case word == "die":
			d := fail("Ended", rest)
			d.Cause = "ended"
			return d
		case word == "sleep":
			<-ctx.Done()
			d := fail("KeyboardInterrupt", "")
			d.Cause = "timeout"
			return d
		case word == "env":
			t.h.mu.Lock()
			v := t.env[rest]
			t.h.mu.Unlock()
			done.Value = &cell.Value{Type: "str", Repr: v, JSON: json.RawMessage(strconv.Quote(v))}
		case word == "write":
			name, text, _ := strings.Cut(rest, " ")
			if err := os.WriteFile(t.file(name), []byte(text), 0o644); err != nil {
				return fail("OSError", err.Error())
			}
		case word == "read":
			b, err := os.ReadFile(t.file(rest))
			if err != nil {
				return fail("OSError", "no "+rest)
			}
			done.Value = &cell.Value{Type: "str", Repr: string(b), JSON: json.RawMessage(strconv.Quote(string(b)))}
		default:
			name, expr, assign := strings.Cut(line, " = ")
			if !assign {
				expr = line
			}
			n, err := t.eval(expr)
			if err != nil {
				return fail("NameError", err.Error())
			}
			if assign {
				t.vars[name] = strconv.Itoa(n)
			} else {
				done.Value = &cell.Value{Type: "int", Repr: strconv.Itoa(n), JSON: json.RawMessage(strconv.Itoa(n))}
			}
		}
	}
	return done
}

func (t *toy) eval(expr string) (sum int, err error) {
	for part := range strings.SplitSeq(expr, " + ") {
		if v, ok := t.vars[part]; ok {
			part = v
		}
		n, err := strconv.Atoi(part)
		if err != nil {
			return 0, fmt.Errorf("no %s", part)
		}
		sum += n
	}
	return sum, nil
}

// file finds a file of the workspace, or of home below "~/", where the cell has
// it on the host.
func (t *toy) file(name string) string {
	role := cell.RoleWorkspace
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		role, name = cell.RoleHome, rest
	}
	for _, m := range t.spec.Mounts {
		if m.Role == role {
			return filepath.Join(orElse(m.Upper, m.Source), name)
		}
	}
	return "/nonexistent"
}

// ForksLeft implements backend.Warmer: toys take no descriptors.
func (i *toyInstance) ForksLeft(context.Context, bool) (int64, error) { return math.MaxInt64, nil }

// Limit implements backend.Warmer.
func (i *toyInstance) Limit(_ context.Context, l cell.Limits) error {
	i.h.mu.Lock()
	defer i.h.mu.Unlock()
	i.h.cells[i.ID()].spec.Limits = l
	return nil
}
