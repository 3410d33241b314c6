package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/testenv"
)

// Many programs make cells, work in them, fork them and remove them, at one daemon that is
// killed meanwhile. All see right results or documented errors, commands with a reader continue,
// and after the removal of everything the installation holds what it held before.
func TestC28ManyClientsAndAKilledDaemon(t *testing.T) {
	visitors, watchers, kills, long := 12, 2, 2, 8*time.Second
	if os.Getenv("E2E_SOAK") != "" {
		visitors, watchers, kills, long = 200, 10, 3, 5*time.Minute
	}
	rootHasRunIt(t)
	h := newHost(t)
	l := &load{h: h, took: map[string][]time.Duration{}, refused: map[string]int{}}
	l.serve("127.0.0.1:0", "--first-token", "admin")
	ctx := t.Context()
	var first sync.WaitGroup
	for i := range visitors { // once through everything, so that what is made once is there
		first.Go(func() { l.visit(ctx, i) })
	}
	first.Wait()
	before, runs := holdingsOf(h.work), len(h.runs())

	over := time.Now().Add(long)
	var all sync.WaitGroup
	for range watchers {
		all.Go(func() { l.watch(ctx, over) })
	}
	for i := range visitors {
		all.Go(func() {
			for time.Now().Before(over) && ctx.Err() == nil {
				l.visit(ctx, i)
			}
		})
	}
	for range kills {
		time.Sleep(long / time.Duration(kills+1))
		l.restart()
	}
	all.Wait()

	for what, n := range l.refused {
		t.Logf("refused %d times: %s", n, what)
	}
	for _, what := range slices.Sorted(maps.Keys(l.took)) {
		d := l.took[what]
		slices.Sort(d)
		t.Logf("%-8s %6d times, median %8v, 99th percentile %8v, longest %8v", what, len(d), d[len(d)/2].Round(100*time.Microsecond), d[len(d)*99/100].Round(100*time.Microsecond), d[len(d)-1].Round(100*time.Microsecond))
	}
	if n := len(l.took["remove"]); n < visitors/2 {
		t.Errorf("%d cells were made, worked in and removed", n)
	}
	for _, c := range h.cells() {
		t.Errorf("cell %s (%s) is left", c.ID, c.Name)
	}
	if v := h.verify(); !v.OK || len(l.runs) == 0 {
		t.Errorf("%d runs; receipts: %+v", len(l.runs), v)
	}
	for _, id := range l.runs {
		if h.run(id).Receipt == "" {
			t.Errorf("run %s has no receipt", id)
		}
	}
	h.pando("gc", "--yes")
	before["threads of pando-daemon"] += visitors      // the runtime keeps those it once needed, at most one for each caller
	before["folders of state"] += len(h.runs()) - runs // what a run left is kept longer than its cell
	if more := heldMore(h.work, before); more != "" {
		t.Errorf("it holds more than before: %s", more)
	}
	if left := h.leftovers(); left != nil {
		t.Errorf("left over: %s", left)
	}
}

// load is a daemon with many clients.
type load struct {
	h     *host
	url   string
	token string
	proc  *exec.Cmd

	mu      sync.Mutex // guards what follows
	took    map[string][]time.Duration
	refused map[string]int
	runs    []string
	made    int
	down    []time.Time // when the daemon was killed
}

// serve starts the daemon at an address.
func (l *load) serve(addr string, flags ...string) {
	c := l.h.cmd(l.h.bin, append([]string{"serve", "--json", "--listen", addr}, flags...)...)
	out, err := c.StdoutPipe()
	l.h.must(err)
	l.h.must(c.Start())
	var s served
	if err := json.NewDecoder(out).Decode(&s); err != nil || len(s.URLs) == 0 {
		l.h.t.Fatalf("pando serve says %v, %v", s, err)
	}
	l.proc, l.url = c, s.URLs[0]
	if s.Token != "" {
		l.token = s.Token
	}
	l.h.t.Cleanup(func() {
		c.Process.Signal(os.Interrupt)
		c.Wait()
	})
}

// restart kills the daemon, and waits for the next one that pando serve starts.
func (l *load) restart() {
	l.mu.Lock()
	l.down = append(l.down, time.Now())
	l.mu.Unlock()
	d, err := l.client().Daemon(l.h.t.Context()) // by what it says: its children have its name until they are something else
	l.h.must(err)
	kill(d.PID)
	began := time.Now()
	for {
		next, err := l.client().Daemon(l.h.t.Context())
		if err == nil && next.PID != d.PID {
			break
		}
		if time.Since(began) > testenv.Patience() {
			l.h.t.Fatalf("no daemon takes the place of %d: %v", d.PID, err)
		}
		time.Sleep(time.Millisecond)
	}
	l.h.t.Logf("the next daemon answers after %v", time.Since(began).Round(time.Millisecond))
}

// client is one program.
func (l *load) client() *client.Client {
	return client.New(client.Config{Host: l.url, Token: l.token})
}

// did records the duration of a request, and reports whether it succeeded. Documented errors are
// fine; a lost answer is if the daemon was killed.
func (l *load) did(what string, began time.Time, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.took[what] = append(l.took[what], time.Since(began))
		return true
	}
	lost := slices.ContainsFunc(l.down, func(t time.Time) bool { return began.Before(t.Add(30*time.Second)) && time.Now().After(t) })
	e, ok := errors.AsType[*api.Error](err)
	switch {
	case ok && e.Hint != "" && (e.Kind == "limited" || e.Kind == "unavailable" && !strings.Contains(e.Message, "lost the daemon")):
	case ok && lost && (e.Kind == "unavailable" || strings.Contains(e.Message, "the daemon ended")):
	default:
		l.h.t.Errorf("%s: %v", what, err)
	}
	kind := "?"
	if ok {
		kind = string(e.Kind)
	}
	l.refused[what+": "+kind]++
	return false
}

// visit makes a cell, works in it, forks it and removes all of it.
func (l *load) visit(ctx context.Context, i int) {
	l.mu.Lock()
	l.made++
	name := fmt.Sprintf("v%d", l.made)
	l.mu.Unlock()
	c := l.client()
	cells := []string{name}
	defer func() {
		for _, id := range cells {
			l.remove(ctx, c, id)
		}
	}()

	began := time.Now()
	_, err := c.Create(ctx, api.CreateRequest{Name: name})
	if !l.did("create", began, err) {
		l.missing(ctx, c, name)
		return
	}
	if !l.says(ctx, c, name, "echo "+name+" >> mine; cat mine", name) {
		return
	}
	if i%4 == 0 {
		began = time.Now()
		r, err := c.StartRun(ctx, api.RunRequest{Cell: name, Command: []string{"true"}})
		if err == nil {
			r, err = c.Run(ctx, r.ID, true)
		}
		if l.did("run", began, err) {
			l.mu.Lock()
			l.runs = append(l.runs, r.ID)
			l.mu.Unlock()
		}
	}
	if i%4 == 1 {
		began = time.Now()
		_, err = c.Eval(ctx, name, api.EvalRequest{Code: "who = " + strconv.Quote(name)}, client.Listener{})
		if l.did("eval", began, err) {
			began = time.Now()
			b, err := c.Branch(ctx, name, api.BranchRequest{Count: 2, Name: name + "-b"})
			ok := l.did("branch", began, err)
			cells = append(cells, name+"-b-1", name+"-b-2")
			for _, x := range b.Cells {
				began = time.Now()
				v, err := c.Eval(ctx, x.ID, api.EvalRequest{Code: "who"}, client.Listener{})
				if l.did("eval", began, err) && ok && !strings.Contains(string(v.Result), name) {
					l.h.t.Errorf("a branch of %s says %s", name, v.Result)
				}
			}
		}
	}
	if i%4 == 1 { // its interpreter lives, and a fork of files would leave it behind
		return
	}
	began = time.Now()
	f, err := c.Fork(ctx, name, api.ForkRequest{Count: 2, Name: name + "-f"})
	ok := l.did("fork", began, err)
	cells = append(cells, name+"-f-1", name+"-f-2")
	for n, x := range f.Cells {
		if ok {
			l.says(ctx, c, x.ID, fmt.Sprintf("echo %d >> mine; cat mine", n), fmt.Sprintf("%s\n%d", name, n))
		}
	}
	l.says(ctx, c, name, "cat mine", name)
}

// says has a command say what it should.
func (l *load) says(ctx context.Context, c *client.Client, cell, command, want string) bool {
	began := time.Now()
	x, err := c.RunExec(ctx, cell, api.ExecRequest{Command: []string{"sh", "-c", command}})
	if err == nil && x.ExitCode == nil {
		err = fmt.Errorf("it has not ended: %+v", x)
	}
	if !l.did("exec", began, err) {
		return false
	}
	if got := strings.TrimSpace(string(x.Stdout)); *x.ExitCode != 0 || got != want {
		l.h.t.Errorf("%s in %s ends with %d and says %q instead of %q: %s", command, cell, *x.ExitCode, got, want, x.Stderr)
		return false
	}
	return true
}

// remove removes a cell, if it is there, and does not give up.
func (l *load) remove(ctx context.Context, c *client.Client, name string) {
	for tried := time.Now(); time.Since(tried) < testenv.Patience(); {
		began := time.Now()
		_, err := c.Remove(ctx, name, false)
		if e, ok := errors.AsType[*api.Error](err); ok && e.Kind == "not-found" {
			return
		}
		if l.did("remove", began, err) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	l.h.t.Errorf("%s can't be removed", name)
}

// missing waits until what may have been begun is not under way any more.
func (l *load) missing(ctx context.Context, c *client.Client, name string) {
	if _, err := c.Cell(ctx, name); err != nil {
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Kind != "not-found" {
			l.did("look", time.Now(), err)
		}
	}
}

// watch reads what a command writes until it is over, and misses nothing of it.
func (l *load) watch(ctx context.Context, over time.Time) {
	c := l.client()
	var x api.Cell
	var e api.Exec
	for begun := false; !begun; {
		began := time.Now()
		var err error
		if x, err = c.Create(ctx, api.CreateRequest{}); !l.did("create", began, err) { // the daemon may be just killed
			if began.After(over) {
				l.h.t.Errorf("no cell could be made for a command that is read: %v", err)
				return
			}
			time.Sleep(100 * time.Millisecond)
			continue
		}
		defer l.remove(ctx, c, x.ID)
		e, err = c.StartExec(ctx, x.ID, api.ExecRequest{Command: []string{"sh", "-c", "i=0; while [ ! -e over ]; do i=$((i+1)); echo $i; sleep 0.02; done"}})
		begun = l.did("exec", began, err)
	}
	var got bytes.Buffer
	lost := 0
	for stopped := false; ; lost++ {
		at, err := c.AttachExec(ctx, e.ID, client.AttachOptions{Stdout: int64(got.Len())})
		for err == nil {
			var f api.Frame
			if f, err = at.Recv(ctx); err != nil {
				break
			}
			if f.Type == api.FrameStdout {
				at, b, err := f.OutputData()
				if err != nil || at != int64(got.Len()) {
					l.h.t.Errorf("output comes from %d on instead of %d, %v", at, got.Len(), err)
					return
				}
				got.Write(b)
			}
			if !stopped && time.Now().After(over) {
				stopped = true
				go l.says(ctx, c, x.ID, "touch over", "")
			}
			if f.Type == api.FrameResult {
				at.Close()
				l.inOrder(got.String(), lost)
				return
			}
		}
		if !l.did("read", time.Now(), err) && lost > 300 {
			l.h.t.Errorf("a command can't be read any more: %v", err)
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// inOrder checks that a command's output is whole.
func (l *load) inOrder(out string, lost int) {
	want := 0
	for line := range strings.Lines(out) {
		if want++; strings.TrimSpace(line) != strconv.Itoa(want) {
			l.h.t.Errorf("line %d of a command that is read is %q", want, line)
			return
		}
	}
	if want < 20 {
		l.h.t.Errorf("a command that is read has said %d lines", want)
	}
	l.h.t.Logf("%d lines of a command were read whole, with %d interruptions", want, lost)
}
