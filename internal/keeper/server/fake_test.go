package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/client"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/reexec"
	"github.com/pando-dev/pando/internal/testenv"
)

// program is a process of a fake cell: a function with streams.
type program func(p *fakeProcess) cell.Exit

// fakeDriver runs programs as goroutines and writes down what it was asked.
type fakeDriver struct {
	programs map[string]program

	mu    sync.Mutex // guards what follows
	cells map[cell.ID][]*fakeProcess
	asked []string
	pids  int

	mayFork chan struct{} // each fork takes one

	tried atomic.Int64 // attempts to reach a network, in all cells: each command's canaries make one
}

type fakeProcess struct {
	pid                  int
	stdin, stdout, stder *os.File
	signals              chan string
	killed               chan struct{}
	once                 sync.Once
	over                 chan struct{} // closed when it has ended
	exit                 cell.Exit
}

func (d *fakeDriver) note(format string, args ...any) {
	d.asked = append(d.asked, fmt.Sprintf(format, args...))
}

func (d *fakeDriver) was(what string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.asked, what)
}

func (d *fakeDriver) Create(id cell.ID, spec json.RawMessage, files []*os.File) (json.RawMessage, error) {
	proto.CloseAll(files)
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, there := d.cells[id]; there {
		return nil, cell.Errorf(cell.Exists, "fake", "", "cell %s exists", id)
	}
	if string(spec) == `"impossible"` {
		return nil, cell.Errorf(cell.Unsupported, "fake", "do something else", "cannot do the impossible")
	}
	d.cells[id] = nil
	return json.RawMessage(`{"files":` + fmt.Sprint(len(files)) + `}`), nil
}

func again(f *os.File) *os.File {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), f.Name())
}

func (d *fakeDriver) Start(id cell.ID, p cell.Process, stdio [3]*os.File, begins func()) (Started, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, there := d.cells[id]; !there {
		return Started{}, cell.Errorf(cell.NotFound, "fake", "", "no cell %s", id)
	}
	f := d.programs[p.Args[0]]
	if f == nil {
		return Started{}, cell.Errorf(cell.NoSuchBinary, "fake", "", "cannot find %s", p.Args[0])
	}
	d.pids++
	k := &fakeProcess{pid: d.pids, stdin: again(stdio[0]), stdout: again(stdio[1]), stder: again(stdio[2]),
		signals: make(chan string, 8), killed: make(chan struct{}), over: make(chan struct{})}
	d.cells[id] = append(d.cells[id], k)
	d.tried.Add(1)
	if begins != nil {
		begins()
	}
	go func() {
		k.exit = f(k)
		proto.CloseAll([]*os.File{k.stdin, k.stdout, k.stder})
		close(k.over)
	}()
	if p.Args[0] == "seek" { // it has ended when the keeper hears that it has begun
		<-k.over
		d.tried.Add(2)
	}
	return Started{Process: k, Measured: json.RawMessage(`"measured"`)}, nil
}

// StartWatched tells the words of the command, as one that started all of them would be told.
func (d *fakeDriver) StartWatched(id cell.ID, p cell.Process, stdio [3]*os.File, begins func(), starts *Starts) (Started, error) {
	started, err := d.Start(id, p, stdio, begins)
	if err == nil && p.Args[0] == "starts" {
		starts.Exec(Exec{PID: 7, Args: p.Args, As: Asked})
		starts.Ended(End{PID: 7, As: NotSeen})
	}
	return started, err
}

func (d *fakeDriver) Tried(cell.ID) int64 { return d.tried.Load() }

func (d *fakeDriver) DeniedPrograms(cell.ID) map[Denied]int64 { return nil }

func (d *fakeDriver) MissingCalls(cell.ID) map[string]int64 { return nil }

func (p *fakeProcess) PID() int { return p.pid }

func (p *fakeProcess) Signal(sig string) error {
	switch sig {
	case "SIGKILL":
		p.once.Do(func() { close(p.killed) })
	case "SIGTERM", "SIGINT":
		select {
		case p.signals <- sig:
		default:
		}
	default:
		return cell.Errorf(cell.Invalid, "fake", "", "%q is no signal", sig)
	}
	return nil
}

func (p *fakeProcess) Wait(ended func()) (cell.Exit, cell.Usage) {
	<-p.over
	ended()
	return p.exit, cell.Usage{UserMS: 7}
}

func (p *fakeProcess) EndRest() (int, error) { return 0, nil }

func (d *fakeDriver) KillAll(id cell.ID) (n int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("kill %s", id)
	for _, p := range d.cells[id] {
		select {
		case <-p.over:
		default:
			n++
			p.Signal("SIGKILL")
		}
	}
	return n, nil
}

func (d *fakeDriver) ask(what string, id cell.ID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, there := d.cells[id]; !there {
		return cell.Errorf(cell.NotFound, "fake", "", "no cell %s", id)
	}
	d.note("%s %s", what, id)
	return nil
}

func (d *fakeDriver) Freeze(id cell.ID) error { return d.ask("freeze", id) }

func (d *fakeDriver) Thaw(id cell.ID) error { return d.ask("thaw", id) }

func (d *fakeDriver) Root(id cell.ID) (*os.File, error) {
	return nil, cell.Errorf(cell.Unsupported, "fake", "", "cannot copy")
}

func (d *fakeDriver) List(id cell.ID) (list []cell.ProcessInfo, err error) {
	if err := d.ask("list", id); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.cells[id] {
		select {
		case <-p.over:
		default:
			list = append(list, cell.ProcessInfo{PID: p.pid})
		}
	}
	return list, nil
}

func (d *fakeDriver) Stats(id cell.ID) (cell.Stats, error) {
	list, err := d.List(id)
	return cell.Stats{Processes: len(list), Measured: []string{"processes"}}, err
}

func (d *fakeDriver) Remove(id cell.ID) error {
	if _, err := d.KillAll(id); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.cells, id)
	return nil
}

// fakeEvents keeps what was emitted.
type fakeEvents struct {
	mu     sync.Mutex // guards what follows
	kinds  []string
	fields []any
	sealed bool
}

func (e *fakeEvents) Emit(kind string, fields any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sealed {
		kind = "late:" + kind
	}
	e.kinds, e.fields = append(e.kinds, kind), append(e.fields, fields)
}

func (e *fakeEvents) Seal() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sealed = true
	return nil
}

func (e *fakeEvents) all() (string, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.kinds, " "), e.sealed
}

// The programs of fake cells.
func programs() map[string]program {
	return map[string]program{
		"true":   func(*fakeProcess) cell.Exit { return cell.Exit{} },
		"starts": func(*fakeProcess) cell.Exit { return cell.Exit{} },
		"seek":   func(*fakeProcess) cell.Exit { return cell.Exit{Code: 6} },
		"seven": func(p *fakeProcess) cell.Exit {
			fmt.Fprintln(p.stdout, "out")
			fmt.Fprintln(p.stder, "err")
			return cell.Exit{Code: 7}
		},
		"sleep": func(p *fakeProcess) cell.Exit { // until it is ended
			select {
			case <-p.signals:
				return cell.Exit{Code: 143, Signal: "SIGTERM"}
			case <-p.killed:
				return cell.Exit{Code: 137, Signal: "SIGKILL"}
			}
		},
		"cat": func(p *fakeProcess) cell.Exit {
			b := make([]byte, 4096)
			for {
				n, err := p.stdin.Read(b)
				p.stdout.Write(b[:n])
				if err != nil {
					return cell.Exit{}
				}
			}
		},
		"late": func(p *fakeProcess) cell.Exit { // reads when it is signalled
			<-p.signals
			n, err := io.Copy(p.stdout, p.stdin)
			return cell.Exit{Code: int(min(n, 1)) - 1, Cause: fmt.Sprint(map[bool]string{true: "", false: "broken"}[err == nil])}
		},
		"flood": func(p *fakeProcess) cell.Exit { // a mebibyte
			for n := range 1024 {
				if _, err := p.stdout.Write(bytes.Repeat([]byte{byte(n)}, 1024)); err != nil {
					return cell.Exit{Code: 1}
				}
			}
			return cell.Exit{}
		},
	}
}

// kit is a keeper with a client.
type kit struct {
	*testing.T
	ctx    context.Context
	dir    string
	s      *Server
	d      *fakeDriver
	c      *client.Client
	served chan error
	events fakeEvents
	nets   fakeNetworks
	log    lines
}

type lines struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

const one = cell.ID("c-0000000000000001")

// newKit starts a keeper that holds one cell.
func newKit(t *testing.T) *kit {
	t.Helper()
	return newKitWith(t, func(d *fakeDriver) Driver { return d })
}

// newKitWith is newKit, with what driver makes of the fake.
func newKitWith(t *testing.T, driver func(*fakeDriver) Driver) *kit {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience())
	t.Cleanup(cancel)
	dir := t.TempDir()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/s", d.Fd())})
	if err != nil {
		t.Fatal(err)
	}
	k := &kit{T: t, ctx: ctx, dir: dir, d: &fakeDriver{programs: programs(), cells: map[cell.ID][]*fakeProcess{}}, served: make(chan error, 1)}
	k.s = &Server{Driver: driver(k.d), Networks: &k.nets, Log: slog.New(slog.NewTextHandler(&k.log, nil)), NewEvents: func(f *os.File, run string) Events { f.Close(); return &k.events }}
	go func() { k.served <- k.s.Serve(l) }()
	k.c = k.dial()
	t.Cleanup(func() {
		client.Ask(context.Background(), k.c, proto.Shutdown, proto.None{})
		select {
		case err := <-k.served:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(testenv.Patience()):
			t.Error("the keeper never ended")
		}
		k.c.Close()
	})
	ok(k, proto.Create, proto.NewCell{Cell: one})
	return k
}

func (k *kit) dial() *client.Client {
	k.Helper()
	c, err := client.Dial(k.ctx, k.dir, "s")
	if err != nil {
		k.Fatal(err)
	}
	return c
}

// raw is a connection that has not said anything.
func (k *kit) raw() *reexec.Conn {
	k.Helper()
	d, err := os.Open(k.dir)
	if err != nil {
		k.Fatal(err)
	}
	defer d.Close()
	uc, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/s", d.Fd())})
	if err != nil {
		k.Fatal(err)
	}
	c := reexec.NewConn(uc)
	k.Cleanup(func() { c.Close() })
	c.Raw().SetDeadline(time.Now().Add(testenv.Patience()))
	return c
}

func ok[Q, A any](k *kit, v proto.Verb[Q, A], q Q, files ...*os.File) A {
	k.Helper()
	a, err := client.Ask(k.ctx, k.c, v, q, files...)
	if err != nil {
		k.Fatalf("%s: %v", v.Name, err)
	}
	return a
}

func fails[Q, A any](k *kit, v proto.Verb[Q, A], q Q, want cell.Kind, files ...*os.File) {
	k.Helper()
	if _, err := client.Ask(k.ctx, k.c, v, q, files...); cell.KindOf(err) != want {
		k.Errorf("%s: %v, want kind %q", v.Name, err, want)
	}
}

// rubbish is a request of a verb that there is not.
func rubbish(op string) (proto.Verb[proto.None, proto.None], proto.None) {
	return proto.Verb[proto.None, proto.None]{Name: op}, proto.None{}
}

// says sends a request, whatever it is, and returns the answer.
func (k *kit) says(c *reexec.Conn, op string, body any, files ...*os.File) (r proto.Response[json.RawMessage]) {
	k.Helper()
	if err := c.Send(map[string]any{"op": op, "body": body}, files...); err != nil {
		k.Fatal(err)
	}
	if _, err := c.Recv(&r); err != nil {
		k.Fatal(err)
	}
	return r
}

// start starts a program as a process of that name.
func (k *kit) start(name, prog string, change ...func(*cell.Start)) {
	k.Helper()
	s := cell.Start{Process: cell.Process{Args: []string{prog}}, LogLimit: 1 << 20}
	for _, c := range change {
		c(&s)
	}
	ok(k, proto.Start, proto.NewProcess{Cell: one, Proc: name, Start: s, NoLogs: []int{0, 1}}, k.null(), k.null(), k.null())
}

func (k *kit) null() *os.File {
	k.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		k.Fatal(err)
	}
	k.Cleanup(func() { f.Close() })
	return f
}

// wait returns how a process ended.
func (k *kit) wait(name string) *cell.Status {
	k.Helper()
	st := ok(k, proto.Wait, proto.OfProcess{Proc: name}).Status
	if st.Running || st.Exit == nil {
		k.Fatalf("%s ended as %+v", name, st)
	}
	return &st
}

// descriptors counts the open ones.
func descriptors() int {
	list, _ := os.ReadDir("/proc/self/fd")
	return len(list)
}

func (k *kit) until(what string, so func() bool) {
	k.Helper()
	for range 1000 {
		if so() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	k.Fatalf("it never came that %s", what)
}

func (k *kit) file(name string, size int) string {
	k.Helper()
	p := filepath.Join(k.dir, name)
	b := bytes.Repeat([]byte("pando"), size/5+1)[:size]
	if err := os.WriteFile(p, b, 0o644); err != nil {
		k.Fatal(err)
	}
	return p
}
