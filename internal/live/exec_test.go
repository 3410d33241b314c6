package live

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
)

// process is one that runs until it is ended.
type process struct {
	backend.Process
	over chan struct{}
	once sync.Once
	exit cell.Exit // valid when over is closed
	lost bool      // its keeper does not know it any more when it has ended

	forgotten atomic.Bool
}

func (p *process) InnerPID() int                { return 7 }
func (p *process) Forget(context.Context) error { p.forgotten.Store(true); return nil }

func (p *process) end(exit cell.Exit) {
	p.once.Do(func() {
		p.exit = exit
		close(p.over)
	})
}

func (p *process) End(_ context.Context, cause string, _ time.Duration) error {
	p.end(cell.Exit{Code: 143, Signal: "SIGTERM", Cause: cause})
	return nil
}

func (p *process) Wait(ctx context.Context) (cell.Status, error) {
	select {
	case <-p.over:
		if p.lost {
			return cell.Status{}, cell.Errorf(cell.NotFound, "fake", "", "no such process")
		}
		return cell.Status{Exit: &p.exit}, nil
	case <-ctx.Done():
		return cell.Status{}, context.Cause(ctx)
	}
}

func (f *fake) Start(_ context.Context, name string, s cell.Start, _ [3]*os.File) (backend.Process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refusal != nil {
		return nil, f.refusal
	}
	p := &process{over: make(chan struct{})}
	f.started = append(f.started, p)
	f.runs = []cell.ProcessInfo{{PID: 7}}
	return p, nil
}

// start starts a command as it is asked for, and returns its process.
func (b *bed) start(id cell.ID, req api.ExecRequest) (api.Exec, *process) {
	b.Helper()
	r, err := b.ReadyExec(context.Background(), id, &req)
	if err != nil {
		b.Fatal(err)
	}
	x, err := b.StartExec(context.Background(), r, func(error) {})
	if err != nil {
		b.Fatal(err)
	}
	f := b.Instance(id).(*fake)
	return x, f.started[len(f.started)-1]
}

// A command keeps its cell alive, and its end is known for a while.
func TestExec(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.atRest("c-1", nil)
		x, p := b.start("c-1", api.ExecRequest{Command: []string{"sleep", "300"}})
		b.pass(moment)
		if command, runs := b.RunsCommand("c-1"); !runs || len(command) != 2 || b.Running() != 1 || !b.Busy() || b.AtRest("c-1") {
			t.Errorf("%q runs: %v, %d in all", command, runs, b.Running())
		}
		if list, err := b.Execs("c-1"); err != nil || len(list) != 1 || !list[0].Running || list[0].PID != 7 {
			t.Errorf("its commands are %+v, %v", list, err)
		}
		b.host.made[0].change(func() { b.host.made[0].runs = nil })
		p.end(cell.Exit{Code: 5})
		b.pass(moment)
		if _, runs := b.RunsCommand("c-1"); runs || b.Running() != 0 || !b.AtRest("c-1") {
			t.Errorf("it runs: %v; the cell is %s", runs, b.state("c-1").State)
		}
		if now, err := b.ShowExec(x.ID); err != nil || now.Running || *now.ExitCode != 5 || !b.Busy() {
			t.Errorf("it ended as %+v, %v", now, err)
		}
		if _, err := b.SignalExec(context.Background(), x.ID, "SIGINT"); cell.KindOf(err) != cell.Conflict {
			t.Errorf("a signal after its end: %v", err)
		}
		b.pass(execMemory)
		if _, err := b.ShowExec(x.ID); cell.KindOf(err) != cell.NotFound || b.Busy() {
			t.Errorf("a minute later: %v", err)
		}
	})
}

// A command for a client is ended when the client does not come, and when the last one with
// input goes away.
func TestExecForAClient(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.atRest("c-1", nil)
		req := api.ExecRequest{Command: []string{"cat"}, Attach: true}
		alone, _ := b.start("c-1", req)
		b.pass(b.cfg.AttachGrace + moment)
		if now, err := b.ShowExec(alone.ID); err != nil || now.Running || now.Cause != "interrupted" {
			t.Errorf("without a client it is %+v, %v", now, err)
		}
		joined, p := b.start("c-1", req)
		x, err := b.Exec(joined.ID)
		if err != nil {
			t.Fatal(err)
		}
		first, second, looker := x.Join(true), x.Join(true), x.Join(false)
		b.pass(2 * b.cfg.AttachGrace)
		looker(true)
		first(true)
		b.pass(moment)
		if x.over() {
			t.Fatal("it ended while a client was there")
		}
		second(true)
		b.pass(moment)
		if !x.over() || p.exit.Cause != "interrupted" {
			t.Errorf("without clients it ended: %v (%s)", x.over(), p.exit.Cause)
		}
	})
}

// A command that ends with its cell has that as its cause, also when its keeper is gone before it
// was asked. When the keeper died, that is the cause.
func TestExecEndsWithItsCell(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		for _, taken := range []string{cell.CauseRemoved, cell.CauseStopped, cell.CauseKeeperLost} {
			id := cell.ID("c-" + taken[:4])
			b.atRest(id, nil)
			x, p := b.start(id, api.ExecRequest{Command: []string{"sleep", "300"}})
			p.lost = true
			if err := b.Deactivate(context.Background(), id, taken); err != nil {
				t.Fatal(err)
			}
			p.end(cell.Exit{})
			b.pass(moment)
			now, err := b.ShowExec(x.ID)
			if err != nil {
				t.Fatal(err)
			}
			want := cell.Exit{Code: 137, Signal: "SIGKILL", Cause: taken}
			if taken == cell.CauseKeeperLost {
				want = cell.Exit{Code: 255, Cause: taken}
			}
			if now.Running || *now.ExitCode != want.Code || now.Signal != want.Signal || now.Cause != want.Cause {
				t.Errorf("%s: it ended as %+v", taken, now)
			}
		}
	})
}

// A command that meets the end of its cell is refused with that; any other failure stays what
// it is.
func TestExecMeetsTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		for _, ends := range []bool{false, true} {
			id := cell.ID("c-stays")
			if ends {
				id = "c-ends"
			}
			b.atRest(id, nil)
			r, err := b.ReadyExec(context.Background(), id, &api.ExecRequest{Command: []string{"true"}})
			if err != nil {
				t.Fatal(err)
			}
			r.inst.(*fake).change(func() { r.inst.(*fake).refusal = errors.New("setns pid: operation not permitted") })
			if ends {
				if err := b.Deactivate(context.Background(), id, cell.CauseStopped); err != nil {
					t.Fatal(err)
				}
			}
			_, err = b.StartExec(context.Background(), r, nil)
			if told := cell.KindOf(err) == cell.Conflict && strings.Contains(err.Error(), "it was ended meanwhile"); err == nil || told != ends {
				t.Errorf("the cell ended: %v; the command failed with %v", ends, err)
			}
		}
	})
}

// Nothing of a command is ended because the daemon ends.
func TestExecOutlivesTheDaemon(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.atRest("c-1", nil)
		_, p := b.start("c-1", api.ExecRequest{Command: []string{"sleep", "300"}})
		b.pass(moment)
		b.end(ErrClosing)
		b.pass(time.Minute)
		select {
		case <-p.over:
			t.Error("it was ended")
		default:
		}
		if p.forgotten.Load() {
			t.Error("it was forgotten")
		}
	})
}

// A command is ended when its caller went away while it was being started: it has no id for it.
func TestExecWithoutItsCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.atRest("c-1", nil)
		r, err := b.ReadyExec(context.Background(), "c-1", &api.ExecRequest{Command: []string{"sleep", "300"}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // the fake starts it all the same
		f := b.Instance("c-1").(*fake)
		if _, err := b.StartExec(ctx, r, func(error) {}); err != nil {
			t.Fatal(err)
		}
		p := f.started[0]
		b.pass(moment)
		select {
		case <-p.over:
		default:
			t.Error("it goes on")
		}
	})
}

// What can't be asked for is refused, before a cell comes to life for it.
func TestExecRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		b.atRest("c-1", nil)
		for _, req := range []api.ExecRequest{{}, {Command: []string{"x"}, Env: []string{"=1"}}, {Command: []string{"x"}, Timeout: "soon"}, {Command: []string{"x"}, Wait: true, Attach: true}} {
			if _, err := b.ReadyExec(context.Background(), "c-1", &req); cell.KindOf(err) != cell.Invalid {
				t.Errorf("%+v: %v", req, err)
			}
		}
		if n := b.host.instances(); n != 0 {
			t.Errorf("%d instances were made", n)
		}
	})
}
