package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// soakedSessions is how many sessions there are, and for how long: 50 for ten minutes in the soak,
// ten for a minute otherwise, or PANDO_SOAK_SESSIONS.
func soakedSessions(t *testing.T) (int, time.Duration) {
	t.Helper()
	text := os.Getenv("PANDO_SOAK_SESSIONS")
	switch {
	case text == "" && os.Getenv("E2E_SOAK") != "":
		return 50, 10 * time.Minute
	case text == "":
		return 10, time.Minute
	}
	count, long, _ := strings.Cut(text, "/")
	n, err := strconv.Atoi(count)
	d, derr := time.ParseDuration(long)
	if errors.Join(err, derr) != nil || n < len(sessionEnds) || d < 30*time.Second {
		t.Fatalf("PANDO_SOAK_SESSIONS is %q: say how many sessions (%d or more) and for how long (30s or more), as in 10/1m", text, len(sessionEnds))
	}
	return n, d
}

// sessionProgram is an agent without a model: it writes numbered lines and what it hears. What it
// says last is the exit code with which it ends, so the record can be compared with that.
const sessionProgram = `stty -echo
lines=$1 code=$2 way=$3
exec 3<&0
over() { kill $reader 2>/dev/null; printf 'over %d with %d\n' $n $1; exit $1; }
n=0
trap 'over 5' USR1
while read -r word; do printf 'heard %s\n' "$word"; [ "$word" != quit ] || kill -USR1 $$; done <&3 &
reader=$!
case $way in deaf) trap '' TERM HUP ;; *) trap 'over 7' TERM ;; esac
while [ $n -lt $lines ]; do
	n=$((n + 1))
	printf 'line %06d\n' $n
	echo $n >work
	sleep 0.5
done
over $code
`

// endless is more lines than any session lives for.
const endless = 999999

// sessionEnd is a way in which a session ends, and what its record says then.
type sessionEnd struct {
	name  string
	code  int    // that the program ends with; 0 or more
	way   string // of the program, at a request to end
	act   func(x *session) error
	flags []string
	cause string // in the record
	sig   string // in the record, where the program is killed
}

var sessionEnds = []sessionEnd{
	{name: "done"},
	{name: "fails", code: 3},
	{name: "stopped", act: (*session).stop, cause: cell.CauseInterrupted, code: 7},
	{name: "deaf", way: "deaf", act: (*session).stop, cause: cell.CauseInterrupted, sig: "SIGKILL"},
	{name: "killed", act: (*session).killProgram, sig: "SIGKILL"},
	{name: "keeper", act: (*session).killKeeper, cause: cell.CauseKeeperLost},
	{name: "timeout", way: "deaf", cause: cell.CauseTimeout, sig: "SIGKILL"},
	{name: "removed", act: (*session).remove, cause: cell.CauseInterrupted, code: 7},
	{name: "quits", act: (*session).quit, code: 5},
}

// TestSessionsOutliveTheirDaemons: while sessions write, are left, killed away from and come back
// to, the daemon is killed twice and replaced once. Each session's record is terminal and says how
// its program really ended, and no terminal loses a line or shows one twice.
func TestSessionsOutliveTheirDaemons(t *testing.T) {
	rootHasRunIt(t)
	many, long := soakedSessions(t)
	h := newHost(t)
	h.bin = h.buildOf("installed", protocolNow)
	next := filepath.Join(filepath.Dir(h.buildOf("next", protocolNext)), "pandod")
	h.write("agent.sh", sessionProgram)
	agent := filepath.Join(h.work, "bin", "claude") // its arguments are those of Claude Code, and last the task
	h.writeAt(agent, "#!/bin/sh\nfor task; do :; done\nexec sh agent.sh $task\n")
	h.must(os.Chmod(agent, 0o755))
	for i, kv := range h.env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			h.env[i] = "PATH=" + filepath.Dir(h.bin) + ":" + filepath.Dir(agent) + ":" + path
		}
	}
	key, _ := newAgentKey()
	h.lend("anthropic", key)

	seed := uint64(time.Now().UnixNano())
	t.Logf("%d sessions for %v; seed %d", many, long, seed)
	l := &sessions{h: h, over: time.Now().Add(long)}
	var all sync.WaitGroup
	for i := range many {
		x := &session{sessions: l, sessionEnd: sessionEnds[i%len(sessionEnds)], rnd: rand.New(rand.NewPCG(seed, uint64(i))), typed: map[string]time.Time{}}
		x.cell = fmt.Sprintf("%s%d", x.name, i)
		l.all = append(l.all, x)
		all.Go(func() {
			if err := x.live(long); err != nil {
				t.Errorf("session %s: %v", x.cell, err)
			}
		})
	}
	quarter := long / 4
	time.Sleep(quarter)
	l.down("killed", h.killDaemon)
	time.Sleep(quarter)
	l.down("replaced", func() {
		h.must(os.Rename(next, filepath.Join(filepath.Dir(h.bin), "pandod")))
		h.pando("daemon", "stop")
	})
	time.Sleep(quarter)
	l.down("killed", h.killDaemon)
	all.Wait()

	for _, x := range l.all {
		if err := x.truth(); err != nil {
			t.Errorf("session %s: %v", x.cell, err)
		}
	}
	t.Logf("clients that attached again: %d; words that were heard: %d of %d", l.did["attached"], l.did["heard"], l.did["typed"])
	if v := h.verify(); !v.OK {
		t.Errorf("receipts: %+v", v)
	}
	for _, c := range h.cells() {
		h.pando("rm", "--yes", c.ID)
	}
	if left := h.leftovers(); left != nil {
		t.Errorf("left over: %s", left)
	}
}

// sessions are those of one installation.
type sessions struct {
	h    *host
	all  []*session
	over time.Time

	mu    sync.Mutex // guards what follows
	downs [][2]time.Time
	did   map[string]int
}

func (l *sessions) done(what string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.did == nil {
		l.did = map[string]int{}
	}
	l.did[what] += n
}

// down ends the daemon in some way, and waits for the next one, which any client starts.
func (l *sessions) down(how string, end func()) {
	before := decoded[api.Daemon](l.h, "daemon", "status")
	began := time.Now()
	l.mu.Lock()
	l.downs = append(l.downs, [2]time.Time{began, {}})
	l.mu.Unlock()
	end()
	for {
		o := l.h.try("ls", "--json")
		after := decoded[api.Daemon](l.h, "daemon", "status")
		if o.code == 0 && after.PID != 0 && after.PID != before.PID {
			l.h.t.Logf("the daemon was %s; the next one answers after %v, with %d cells alive of %d before", how, time.Since(began).Round(time.Millisecond), after.Alive, before.Alive)
			break
		}
		if time.Since(began) > testenv.Patience() {
			l.h.t.Errorf("no daemon after the one that was %s: %+v", how, o)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	l.mu.Lock()
	l.downs[len(l.downs)-1][1] = time.Now()
	l.mu.Unlock()
}

// between reports whether there was another daemon at to than at from.
func (l *sessions) between(from, to time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.downs, func(d [2]time.Time) bool { return from.Before(d[1]) && to.After(d[0]) })
}

// disturbed reports whether there was no daemon at some time from began until now, or it was new.
func (l *sessions) disturbed(began time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.downs, func(d [2]time.Time) bool { return d[1].IsZero() || began.Before(d[1].Add(time.Second)) })
}

// session is one agent, with a client at its terminal most of the time.
type session struct {
	*sessions
	sessionEnd
	cell  string
	id    string // of its run
	rnd   *rand.Rand
	seat  *seat
	shown int                  // the last line that a client saw
	typed map[string]time.Time // words, and when
}

// live starts the session, and ends it in its way after a while.
func (x *session) live(long time.Duration) error {
	end := time.Now().Add(time.Duration((0.1 + 0.85*x.rnd.Float64()) * float64(long)))
	lines := endless
	switch {
	case x.act == nil && x.cause == "":
		lines = int(time.Until(end) / (500 * time.Millisecond))
	case x.act == nil:
		x.flags = []string{"--timeout", time.Until(end).Round(time.Second).String()}
	case x.name == "quits":
		end = x.over
	}
	task := []string{strconv.Itoa(lines), strconv.Itoa(x.code), cmp.Or(x.way, "gentle")}
	args := append([]string{"run", "--cell", x.cell}, x.flags...)
	if x.rnd.IntN(2) == 0 {
		args = append(append([]string{"claude", "--cell", x.cell}, x.flags...), "--", strings.Join(task, " "))
	} else {
		args = append(append(args, "--", "sh", "agent.sh"), task...)
	}
	x.seat = x.h.sit(args...)
	if !x.seat.shows("line 000001", testenv.Patience()) {
		return fmt.Errorf("it never began; on the screen:\n%s", x.seat.text())
	}
	run, err := x.record(x.cell)
	if err != nil {
		return err
	}
	x.id = run.ID
	for {
		rest := time.Duration((1 + 9*x.rnd.Float64()) * float64(time.Second))
		if time.Now().Add(rest + 25*time.Second).After(end) { // what is sent may wait for 20 s for the program's screen
			break
		}
		time.Sleep(rest)
		if err := x.use(); err != nil {
			return err
		}
	}
	time.Sleep(time.Until(end))
	if x.act != nil {
		if err := x.act(x); err != nil {
			return err
		}
	}
	return x.leaves()
}

// use does one of the things that a client does.
func (x *session) use() error {
	if err := x.watch(); err != nil {
		return err
	}
	switch x.rnd.IntN(5) {
	case 0, 1: // the client is killed
		x.seat.kill()
		time.Sleep(time.Duration(x.rnd.Float64() * float64(2*time.Second)))
		return x.attach()
	case 2: // it detaches
		began := time.Now()
		x.seat.types("\x10\x11")
		if code, err := x.exit(); (err != nil || code != 0) && !x.disturbed(began) {
			return fmt.Errorf("detaching: exit code %d, %v; on the screen:\n%s", code, err, x.seat.text())
		}
		x.seat.kill()
		return x.attach()
	case 3: // another client types
		word := x.word()
		if o := x.h.try("send", x.id, word); o.code != 0 {
			return fmt.Errorf("pando send: %+v", o)
		}
		return x.hears(word)
	}
	if x.rnd.IntN(3) == 0 { // some are typed to, and some are not: the verdict differs
		return nil
	}
	word := x.word()
	x.seat.types(word + "\r")
	return x.hears(word)
}

// word is one that was not typed before.
func (x *session) word() string {
	w := fmt.Sprintf("w%d.", len(x.typed))
	x.typed[w] = time.Now()
	return w
}

// hears waits until the program has heard a word. A client keeps what is typed until the program has
// it, so it comes also when the daemon ends meanwhile.
func (x *session) hears(word string) error {
	if x.seat.shows("heard "+word, testenv.Patience()) {
		return nil
	}
	return fmt.Errorf("%q was not heard; on the screen:\n%s", word, x.seat.text())
}

// attach attaches a client and waits for the last screen.
func (x *session) attach() error {
	x.seat = x.h.sit("attach", x.id)
	x.done("attached", 1)
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		lines, err := numbers(x.seat.text())
		if err == nil && len(lines) > 0 && lines[len(lines)-1] >= x.shown {
			if last := lines[len(lines)-1]; len(lines) < min(last, 15) { // some rows are what it heard
				return fmt.Errorf("of %d lines the last screen has %d:\n%s", last, len(lines), x.seat.text())
			}
			return x.watch()
		}
		if err != nil || x.finished() || time.Since(began) > testenv.Patience() {
			return fmt.Errorf("line %d was seen before; after attaching: %v, the screen shows:\n%s", x.shown, err, x.seat.text())
		}
	}
}

// watch looks at the client's screen.
func (x *session) watch() error {
	text := x.seat.text()
	lines, err := numbers(text)
	switch {
	case err != nil:
		return fmt.Errorf("%v; the screen shows:\n%s", err, text)
	case x.finished():
		return fmt.Errorf("its client ended by itself; on the screen:\n%s", text)
	case len(lines) > 0 && lines[len(lines)-1] < x.shown:
		return fmt.Errorf("line %d was seen before; the screen shows:\n%s", x.shown, text)
	case len(lines) > 0:
		x.shown = lines[len(lines)-1]
	}
	return nil
}

// finished reports whether its client ended.
func (x *session) finished() bool {
	select {
	case <-x.seat.gone:
		return true
	default:
		return false
	}
}

// exit waits for the client's end.
func (x *session) exit() (int, error) {
	select {
	case <-x.seat.gone:
		x.seat.cmd.Wait()
		return x.seat.cmd.ProcessState.ExitCode(), nil
	case <-time.After(2 * testenv.Patience()):
		return 0, errors.New("its client does not end")
	}
}

// leaves waits for the session's end, and for that of the client, which says the same.
func (x *session) leaves() error {
	code, err := x.exit()
	text := x.seat.text()
	if err != nil {
		return fmt.Errorf("%w; on the screen:\n%s", err, text)
	}
	run, err := x.record(x.id)
	switch {
	case err != nil:
		return err
	case run.ExitCode == nil || run.Phase != "ended":
		return fmt.Errorf("its client ended with %d; the record: %+v; on the screen:\n%s", code, run, text)
	case run.Cause == "" && code != *run.ExitCode || run.Cause != "" && code == 0:
		return fmt.Errorf("its client ended with %d; the record says exit code %d, cause %q; on the screen:\n%s", code, *run.ExitCode, run.Cause, text)
	}
	return nil
}

// record reads a run, again where there was no daemon.
func (x *session) record(sel string) (run api.Run, err error) {
	if x.cell == sel {
		sel += ":latest"
	}
	err = x.asks(func() outcome { return x.h.try("show", sel, "--json") }, func(out string) error { return decode(out, &run) })
	return run, err
}

// asks does something, again where there was no daemon.
func (x *session) asks(do func() outcome, with func(out string) error) error {
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		o := do()
		if o.code == 0 {
			return with(o.out)
		}
		if !x.disturbed(began) || time.Since(began) > testenv.Patience() {
			return fmt.Errorf("exit code %d: %s%s", o.code, o.out, o.stderr)
		}
	}
}

func (x *session) pandoAsks(args ...string) error {
	return x.asks(func() outcome { return x.h.try(args...) }, func(string) error { return nil })
}

func (x *session) stop() error   { return x.pandoAsks("stop", "--timeout", "5s", x.cell) }
func (x *session) remove() error { return x.pandoAsks("rm", "--yes", x.cell) }

func (x *session) killProgram() error {
	return x.pandoAsks("exec", "-n", x.cell, "--", "sh", "-c", "kill -9 $(pgrep -o -f '[a]gent.sh "+strconv.Itoa(endless)+"')")
}

func (x *session) killKeeper() error {
	run, err := x.record(x.id)
	if err != nil {
		return err
	}
	p := keeperOf(x.h.work, run.Cell)
	if p == 0 {
		return errors.New("it has no keeper")
	}
	kill(p)
	return nil
}

func (x *session) quit() error {
	x.typed["quit"] = time.Now()
	x.seat.types("quit\r")
	return nil
}
