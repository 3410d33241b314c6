package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
)

// memoryActs are actions on the memory of a gVisor cell. Each gets the cell x with a counting
// shell; its checkpoint 2 has the count 41.
var memoryActs = []memoryAct{
	{"checkpoint", "42", func(h *host) outcome { return h.try("checkpoint", "x") }},
	{"branch", "42", func(h *host) outcome { return h.try("branch", "x", "-n", "2") }},
	{"restore", "41", func(h *host) outcome { return h.try("restore", "x@2", "--yes") }},
}

type memoryAct struct {
	name string
	next string // what the shell says when it has said 41, and the act was done again
	do   func(h *host) outcome
}

// counter is a shell that has a number in its memory, and says it when it is asked.
const counter = `n=$1; (while sleep 0.02; do test -e /tmp/ask && { rm /tmp/ask; echo $n >/tmp/said; n=$((n+1)); }; done) >/dev/null 2>&1 &`

// ask lets it answer.
const ask = `rm -f /tmp/said; : >/tmp/ask; for i in $(seq 150); do test -s /tmp/said && exec cat /tmp/said; sleep 0.02; done; exit 9`

// The processes killed at a step: the daemon or the keeper that executes the step; or the
// application kernel or the gofer of the cell, or those of all others, while the daemon or a
// keeper is at a step.
var memoryVictims = []struct {
	name, steps string // the victim
	others      bool
	program     string // "": the process at the step
}{
	{name: "daemon", steps: "daemon"},
	{name: "keeper", steps: "keeper"},
	{name: "sandbox", steps: "daemon", program: "runsc-sandbox"},
	{name: "sandbox-in-keeper", steps: "keeper", program: "runsc-sandbox"},
	{name: "gofer", steps: "keeper", program: "runsc-gofer"},
	{name: "sandboxes-of-copies", steps: "daemon", program: "runsc-sandbox", others: true},
	{name: "gofers-of-copies", steps: "keeper", program: "runsc-gofer", others: true},
}

func TestF19KillMemoryAtEveryStep(t *testing.T) {
	if !hasGvisor() {
		t.Skip("needs bin/pando-runsc and bin/pando-guest: make")
	}
	t.Parallel()
	bin := faultsBinary(t)
	soak := os.Getenv("E2E_SOAK") != ""
	for i, v := range memoryVictims {
		stride := map[string]int{"daemon": 90, "keeper": 16}[v.steps]
		for j, a := range memoryActs {
			switch {
			case soak && v.program == "":
				stride = 1
			case soak:
				stride = 3
			case i%len(memoryActs) != j: // each with each under soak
				continue
			case os.Getuid() != 0 && v.program != "": // root kills these
				continue
			}
			t.Run(v.name+"/"+a.name, func(t *testing.T) {
				t.Parallel()
				c := newCrash(t, bin, v.steps)
				c.env = append(c.env, "PANDO_BACKEND=gvisor")
				for _, name := range []string{"pando-runsc", "pando-guest"} {
					at, err := filepath.Abs("../bin/" + name)
					c.must(err)
					c.must(os.Symlink(at, filepath.Join(filepath.Dir(c.bin), name)))
				}
				m := &memoryCrash{crash: c, act: a, program: v.program, others: v.others}
				m.all(1+(7*i+3*j)%stride, stride) // each begins elsewhere
			})
		}
	}
}

// memoryCrash is a host with cell x.
type memoryCrash struct {
	*crash
	act     memoryAct
	program string
	others  bool
	id      string // of the cell
}

func (m *memoryCrash) all(first, stride int) {
	m.write("f", "old\n")
	began, tried := time.Now(), 0
	for n := first; ; n += stride {
		if n > 2000 {
			m.t.Fatal("the act never comes to its end")
		}
		m.pando("run", "--cell", "x", "--", "sh", "-c", counter, "sh", "41")
		m.pando("checkpoint", "x")
		m.id = m.cell("x").ID
		step, ok, o := m.interrupted(n)
		tried++
		if !ok && o.code != 0 {
			m.t.Fatalf("uninterrupted, it ends with %d:\n%s", o.code, o.stderr)
		}
		m.afterwards(fmt.Sprintf("killed at step %d (%s)", n, step), ok, o)
		if m.t.Failed() || !ok {
			break
		}
	}
	m.t.Logf("%d steps tried in %v", tried, time.Since(began).Round(time.Millisecond))
}

// interrupted runs the act, and kills the victim at the n-th step.
func (m *memoryCrash) interrupted(n int) (step string, ok bool, o outcome) {
	if m.program == "" {
		m.arm(n)
		defer m.arm(0)
		o = m.act.do(m.host)
		for range 50 { // what goes on behind it
			if step, ok = m.hit(); ok {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		return step, ok, o
	}
	m.set(strconv.Itoa(n) + " wait")
	defer m.arm(0)
	done := make(chan bool)
	go func() {
		defer close(done)
		o = m.act.do(m.host)
	}()
	for over := false; !ok && !over; {
		select {
		case <-done:
			over = true
		case <-time.After(time.Millisecond):
		}
		if s := strings.TrimSpace(m.readAt(m.file)); s != "" && !strings.HasSuffix(s, " wait") {
			step, ok = s, true
		}
	}
	if ok {
		for _, p := range m.victims() {
			kill(p)
		}
		m.arm(0)
	}
	<-done
	return step, ok, o
}

// victims finds the processes of gVisor: of the cell, or of all others.
func (m *memoryCrash) victims() (pids []int) {
	ids, _ := filepath.Glob(m.state("cells", "c-*"))
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		b, err := os.ReadFile(d + "/cmdline")
		if args := strings.Split(string(b), "\x00"); err != nil || args[0] != m.program {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(d))
		id := m.cellOf(pid, ids)
		if id != "" && (id == m.id) != m.others {
			pids = append(pids, pid)
		}
	}
	return pids
}

// cellOf returns the cell of a process, by its ancestors.
func (m *memoryCrash) cellOf(pid int, ids []string) string {
	for pid > 1 {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		for _, id := range ids {
			if id = filepath.Base(id); strings.TrimSpace(string(comm)) == id[:commLength] {
				return id
			}
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return ""
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		pid, _ = strconv.Atoi(fields[1])
	}
	return ""
}

// afterwards checks that the source is complete, that it lives unless a process that it needs
// was killed, that every listed cell is complete, that the act can be repeated, and that nothing
// is left at the end.
func (m *memoryCrash) afterwards(when string, hit bool, o outcome) {
	h := m.host
	bad := func(format string, args ...any) {
		h.t.Helper()
		h.t.Errorf("%s: %s", when, fmt.Sprintf(format, args...))
	}
	keeper := keeperOf(m.work, m.id)
	alone := hit && m.program != "" && !m.others // what the source lives by was killed
	counts := false
	for _, cl := range h.cells() {
		a := h.try("exec", cl.ID, "--", "sh", "-c", ask)
		said := strings.TrimSpace(a.out)
		switch {
		case cl.State == "running" && said == "41":
			counts = counts || cl.ID == m.id
		case cl.ID == m.id && (alone || keeper == 0 || hit && m.act.name == "restore") && a.code == 9: // it has its files
			if got := strings.TrimSpace(h.inCell(cl.ID, "cat f")); got != "old" {
				bad("the cell's file says %q", got)
			}
		case cl.ID != m.id && hit && m.others && a.code == 9: // it had come to be, and its kernel was killed
		default:
			bad("cell %s (%s, %s) says %q: exit code %d, %s; the act: %d, %s%s", cl.Name, cl.State, cl.Cause, said, a.code, a.stderr, o.code, o.out, o.stderr)
		}
		if cl.ID != m.id {
			h.pando("rm", "--yes", cl.ID)
		}
	}
	if v := h.verify(); !v.OK {
		bad("receipts: %+v", v.Problems)
	}
	if !slices.ContainsFunc(h.runs(), func(r api.Run) bool { return r.Cell == m.id }) {
		bad("the run is gone")
	}
	if hit && o.code != 0 && !strings.HasPrefix(o.stderr, "pando: ") {
		bad("it failed without a reason: %q", o.stderr)
	}
	if !counts {
		h.pando("exec", "x", "--", "sh", "-c", "rm -f /tmp/ask; "+counter, "sh", "42")
	}
	if again := m.act.do(h); again.code != 0 {
		bad("a second time it ends with %d: %s", again.code, again.stderr)
	}
	for _, cl := range h.cells() {
		if a := h.try("exec", cl.ID, "--", "sh", "-c", ask); cl.State != "running" || strings.TrimSpace(a.out) != m.act.next {
			bad("after the second time cell %s (%s) says %q: exit code %d, %s", cl.Name, cl.State, a.out, a.code, a.stderr)
		}
		if o := h.try("rm", "--yes", cl.ID); o.code != 0 {
			bad("cell %s can't be removed: %s", cl.ID, o.stderr)
		}
	}
	h.pando("gc")
	if left, _ := filepath.Glob(m.state("memory", "*")); len(left) > 0 {
		bad("images of memory are left over: %s", strings.Join(left, " "))
	}
	if left := h.leftovers(); len(left) > 0 {
		bad("left over: %s", strings.Join(left, "; "))
	}
	if left := m.files(); len(left) > 0 {
		bad("files are left over: %s", strings.Join(left, " "))
	}
}
