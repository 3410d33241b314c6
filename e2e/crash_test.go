package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/testenv"
	"golang.org/x/sys/unix"
)

// An act is an action that is interrupted at each of its steps.
type act struct {
	name    string
	prepare func(h *host, c string) // prepares cell c for the act
	do      func(h *host, c string) outcome
	may     []string // possible contents of the cell's file f afterwards; "-" when the cell may be removed
	applies string   // possible contents of the source's file f afterwards, if the act changes it
	root    bool     // only for root
	needs   string   // a program
	asks    string   // code evaluated in the cells afterwards…
	says    []string // …and its possible results
	keeps   bool     // a template must exist afterwards
	imports bool     // it imports the source once more
	settles bool     // a run of it that succeeded does not wait for a decision
}

// acts are the actions named in issues and FAILURES. Each begins with the source's f containing
// "old"; runs write "new".
var acts = append([]act{
	{name: "run", may: []string{"-", "old", "new"}, prepare: func(h *host, c string) {}, do: func(h *host, c string) outcome {
		return h.try("run", "--cell", c, "--", "sh", "-c", "echo new > f")
	}},
	{name: "run that is applied", may: []string{"-", "old", "new"}, applies: "new", settles: true, prepare: func(h *host, c string) {}, do: func(h *host, c string) outcome {
		return h.try("run", "--cell", c, "--on-success", "apply", "--", "sh", "-c", "echo new > f")
	}},
	{name: "run that fails", may: []string{"old", "new"}, prepare: made, do: func(h *host, c string) outcome {
		return h.try("run", "--cell", c, "--", "sh", "-c", "echo new > f; exit 3")
	}},
	{name: "run without a name", may: []string{"-"}, prepare: func(h *host, c string) {}, do: func(h *host, c string) outcome {
		return h.try("run", "--", "sh", "-c", "echo new > f")
	}},
	{name: "run with a check", may: []string{"-", "old", "new"}, prepare: made, do: func(h *host, c string) outcome {
		return h.try("run", "--cell", c, "--check", "grep new f", "--", "sh", "-c", "echo new > f")
	}},
	{name: "run on a disk of its own", root: true, may: []string{"-", "old", "new"}, prepare: func(h *host, c string) {}, do: func(h *host, c string) outcome {
		return h.try("run", "--cell", c, "--disk", "8M", "--", "sh", "-c", "echo new > f")
	}},
	{name: "run in an image", needs: "busybox", may: []string{"-", "old", "new"}, prepare: unpulled, do: func(h *host, c string) outcome {
		return h.try("run", "--cell", c, "--image", "oci:"+filepath.Join(h.work, "layout"), "--", "sh", "-c", "echo new > f; echo new > /etc/f")
	}},
	{name: "exec", may: []string{"old", "new"}, prepare: made, do: func(h *host, c string) outcome {
		return h.try("exec", c, "--", "sh", "-c", "echo new > f")
	}},
	{name: "checkpoint", may: []string{"new"}, prepare: func(h *host, c string) {
		made(h, c)
		h.inCell(c, "echo new > f")
	}, do: func(h *host, c string) outcome { return h.try("checkpoint", c, "-m", "here") }},
	{name: "checkpoint under a process", may: []string{"new"}, prepare: func(h *host, c string) {
		made(h, c)
		h.inCell(c, "echo new > f; sleep 300 >/dev/null 2>&1 &")
	}, do: func(h *host, c string) outcome { return h.try("checkpoint", c) }},
	{name: "restore", may: []string{"old", "new"}, prepare: worked, do: func(h *host, c string) outcome {
		return h.try("restore", c+"@1", "--yes")
	}},
	{name: "discard", may: []string{"old", "new"}, prepare: worked, do: func(h *host, c string) outcome { return h.try("discard", c) }},
	{name: "accept", may: []string{"new"}, prepare: worked, do: func(h *host, c string) outcome { return h.try("accept", c) }},
	{name: "accept and apply", may: []string{"new"}, applies: "new", prepare: worked, do: func(h *host, c string) outcome {
		return h.try("accept", c, "--apply")
	}},
	{name: "accept and merge", may: []string{"new"}, imports: true, applies: "new", prepare: func(h *host, c string) {
		h.must(os.Chmod(filepath.Join(h.src, "f"), 0o644))
		worked(h, c)
		h.must(os.Chmod(filepath.Join(h.src, "f"), 0o755))
	}, do: func(h *host, c string) outcome { return h.try("accept", c, "--apply", "--merge") }},
	{name: "accept while a run goes on", may: []string{"new"}, applies: "new", prepare: func(h *host, c string) {
		h.pando("run", "--detach", "--cell", c, "--", "sh", "-c", "echo new > f; touch $HOME/half; while ! test -e $HOME/over; do sleep 0.02; done")
		h.inCell(c, "while ! test -e $HOME/half; do sleep 0.02; done")
	}, do: func(h *host, c string) outcome {
		o := h.try("accept", c, "--apply")
		for range 3 { // the daemon may end in this, too
			if h.try("exec", c, "--", "sh", "-c", "touch $HOME/over").code == 0 {
				break
			}
		}
		h.try("wait", c)
		return o
	}},
	{name: "revert", may: []string{"new"}, applies: "old", prepare: applied, do: func(h *host, c string) outcome { return h.try("revert", c) }},
	{name: "undo of what was applied", may: []string{"old", "new"}, applies: "old", prepare: applied, do: func(h *host, c string) outcome {
		return h.try("undo", c)
	}},
	{name: "sync", may: []string{"old", "new"}, imports: true, prepare: func(h *host, c string) {
		made(h, c)
		h.write("f", "new\n")
	}, do: func(h *host, c string) outcome { return h.try("sync", c) }},
	{name: "discard of the rest", may: []string{"new"}, prepare: func(h *host, c string) {
		made(h, c)
		h.pando("run", "--cell", c, "--", "sh", "-c", "echo new > f; echo more > other")
		h.pando("accept", c, "--apply", "--", "f")
	}, do: func(h *host, c string) outcome { return h.try("discard", c) }},
	{name: "discard of a kept result", may: []string{"old"}, prepare: func(h *host, c string) {
		made(h, c)
		h.try("run", "--cell", c, "--", "sh", "-c", "echo new > f; exit 3")
	}, do: func(h *host, c string) outcome { return h.try("discard", h.runs()[0].ID, "--yes") }},
	{name: "fork", may: []string{"new"}, prepare: worked, do: func(h *host, c string) outcome {
		return h.try("fork", c, "-n", "2", "--name", c+"-f")
	}},
	{name: "rm", may: []string{"-", "new"}, prepare: worked, do: func(h *host, c string) outcome { return h.try("rm", "--yes", c) }},
}, warmActs...)

func made(h *host, c string) { h.pando("run", "--cell", c, "--", "true") }
func applied(h *host, c string) {
	worked(h, c)
	h.pando("accept", c, "--apply")
}
func worked(h *host, c string) { h.pando("run", "--cell", c, "--", "sh", "-c", "echo new > f") }

// stride is the number of steps from one interruption to the next: 1 in the soak, which
// interrupts at all, or E2E_STRIDE; more for an ordinary user, tested second.
func stride() int {
	n, err := strconv.Atoi(os.Getenv("E2E_STRIDE"))
	switch {
	case err == nil:
		return n
	case os.Getenv("E2E_SOAK") != "":
		return 1
	case os.Geteuid() != 0:
		return 28
	}
	return 14
}

// faultsBinary is pando with failpoints.
func faultsBinary(t *testing.T) string {
	t.Helper()
	if bin := os.Getenv("PANDO_FAULTS_BIN"); bin != "" {
		return bin
	}
	bin, err := binary(t.TempDir(), "-tags", "faults")
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

func TestF19KillAtEveryStep(t *testing.T) {
	t.Parallel()
	bin := faultsBinary(t)
	for _, role := range []string{"daemon", "keeper"} {
		for _, a := range acts {
			if a.root && os.Geteuid() != 0 {
				continue
			}
			if _, err := exec.LookPath(a.needs); a.needs != "" && err != nil {
				continue
			}
			t.Run(role+"/"+strings.ReplaceAll(a.name, " ", "-"), func(t *testing.T) {
				t.Parallel()
				newCrash(t, bin, role).all(a)
			})
		}
	}
}

// crash is a host with a daemon or keepers that can be killed at a step.
type crash struct {
	*host
	role string
	file string // path of the step counter
	src0 string
	exit int // the exit code of an act of each that comes to its end
}

func newCrash(t *testing.T, bin, role string) *crash {
	h := newHostOf(t, bin)
	dir := filepath.Join(h.work, "bin")
	h.must(os.Mkdir(dir, 0o755))
	for _, name := range []string{"pando", "pandod"} {
		from, to := filepath.Join(filepath.Dir(bin), name), filepath.Join(dir, name)
		if err := os.Link(from, to); err != nil {
			b, err := os.ReadFile(from)
			h.must(err)
			h.must(os.WriteFile(to, b, 0o755))
		}
	}
	h.bin = filepath.Join(dir, "pando")
	c := &crash{host: h, role: role, file: filepath.Join(dir, "pandod."+role)} // by its path pandod is known
	h.must(os.WriteFile(c.file, nil, 0o666))
	h.must(os.Chmod(c.file, 0o666)) // a keeper of root runs as another user
	h.must(os.Chmod(h.work, 0o755))
	return c
}

// arm makes the process end at the n-th step from now; 0 disarms.
func (c *crash) arm(n int) { c.set(strconv.Itoa(n)) }

// set writes the file of the steps under its lock: a process that counts a step in this moment
// would write over it, and wait for ever.
func (c *crash) set(text string) {
	f, err := os.OpenFile(c.file, os.O_RDWR|os.O_CREATE, 0o666)
	c.must(err)
	defer f.Close()
	c.must(unix.Flock(int(f.Fd()), unix.LOCK_EX))
	c.must(f.Truncate(0))
	_, err = f.WriteString(text)
	c.must(err)
}

// hit returns the step at which a process ended, if one did.
func (c *crash) hit() (step string, ok bool) {
	s := strings.TrimSpace(c.readAt(c.file))
	if _, err := strconv.Atoi(s); err == nil || s == "" {
		return "", false
	}
	return s, true
}

// each interrupts what prepare returns, at one step after another, until it comes to its end. check is told at which it was, and whether the
// act is whole.
func (c *crash) each(prepare func(n int) (do []string), check func(n int, when string, whole bool)) {
	c.t.Helper()
	began, tried := time.Now(), 0
	for n := 1; ; n += stride() {
		if n > 2000 {
			c.t.Fatal("the act never comes to its end")
		}
		do := prepare(n)
		c.arm(n)
		o := c.try(do...)
		step, killed := c.hit()
		c.arm(0)
		tried++
		if !killed && o.code != c.exit {
			c.t.Fatalf("uninterrupted, it ends with %d:\n%s", o.code, o.stderr)
		}
		check(n, fmt.Sprintf("killed at step %d (%s)", n, step), !killed)
		if c.t.Failed() || !killed {
			break
		}
	}
	c.t.Logf("%d steps tried in %v", tried, time.Since(began).Round(time.Millisecond))
}

func (c *crash) all(a act) {
	c.write("f", "old\n")
	c.write("other", "untouched\n")
	c.must(os.Link(filepath.Join(c.src, "other"), filepath.Join(c.src, "twin")))
	began, tried := time.Now(), 0
	for n := 1; ; n += stride() {
		if n > 2000 {
			c.t.Fatal("the act never comes to its end")
		}
		name := fmt.Sprintf("x%d", n)
		if c.read("f") != "old\n" { // an apply went through
			c.write("f", "old\n")
		}
		a.prepare(c.host, name)
		c.src0 = describeDir(c.t, c.src)
		c.arm(n)
		o := a.do(c.host, name)
		step, ok := c.hit()
		for range 50 { // what goes on behind it
			if ok || len(leftOn(c.work)) == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
			step, ok = c.hit()
		}
		c.arm(0)
		tried++
		if !ok { // no daemon began since, which would have: an older import of the source that a newer one replaced
			c.pando("daemon", "stop")
		}
		if !ok && o.code != 0 && !(o.code == 3 && a.name == "run that fails") {
			c.t.Fatalf("uninterrupted, it ends with %d:\n%s", o.code, o.stderr)
		}
		c.afterwards(a, name, fmt.Sprintf("killed at step %d (%s)", n, step))
		if c.t.Failed() || !ok {
			break
		}
	}
	c.t.Logf("%d steps tried in %v", tried, time.Since(began).Round(time.Millisecond))
}

// ended are the runs when a daemon has completed the work of the previous one, and whether it has.
func (h *host) ended() (runs []api.Run, ended bool) {
	h.t.Helper()
	for deadline := time.Now().Add(testenv.Patience()); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		runs = h.runs()
		if !slices.ContainsFunc(runs, func(r api.Run) bool { return r.Phase != "ended" }) {
			return runs, true
		}
	}
	return runs, false
}

// afterwards checks that the interrupted objects are complete, and removes them.
func (c *crash) afterwards(a act, name, when string) {
	h := c.host
	bad := func(format string, args ...any) {
		h.t.Helper()
		h.t.Errorf("%s: %s", when, fmt.Sprintf(format, args...))
	}
	runs, ended := h.ended()
	if !ended {
		bad("a run never ends: %+v", runs[0])
		return
	}
	for _, r := range runs {
		if r.Verdict == "" || r.Receipt == "" {
			bad("run %s has verdict %q and receipt %q; its notes: %q", r.ID, r.Verdict, r.Receipt, r.Notes)
		}
		if a.settles && r.ExitCode != nil && *r.ExitCode == 0 && r.Cause == "" && r.Verdict == "pending" {
			bad("run %s succeeded, and waits; its notes: %q", r.ID, r.Notes)
		}
		if r.Error != nil && !strings.HasPrefix(r.Error.Message, "cannot ") {
			bad("run %s failed without a reason: %+v", r.ID, r.Error)
		}
	}
	if v := h.verify(); !v.OK {
		bad("receipts: %+v", v.Problems)
	}
	c.source(a, bad)
	found := false
	for _, cl := range h.cells() {
		switch {
		case cl.State == "failed" && cl.Cause == "":
			bad("cell %s failed without a cause", cl.Name)
		case cl.State == "failed":
			if o := h.try("restore", cl.ID+"@1", "--yes"); o.code != 0 {
				bad("cell %s failed (%s) and can't be had back: %s", cl.Name, cl.Cause, o.stderr)
			}
		case cl.State != "idle" && cl.State != "running":
			bad("cell %s is %s", cl.Name, cl.State)
		case cl.Name == name || strings.HasPrefix(cl.Name, name+"-f"):
			c.asked(a, cl, bad)
			o := h.try("exec", cl.ID, "--", "cat", "f")
			got := strings.TrimSpace(o.out)
			cut := got == "" && c.role == "keeper" // the command was killed with its keeper, in the middle of writing
			if o.code != 0 || !cut && !slices.Contains(a.may, got) {
				bad("cell %s holds %q: exit code %d, %s", cl.Name, got, o.code, o.stderr)
			}
		}
		found = found || cl.Name == name
		if o := h.try("rm", "--yes", cl.ID); o.code != 0 {
			bad("cell %s can't be removed: %s", cl.ID, o.stderr)
		}
	}
	c.templates(a, bad)
	if !found && !slices.Contains(a.may, "-") {
		bad("the cell is gone")
	}
	if left := h.leftovers(); len(left) > 0 {
		bad("left over: %s", strings.Join(left, "; "))
	}
	if a.imports { // the layers of older imports, which newer ones replaced, go when a daemon begins
		h.pando("daemon", "stop")
		h.cells()
	}
	if left := c.files(); len(left) > 0 {
		bad("files are left over: %s", strings.Join(left, " "))
	}
}

// source checks that the source is unchanged, or changed as by the act.
func (c *crash) source(a act, bad func(string, ...any)) {
	now := describeDir(c.t, c.src)
	if now == c.src0 {
		return
	}
	if a.applies == "" {
		bad("the source was\n%s\nand is\n%s", c.src0, now)
		return
	}
	names, err := os.ReadDir(c.src)
	c.must(err)
	if len(names) != 3 || c.read("f") != a.applies+"\n" || c.read("other") != "untouched\n" {
		bad("the source is neither as before nor as applied:\n%s", now)
	}
}

// files lists what belongs to no cell: there is none any more.
func (c *crash) files() (left []string) {
	for range 100 {
		left, _ = filepath.Glob(c.state("cells", "*"))
		left = append(left, must1(filepath.Glob(filepath.Join(c.images(), "*.partial")))...)
		layers, _ := filepath.Glob(c.state("layers", "*"))
		sources := ""
		for _, n := range must1(filepath.Glob(c.state("sources", "*.json"))) {
			sources += c.readAt(n)
		}
		for _, l := range layers {
			if !strings.Contains(sources, filepath.Base(l)) { // a base is kept
				left = append(left, l)
			}
		}
		if len(left) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return left
}

func must1[T any](v T, _ error) T { return v }
