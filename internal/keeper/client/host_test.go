package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/reexec"
	"github.com/pando-dev/pando/internal/testenv"
)

// empty is a driver of cells in which nothing can be started.
type empty struct{}

func (empty) Create(id cell.ID, spec json.RawMessage, files []*os.File) (json.RawMessage, error) {
	return json.RawMessage(`{"measured":true}`), nil
}

func (empty) Start(cell.ID, cell.Process, [3]*os.File, func()) (server.Started, error) {
	return server.Started{}, cell.Errorf(cell.Unsupported, "empty", "", "cannot start anything")
}
func (empty) KillAll(cell.ID) (int, error)             { return 0, nil }
func (empty) Freeze(cell.ID) error                     { return nil }
func (empty) Thaw(cell.ID) error                       { return nil }
func (empty) Root(cell.ID) (*os.File, error)           { return os.Open("/") }
func (empty) List(cell.ID) ([]cell.ProcessInfo, error) { return nil, nil }
func (empty) Stats(cell.ID) (cell.Stats, error)        { return cell.Stats{}, nil }
func (empty) Remove(cell.ID) error                     { return nil }

func TestMain(m *testing.M) {
	if r, ok := reexec.Role(os.Args[0]); ok && r == proto.Role {
		if err := server.Main(map[string]func() (server.Driver, error){"empty": func() (server.Driver, error) { return empty{}, nil }}, nil, nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// newHost is a host that starts this test's own executable as keepers.
func newHost(t *testing.T, dir string) *Host {
	t.Helper()
	h := &Host{Backend: "empty", Dir: dir, Log: slog.New(slog.DiscardHandler), Attr: func() (*syscall.SysProcAttr, error) {
		return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}, nil
	}}
	t.Cleanup(h.Close)
	return h
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for range 1000 {
		if so() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("it never came that %s", what)
}

// assign makes a keeper that has no cell yet.
func assign(t *testing.T, h *Host, id cell.ID) (*Keeper, *Client) {
	t.Helper()
	k, err := h.Take()
	must(t, err)
	t.Cleanup(k.Kill)
	c, err := h.Assign(k, id)
	must(t, err)
	return k, c
}

// keep makes a keeper that has a cell.
func keep(t *testing.T, h *Host, id cell.ID) (*Keeper, *Client) {
	t.Helper()
	k, c := assign(t, h, id)
	_, err := h.Make(t.Context(), c, id, proto.NewCell{Cell: id}, cell.Assurance{Backend: "empty"})
	must(t, err)
	return k, c
}

func files(t *testing.T, h *Host) (names []string) {
	t.Helper()
	list, err := os.ReadDir(h.Dir)
	must(t, err)
	for _, f := range list {
		if f.Name() != "keeper.log" {
			names = append(names, f.Name())
		}
	}
	return names
}

// A keeper that was killed is gone, and no error, while its lock is held a moment longer by a process that it was making.
func TestF25KilledKeeperLetsGoOfItsLock(t *testing.T) {
	h := newHost(t, t.TempDir())
	for _, held := range []time.Duration{0, 50 * time.Millisecond, time.Hour} {
		id := cell.NewID()
		l, err := listen(h.Dir, h.socket(id))
		must(t, err)
		l.SetUnlinkOnClose(false)
		must(t, l.Close()) // the socket is there, and nothing listens
		lock, err := h.lock(id, os.O_CREATE)
		must(t, err)
		c, err := reach(h.Dir, h.socket(id), 0)
		must(t, err)
		defer c.Close()
		i := &Instance{Host: h, Client: c, Cell: id}
		if held < time.Hour {
			time.AfterFunc(held, func() { lock.Close() })
		} else {
			defer lock.Close()
		}
		if alive := i.Alive(t.Context()); alive != (held == time.Hour) {
			t.Errorf("a keeper whose lock is held for %v more is alive: %v", held, alive)
		}
	}
}

// Alive is the keeper's lock, and nothing else: not a file, not a process of
// the name, not another process that tests the lock.
func TestF25LivenessIsTheHeldLock(t *testing.T) {
	h := newHost(t, t.TempDir())
	id := cell.NewID()
	if h.Alive(id) {
		t.Error("a cell that never was is alive")
	}
	must(t, os.WriteFile(h.lockPath(id), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(h.Dir, h.socket(id)), nil, 0o600))
	if h.Alive(id) {
		t.Error("files alone are alive")
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				if h.Alive(id) {
					t.Error("the asking process was taken for a keeper")
					return
				}
			}
		})
	}
	wg.Wait()
	k, c := keep(t, h, id)
	defer c.Close()
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if !h.Alive(id) {
					t.Error("the keeper is not seen")
					return
				}
			}
		})
	}
	wg.Wait()
	_, err := h.lock(id, os.O_CREATE)
	if cell.KindOf(err) != cell.Exists {
		t.Errorf("the lock was taken twice: %v", err)
	}
	k.Kill()
	if h.Alive(id) {
		t.Error("a keeper that was killed is alive")
	}
}

// A test of the lock does not disturb another process that takes it at the same time.
func TestAskingDisturbsNobody(t *testing.T) {
	h := newHost(t, t.TempDir())
	id := cell.NewID()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					h.Alive(id)
				}
			}
		})
	}
	for range 2000 {
		f, err := h.lock(id, os.O_CREATE)
		if err != nil {
			t.Errorf("the lock is free, and it can't be taken: %v", err)
			break
		}
		f.Close()
	}
	close(stop)
	wg.Wait()
}

// A lock on a removed file proves nothing about the next of its name.
func TestLockIsTheFileOfItsName(t *testing.T) {
	h := newHost(t, t.TempDir())
	id := cell.NewID()
	// Many make and remove it at once: at no time do two have it.
	var wg sync.WaitGroup
	var mu sync.Mutex
	holders := 0
	for range 8 {
		wg.Go(func() {
			for range 200 {
				f, err := h.lock(id, os.O_CREATE)
				if err != nil {
					continue
				}
				mu.Lock()
				holders++
				if holders > 1 {
					t.Errorf("%d have the lock", holders)
				}
				mu.Unlock()
				if !h.Alive(id) {
					t.Error("a held lock is not seen")
				}
				mu.Lock()
				holders--
				mu.Unlock()
				os.Remove(h.lockPath(id))
				f.Close()
			}
		})
	}
	wg.Wait()
}

// What dead keepers left is found and removed; a living one, and one that
// takes the place of a dead one meanwhile, lose nothing.
func TestF26LeftoversOfDeadKeepers(t *testing.T) {
	h := newHost(t, t.TempDir())
	dead, living := cell.NewID(), cell.NewID()
	k, c := keep(t, h, dead)
	c.Close()
	_, c = keep(t, h, living)
	defer c.Close()
	if list, err := h.Living(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("living are %v, %v", list, err)
	}
	k.Kill()
	if list, err := h.Living(t.Context()); err != nil || !slices.Equal(list, []cell.Held{{ID: living}}) {
		t.Errorf("living are %v, %v", list, err)
	}
	before := files(t, h)
	want := []string{"keeper files of " + string(dead)}
	if found, err := h.Leftovers(true); err != nil || !slices.Equal(found, want) || !slices.Equal(files(t, h), before) {
		t.Errorf("a dry run found %v, %v; left are %v of %v", found, err, files(t, h), before)
	}
	if found, err := h.Leftovers(false); err != nil || !slices.Equal(found, want) {
		t.Errorf("found %v, %v", found, err)
	}
	if left := files(t, h); len(left) != 2 || strings.Contains(strings.Join(left, " "), string(dead)) {
		t.Errorf("left are %v", left)
	}
	if found, err := h.Leftovers(false); err != nil || len(found) > 0 {
		t.Errorf("found again: %v, %v", found, err)
	}
	h.Release(living) // a mistaken caller
	if i, err := h.Attach(t.Context(), living, ""); err != nil || i.Known.Backend != "empty" {
		t.Errorf("attach: %v, %v", i, err)
	} else {
		i.Close()
	}
}

// A keeper without a cell, left behind by a daemon that died, is sent away.
func TestF28KeepersWithoutACellAreSentAway(t *testing.T) {
	h := newHost(t, t.TempDir())
	id := cell.NewID()
	k, c := assign(t, h, id)
	c.Close()
	_, err := h.Attach(t.Context(), id, "")
	if cell.KindOf(err) != cell.NotFound {
		t.Errorf("attach: %v", err)
	}
	select {
	case <-k.alive:
	case <-time.After(testenv.Patience()):
		t.Error("its keeper stays")
	}
	if left := files(t, h); len(left) > 0 || h.Alive(id) {
		t.Errorf("left are %v; alive: %v", left, h.Alive(id))
	}
}

// What a keeper measured of a cell is known at once, and to the next daemon.
func TestWhatAKeeperMeasuredIsKnown(t *testing.T) {
	dir := t.TempDir()
	h := newHost(t, dir)
	h.Measure = func(a *cell.Assurance, measured json.RawMessage) error {
		a.Isolation = append(a.Isolation, string(measured))
		return nil
	}
	id := cell.NewID()
	k, c := assign(t, h, id)
	watched, err := OpenDir(dir)
	must(t, err)
	defer watched.Close()
	i, err := h.Make(t.Context(), c, id, proto.NewCell{Cell: id, Spec: []byte(`{}`), Watch: &proto.Watch{Limit: 1 << 30, Dirs: 1}}, cell.Assurance{Backend: "empty", Isolation: []string{"before"}}, watched)
	must(t, err)
	if i.KeeperPID() != k.PID {
		t.Errorf("its keeper is %d, not %d", i.KeeperPID(), k.PID)
	}
	next := newHost(t, dir)
	next.Measure = h.Measure
	again, err := next.Attach(t.Context(), id, "")
	must(t, err)
	defer again.Close()
	want := []string{"before", `{"measured":true}`}
	if !slices.Equal(i.Known.Isolation, want) || !slices.Equal(again.Known.Isolation, want) || again.KeeperPID() != k.PID {
		t.Errorf("known are %q, and %q of keeper %d", i.Known.Isolation, again.Known.Isolation, again.KeeperPID())
	}
}

// A keeper is asked once before a command starts, and once for its cell.
func TestOneExchangeEach(t *testing.T) {
	h := newHost(t, t.TempDir())
	id := cell.NewID()
	l, err := listen(h.Dir, h.socket(id))
	must(t, err)
	defer l.Close()
	heard := make(chan string, 8)
	go func() {
		for {
			uc, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go func() {
				k := reexec.NewConn(uc)
				defer k.Close()
				var req proto.Request
				for files, err := k.Recv(&req); err == nil; files, err = k.Recv(&req) {
					proto.CloseAll(files)
					heard <- req.Op
					proto.Start.Reply(k, proto.Begun{PID: 1}, nil)
				}
			}()
		}
	}()
	c, err := reach(h.Dir, h.socket(id), 1)
	must(t, err)
	defer c.Close()
	i, err := h.Make(t.Context(), c, id, proto.NewCell{Cell: id}, cell.Assurance{})
	must(t, err)
	log, err := os.Create(filepath.Join(h.Dir, "log"))
	must(t, err)
	defer log.Close()
	_, err = i.Start(t.Context(), "p", cell.Start{}, [3]*os.File{log})
	must(t, err)
	_, err = i.Do(t.Context(), "q", cell.Start{})
	must(t, err)
	var all []string
	for len(heard) > 0 {
		all = append(all, <-heard)
	}
	if want := []string{"create", "start", "run"}; !slices.Equal(all, want) {
		t.Errorf("the keeper was asked %q, not %q", all, want)
	}
}

// A command is known even if its start is given up while the keeper starts it: it runs, and may have
// changed files.
func TestStartThatIsGivenUp(t *testing.T) {
	h := newHost(t, t.TempDir())
	id := cell.NewID()
	l, err := listen(h.Dir, h.socket(id))
	must(t, err)
	defer l.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	starts := make(chan bool, 1)
	go func() {
		uc, err := l.AcceptUnix()
		if err != nil {
			return
		}
		k := reexec.NewConn(uc)
		defer k.Close()
		var req proto.Request
		for files, err := k.Recv(&req); err == nil; files, err = k.Recv(&req) {
			proto.CloseAll(files)
			if req.Op == proto.Start.Name {
				cancel(errors.New("given up"))
				starts <- true
			}
			proto.Start.Reply(k, proto.Begun{PID: 1}, nil)
		}
	}()
	c, err := reach(h.Dir, h.socket(id), 1)
	must(t, err)
	defer c.Close()
	i, err := h.Make(t.Context(), c, id, proto.NewCell{Cell: id}, cell.Assurance{})
	must(t, err)
	p, err := i.Start(ctx, "p", cell.Start{}, [3]*os.File{})
	must(t, err)
	if <-starts; p.PID() != 1 {
		t.Errorf("the process is %d", p.PID())
	}
	if _, err := i.Start(ctx, "q", cell.Start{}, [3]*os.File{}); err == nil || err.Error() != "given up" || len(starts) > 0 {
		t.Errorf("a start that was given up before it was asked for: %v", err)
	}
}

// A start that is not answered is waited for as long as the grace, and not longer.
func TestOutlast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		longer, end := outlast(ctx, time.Minute)
		defer end()
		given := errors.New("given up")
		cancel(given)
		began := time.Now()
		<-longer.Done()
		if d := time.Since(began); d != time.Minute || context.Cause(longer) != given {
			t.Errorf("it ended after %v: %v", d, context.Cause(longer))
		}
	})
}

// A whole cell is found by the next daemon, with what was measured of it; a
// removed one leaves nothing.
func TestF28AttachAfterTheDaemon(t *testing.T) {
	dir := t.TempDir()
	h := newHost(t, dir)
	id := cell.NewID()
	k, c := keep(t, h, id)
	c.Close()
	h.Close()
	next := newHost(t, dir)
	i, err := next.Attach(t.Context(), id, "")
	must(t, err)
	if i.ID() != id || i.Assurance().Backend != "empty" {
		t.Errorf("attached to %s, %+v", i.ID(), i.Assurance())
	}
	must(t, i.Remove(t.Context(), "removed"))
	if left := files(t, h); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	<-k.alive
	_, err = next.Attach(t.Context(), id, "")
	if cell.KindOf(err) != cell.NotFound {
		t.Errorf("attach to what was removed: %v", err)
	}
	must(t, i.Remove(context.Background(), "again"))
}

// Of two attempts to give a keeper the same cell one succeeds, and the other
// takes nothing away from it.
func TestOneKeeperForACell(t *testing.T) {
	h := newHost(t, t.TempDir())
	id := cell.NewID()
	_, c := keep(t, h, id)
	defer c.Close()
	k, err := h.Take()
	must(t, err)
	defer k.Kill()
	if _, err := h.Assign(k, id); cell.KindOf(err) != cell.Exists {
		t.Errorf("assigned again: %v", err)
	}
	if _, err := Ask(t.Context(), c, proto.Note, proto.OfCell{Cell: id}); err != nil {
		t.Errorf("the first one: %v", err)
	}
}

// Keepers wait for cells, and end when they are dismissed.
func TestKeepersAhead(t *testing.T) {
	h := newHost(t, t.TempDir())
	h.Ahead = 1
	waiting := func() (list []*Keeper) {
		h.mu.Lock()
		defer h.mu.Unlock()
		return slices.Clone(h.spares)
	}
	h.Fill()
	until(t, "one waited", func() bool { return len(waiting()) == 1 })
	spare := waiting()[0]
	k, err := h.Take()
	must(t, err)
	if k != spare {
		t.Error("the one that waited was not taken")
	}
	until(t, "another waited", func() bool { return len(waiting()) == 1 })
	h.Put(k)
	if k, err = h.Take(); err != nil || k != spare {
		t.Errorf("the one that was given back was not taken: %v", err)
	}
	k.Discard()
	until(t, "the dismissed keeper had ended", func() bool { return ended(k) })
	for _, dead := range waiting() {
		dead.Kill()
	}
	if k, err = h.Take(); err != nil || ended(k) {
		t.Errorf("one that had died was taken: %v", err)
	}
	until(t, "another waited", func() bool { return len(waiting()) > 0 })
	last := waiting()
	h.Close()
	for _, k := range append(last, k) {
		if k != nil {
			k.Discard()
			until(t, "all had ended", func() bool { return ended(k) })
		}
	}
	h.Put(k)
	if len(waiting()) > 0 {
		t.Error("a keeper waits for a daemon that has ended")
	}
}

func ended(k *Keeper) bool {
	select {
	case <-k.alive:
		return true
	default:
		return false
	}
}

// What a keeper can't be is said, and leaves no cell.
func TestKeeperThatCannotBe(t *testing.T) {
	h := newHost(t, t.TempDir())
	why := errors.New("no more processes")
	attr := h.Attr
	h.Attr = func() (*syscall.SysProcAttr, error) { return nil, why }
	if _, err := h.Take(); !errors.Is(err, why) {
		t.Errorf("take: %v", err)
	}
	h.Attr, h.Backend = attr, "of which it knows nothing"
	k, err := h.Take()
	must(t, err)
	id := cell.NewID()
	c, err := h.Assign(k, id)
	must(t, err)
	defer c.Close()
	if _, err := h.Make(t.Context(), c, id, proto.NewCell{Cell: id}, cell.Assurance{}); cell.KindOf(err) != cell.Unavailable {
		t.Errorf("make: %v", err)
	}
	until(t, "it had ended", func() bool { return ended(k) })
	h.Release(id)
	if left := files(t, h); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// Sockets lie where addresses are too long to be dialled.
func TestLongPaths(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
	must(t, os.MkdirAll(dir, 0o700))
	h := newHost(t, dir)
	id := cell.NewID()
	_, c := keep(t, h, id)
	defer c.Close()
	i, err := h.Attach(t.Context(), id, "")
	must(t, err)
	must(t, i.Remove(t.Context(), "removed"))
}

// dying makes a keeper that dies over a request, bit by bit: first its answer
// fails to come, later its socket is gone, last its lock.
func dying(t *testing.T, h *Host, id cell.ID) {
	t.Helper()
	lock, err := h.lock(id, os.O_CREATE)
	must(t, err)
	l, err := net.Listen("unix", filepath.Join(h.Dir, h.socket(id)))
	must(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	var begun sync.Once
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				k := reexec.NewConn(c.(*net.UnixConn))
				defer k.Close()
				var req proto.Request
				if _, err := k.Recv(&req); err == nil && req.Op == proto.Hello.Name {
					proto.Hello.Reply(k, proto.Welcome{}, nil)
					k.Recv(&req)
				}
				begun.Do(func() {
					time.AfterFunc(50*time.Millisecond, func() { l.Close() })
					time.AfterFunc(100*time.Millisecond, func() { lock.Close() })
				})
			}()
		}
	}()
}

// The cell of a dying keeper is removed all the same.
func TestF19RemoveOfADyingKeeper(t *testing.T) {
	h := newHost(t, t.TempDir())
	id := cell.NewID()
	dying(t, h, id)
	c, err := Dial(t.Context(), h.Dir, h.socket(id))
	must(t, err)
	after := false
	i := &Instance{Host: h, Cell: id, Client: c, AfterRemove: func(_ context.Context, last bool) error {
		after = last
		return nil
	}}
	must(t, i.Remove(t.Context(), "removed"))
	if left := files(t, h); len(left) > 0 || !after {
		t.Errorf("left are %v; what comes after was done: %v", left, after)
	}
}

// A cell is not found if its keeper dies during the lookup.
func TestF19AttachToADyingKeeper(t *testing.T) {
	h := newHost(t, t.TempDir())
	id := cell.NewID()
	dying(t, h, id)
	if _, err := h.Attach(t.Context(), id, id); cell.KindOf(err) != cell.NotFound {
		t.Errorf("attached to a keeper that dies: %v", err)
	}
	if found, err := h.Leftovers(false); err != nil || len(found) != 1 {
		t.Errorf("left over are %v, %v", found, err)
	}
}

// What is forked of a cell that goes in that moment is not made.
func TestF19ForkOfACellThatGoes(t *testing.T) {
	c := &Client{}
	c.Close()
	i := &Instance{Client: c, Cell: "c-0000000000000001",
		MakeFork: func(context.Context, *Instance, cell.Spec) (*Instance, error) {
			t.Error("a fork is made")
			return nil, nil
		},
		MakeBranches: func(context.Context, *Instance, cell.Branching) ([]*Instance, cell.Pause, error) {
			t.Error("branches are made")
			return nil, cell.Pause{}, nil
		}}
	if _, err := i.Fork(t.Context(), cell.Spec{}); cell.KindOf(err) != cell.NotFound {
		t.Errorf("fork: %v", err)
	}
	if _, _, err := i.Branch(t.Context(), cell.Branching{}); cell.KindOf(err) != cell.NotFound {
		t.Errorf("branch: %v", err)
	}
}
