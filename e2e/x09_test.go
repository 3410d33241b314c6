package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
	vmmboot "github.com/pando-dev/pando/internal/vmm/boot"
)

// randomnessDoc has the table of what TestX09RandomnessInCopies has measured.
const randomnessDoc = "../docs/reference/randomness.md"

// What a generator gives in copies.
const (
	fresh     = "fresh"
	inherited = "**inherited**"
	atFirst   = "**inherited at first**"
)

// drawers are the programs of testdata/x09-draw, each with the tool that it needs of the
// host, what is done with it here, the command that a cell runs, and the generators that
// it renews on SIGUSR1. openssl is the generator that a shared OpenSSL is behind.
type drawer struct {
	name, title, tool, build, run string
	renews                        []string
	openssl                       string
}

var drawers = []drawer{
	{"python", "Python", "/usr/bin/python3", "", "/usr/bin/python3 draw.py", []string{"numpy.random", "random", "ssl.RAND_bytes"}, "ssl.RAND_bytes"},
	{"ruby", "Ruby", "ruby", "", "ruby draw.rb", []string{"Kernel#rand", "OpenSSL::Random"}, "OpenSSL::Random"},
	{"java", "Java", "javac", "javac Draw.java", "java -XX:TieredStopAtLevel=1 -Xshare:auto Draw", nil, ""},
	{"node", "Node", "node", "", "node draw.js", nil, ""},
	{"go", "Go", "go", "CGO_ENABLED=0 go build -o draw-go draw.go", "./draw-go", nil, ""},
	{"php", "PHP", "php", "", "php draw.php", []string{"mt_rand"}, "openssl_random_pseudo_bytes"},
	{"c", "C", "gcc", "gcc -o draw-c draw.c -lcrypto", "./draw-c", []string{"RAND_bytes", "random"}, "RAND_bytes"},
	{"perl", "Perl", "perl", "", "perl draw.pl", []string{"rand"}, ""},
	{"bash", "bash", "bash", "", "bash draw.sh", []string{"RANDOM"}, ""},
}

// draws are the values of each generator, in their order.
type draws map[string][]string

func parseDraws(text string) draws {
	d := draws{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok && strings.HasSuffix(line, "\n") {
			d[name] = append(d[name], value)
		}
	}
	return d
}

// verdict compares what a source and its copies have drawn. before is how many values each
// had drawn when it was copied, at the least; one more may have been under way.
func verdict(t *testing.T, name string, before int, all ...[]string) string {
	t.Helper()
	sure := before + 1
	n := len(slices.MinFunc(all, func(a, b []string) int { return cmp.Compare(len(a), len(b)) }))
	if n < sure+10 {
		t.Fatalf("%s: %d values are too few, %d of them from before", name, n, before)
	}
	verdict := fresh
	for i, a := range all {
		for _, b := range all[:i] {
			same := 0
			for same < n && a[same] == b[same] {
				same++
			}
			if same == 0 && before > 2 {
				t.Fatalf("%s: a copy has nothing of what was drawn before: %s, %s", name, a[0], b[0])
			}
			switch {
			case same == n:
				return inherited
			case same > sure:
				verdict = atFirst
			}
			for _, v := range a[sure:n] {
				if slices.Contains(b[sure:n], v) && verdict == fresh {
					verdict = inherited
				}
			}
		}
	}
	return verdict
}

// A source and its copies draw, and what they draw is compared: the table of the
// documentation says what was measured, and nothing else. PANDO_UPDATE=1 writes it. Each
// program has a cell of its own, since a machine that is emulated takes long for more:
// -run TestX09RandomnessInCopies/microvm/java measures one.
func TestX09RandomnessInCopies(t *testing.T) {
	table := readTable(t)
	for _, backend := range []string{"namespace", "gvisor", "microvm"} {
		t.Run(backend, func(t *testing.T) {
			if backend != "namespace" && !hasGvisor() {
				t.Skip("needs bin/pando-runsc and bin/pando-guest: make")
			}
			if backend == "microvm" {
				testenv.Program(t, "qemu-system-x86_64")
				if _, err := vmmboot.Find(vmmboot.Images, vmmboot.Modules); err != nil {
					t.Skip("needs a kernel for machines")
				}
			}
			measure := func(name, tool, title string, f func(t *testing.T, h *host)) {
				if _, err := exec.LookPath(tool); err != nil {
					t.Logf("not measured: %s, %v", title, err)
					return
				}
				t.Run(name, func(t *testing.T) {
					h := newHost(t)
					h.env = append(h.env, "PATH="+filepath.Dir(h.bin)+":/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
					h.must(os.CopyFS(h.src, os.DirFS("testdata/x09-draw")))
					f(t, h)
					table.write(t)
				})
			}
			const python, node = "Python of `pando eval`", "Node of `pando eval`"
			measure("eval-python", "/usr/bin/python3", python, func(t *testing.T, h *host) {
				measureInterpreter(t, h, backend, "python", python, "interp.py", "draws()", table)
			})
			if backend == "namespace" { // which copies no threads, and no other programs
				return
			}
			measure("eval-node", "node", node, func(t *testing.T, h *host) {
				measureInterpreter(t, h, backend, "node", node, "interp.js", "draws()", table)
			})
			for _, d := range drawers {
				measure(d.name, d.tool, d.title, func(t *testing.T, h *host) { measureProgram(t, h, backend, d, table) })
			}
		})
	}
}

// measureProgram copies a cell in which a program draws: while the cell goes on, out of a
// checkpoint and back to it, and with a signal to a program that has a handler. What is
// said of the copies must be so.
func measureProgram(t *testing.T, h *host, backend string, d drawer, table *table) {
	if d.build != "" {
		h.sh(d.build)
	}
	log := "log-" + d.name
	h.pando("run", "--backend", backend, "--cell", "n", "--", "sh", "-c",
		fmt.Sprintf("setsid %s >out 2>&1 & echo $! >pid; until test -s %s; do kill -0 $! || { cat out; exit 1; }; sleep 0.2; done", d.run, log))
	pid := strings.TrimSpace(h.inCell("n", "cat pid"))
	count := "wc -l <" + log + " >before"

	b := decoded[api.BranchResult](h, "branch", "n", "-n", "2", "--name", "b", "--at-fork", count)
	branched := verdicts(t, d.title, drawnBy(t, h, log, "n", "b-1", "b-2"))
	for _, g := range slices.Sorted(maps.Keys(branched)) {
		table.note(t, d.title, g, backend, branched[g])
	}
	said(t, h, d, pid, branched, b.Inherited, b.Renewed, "b-1", "b-2")
	h.pando("rm", "b-1", "b-2", "--yes")

	c := decoded[api.Checkpoint](h, "checkpoint", "n")
	at := fmt.Sprintf("n@%d", c.Number)
	f := decoded[api.ForkResult](h, "fork", at, "-n", "2", "--name", "f", "--at-fork", count)
	r := decoded[api.RestoreResult](h, "restore", at, "-y", "--at-fork", count)
	if r.Memory != api.MemoryRestored {
		t.Fatalf("%s: restored without memory: %s", at, r.Memory)
	}
	forked := verdicts(t, d.title, drawnBy(t, h, log, "n", "f-1", "f-2"))
	if !maps.Equal(forked, branched) {
		t.Errorf("%s: in branches %v, in copies of a checkpoint %v", d.title, branched, forked)
	}
	said(t, h, d, pid, forked, f.Inherited, f.Renewed, "f-1", "f-2")
	said(t, h, d, pid, forked, r.Inherited, r.Renewed) // its cell is no copy, and has no certificate
	h.pando("rm", "f-1", "f-2", "--yes")

	if d.renews == nil {
		return
	}
	h.pando("branch", "n", "-n", "2", "--name", "r", "--at-fork", count+"; kill -USR1 $(cat pid)")
	told := verdicts(t, d.title, drawnBy(t, h, log, "n", "r-1", "r-2"))
	for _, g := range d.renews {
		if told[g] != "" { // numpy may not be there
			table.note(t, d.title+", told by `--at-fork`", g, backend, told[g])
		}
	}
}

// said compares what is said of copies with what their program drew, which has the number
// pid there: what it has in common with others is named as inherited, in the output of the
// command that makes them and in each certificate, and what is named as renewed is fresh.
func said(t *testing.T, h *host, d drawer, pid string, verdicts map[string]string, inherited, renewed []string, copies ...string) {
	t.Helper()
	of := func(lines []string) []string {
		return slices.DeleteFunc(slices.Clone(lines), func(l string) bool {
			_, numbers, ok := strings.Cut(l, ", process")
			return !ok || !slices.Contains(strings.FieldsFunc(numbers, func(r rune) bool { return r < '0' || r > '9' }), pid)
		})
	}
	t.Logf("%s in %v, process %s: %v; inherited %q, renewed %q", d.title, copies, pid, verdicts, of(inherited), of(renewed))
	for g, v := range verdicts {
		if v != fresh && len(of(inherited)) == 0 {
			t.Errorf("%s %s is %s in %v, and nothing says so: inherited %q, renewed %q", d.title, g, v, copies, inherited, renewed)
		}
		if d.openssl == g && (v == fresh) != (len(of(renewed)) > 0) {
			t.Errorf("%s %s is %s in %v, and what is named as renewed is %q", d.title, g, v, copies, renewed)
		}
	}
	for _, c := range copies {
		var cert cell.Certificate
		h.must(json.Unmarshal(h.cell(c).Certificate, &cert))
		if !slices.Equal(of(cert.Inherited()), of(inherited)) || !slices.Equal(of(cert.Renewed()), of(renewed)) {
			t.Errorf("%s: the certificate has inherited %q, renewed %q; its maker was told %q, %q", c, cert.Inherited(), cert.Renewed(), inherited, renewed)
		}
	}
}

// verdicts is verdict of each generator of a program.
func verdicts(t *testing.T, title string, d drawn) map[string]string {
	t.Helper()
	out := map[string]string{}
	for g := range d.all[0] {
		out[g] = verdict(t, title+" "+g, d.before, d.all[0][g], d.all[1][g], d.all[2][g])
	}
	return out
}

// drawn is what a program has drawn in a source and in its copies.
type drawn struct {
	all    []draws
	before int // how many values of each generator the copies had at first
}

// drawnBy waits until a program has gone on in a source and its copies, and returns what
// each has drawn. The file "before" of each copy has how many lines it began with.
func drawnBy(t *testing.T, h *host, log string, cells ...string) (out drawn) {
	t.Helper()
	lines := 0
	for _, c := range cells[1:] {
		n, err := strconv.Atoi(strings.TrimSpace(h.inCell(c, "cat before")))
		if err != nil {
			t.Fatal(err)
		}
		lines = max(lines, n)
	}
	for _, c := range cells {
		script := fmt.Sprintf("g=$(head -n 20 %[1]s | cut -d' ' -f1 | sort -u | wc -l); until test $(wc -l <%[1]s) -ge $((%[2]d+15*g)); do sleep 0.5; done; cat %[1]s", log, lines)
		out.all = append(out.all, parseDraws(h.inCell(c, script)))
	}
	out.before = lines / len(out.all[0])
	return out
}

// measureInterpreter copies a cell's interpreter that has drawn.
func measureInterpreter(t *testing.T, h *host, backend, kind, title, setup, draw string, table *table) {
	h.pando("template", "build", "warm-"+kind, "--backend", backend, "--warm", kind, "--setup", "@"+filepath.Join(h.src, setup))
	h.pando("fork", "warm-"+kind, "-n", "2", "--name", "i")
	h.pando("branch", "i-1", "-n", "1", "--name", "j")
	var all []draws
	for _, c := range []string{"i-1", "i-2", "j"} {
		all = append(all, parseDraws(h.pando("eval", c, draw)))
	}
	for _, g := range slices.Sorted(maps.Keys(all[0])) {
		table.note(t, title, g, backend, verdict(t, title+" "+g, -1, all[0][g], all[1][g], all[2][g]))
	}
}

// table is the one of randomnessDoc.
type table struct {
	doc, after string   // around it
	rows       []*row   // as they are there
	update     bool     // rows are what was measured
	columns    []string // of backends
}

type row struct {
	program, generator string
	cells              map[string]string // by backend
}

const tableHead = "| program | numbers from | namespace | gVisor | microVM |\n|---|---|---|---|---|\n"

func readTable(t *testing.T) *table {
	t.Helper()
	b, err := os.ReadFile(randomnessDoc)
	if err != nil {
		t.Fatal(err)
	}
	doc, rest, ok := strings.Cut(string(b), tableHead)
	if !ok {
		t.Fatalf("%s has no table that begins with %q", randomnessDoc, tableHead)
	}
	x := &table{doc: doc, update: os.Getenv("PANDO_UPDATE") != "", columns: []string{"namespace", "gvisor", "microvm"}}
	for {
		line, more, _ := strings.Cut(rest, "\n")
		f := strings.Split(line, "|")
		if len(f) != 7 {
			break
		}
		r := &row{strings.TrimSpace(f[1]), strings.Trim(strings.TrimSpace(f[2]), "`"), map[string]string{}}
		for i, c := range x.columns {
			r.cells[c] = strings.TrimSpace(f[3+i])
		}
		x.rows, rest = append(x.rows, r), more
	}
	x.after = rest
	return x
}

// note compares what was measured with what the table says.
func (x *table) note(t *testing.T, program, generator, backend, measured string) {
	t.Helper()
	i := slices.IndexFunc(x.rows, func(r *row) bool { return r.program == program && r.generator == generator })
	if i < 0 {
		if !x.update {
			t.Errorf("%s has no row for %s %s, which is %s in copies on %s", randomnessDoc, program, generator, measured, backend)
			return
		}
		i = len(x.rows)
		x.rows = append(x.rows, &row{program, generator, map[string]string{"namespace": notCopied, "gvisor": "", "microvm": ""}})
	}
	if was := x.rows[i].cells[backend]; was != measured {
		switch {
		case x.update:
		case was == notMeasured: // which claims nothing
			t.Logf("%s does not say that %s %s is %s in copies on %s", randomnessDoc, program, generator, measured, backend)
		default:
			t.Errorf("%s says that %s %s is %q in copies on %s; it is %s", randomnessDoc, program, generator, was, backend, measured)
		}
		x.rows[i].cells[backend] = measured
	}
}

// What the table says where a backend makes no copies of such a program, and where it has
// not been measured yet.
const (
	notCopied   = "not copied"
	notMeasured = "not measured"
)

func (x *table) write(t *testing.T) {
	if !x.update || t.Failed() {
		return
	}
	var b bytes.Buffer
	b.WriteString(x.doc + tableHead)
	for _, r := range x.rows {
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s |\n", r.program, r.generator, cmp.Or(r.cells["namespace"], notMeasured), cmp.Or(r.cells["gvisor"], notMeasured), cmp.Or(r.cells["microvm"], notMeasured))
	}
	b.WriteString(x.after)
	if err := os.WriteFile(randomnessDoc, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
