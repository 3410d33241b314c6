package e2e

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/need"
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
// it renews on SIGUSR1. Those that begin slowly are first: where the processor is emulated
// each has it for itself until it draws.
var drawers = []struct {
	name, title, tool, build, run string
	renews                        []string
}{
	{"python", "Python", "/usr/bin/python3", "", "/usr/bin/python3 draw.py", []string{"numpy.random", "random", "ssl.RAND_bytes"}},
	{"ruby", "Ruby", "ruby", "", "ruby draw.rb", []string{"Kernel#rand", "OpenSSL::Random"}},
	{"java", "Java", "javac", "javac Draw.java", "java -XX:TieredStopAtLevel=1 -Xshare:auto Draw", nil},
	{"node", "Node", "node", "", "node draw.js", nil},
	{"go", "Go", "go", "CGO_ENABLED=0 go build -o draw-go draw.go", "./draw-go", nil},
	{"php", "PHP", "php", "", "php draw.php", []string{"mt_rand"}},
	{"c", "C", "gcc", "gcc -o draw-c draw.c -lcrypto", "./draw-c", []string{"RAND_bytes", "random"}},
	{"perl", "Perl", "perl", "", "perl draw.pl", []string{"rand"}},
	{"bash", "bash", "bash", "", "bash draw.sh", []string{"RANDOM"}},
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
// documentation says what was measured, and nothing else. PANDO_UPDATE=1 writes it.
func TestX09RandomnessInCopies(t *testing.T) {
	table := readTable(t)
	for _, backend := range []string{"namespace", "gvisor", "microvm"} {
		t.Run(backend, func(t *testing.T) {
			if backend != "namespace" && !hasGvisor() {
				t.Skip("needs bin/pando-runsc and bin/pando-guest: make")
			}
			if backend == "microvm" {
				need.Program(t, "qemu-system-x86_64")
				if _, err := vmmboot.Find(vmmboot.Images, vmmboot.Modules); err != nil {
					t.Skip("needs a kernel for machines")
				}
			}
			h := newHost(t)
			h.env = append(h.env, "PATH="+filepath.Dir(h.bin)+":/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
			h.must(os.CopyFS(h.src, os.DirFS("testdata/x09-draw")))
			if backend != "namespace" {
				measurePrograms(t, h, backend, table)
			}
			measureInterpreter(t, h, backend, "python", "Python of `pando eval`", "interp.py", "draws()", table)
			if backend != "namespace" { // which does not copy threads
				measureInterpreter(t, h, backend, "node", "Node of `pando eval`", "interp.js", "draws()", table)
			}
		})
	}
}

// measurePrograms copies a cell in which all programs draw: as they are, and with a signal
// to those that have a handler.
func measurePrograms(t *testing.T, h *host, backend string, table *table) {
	var start, logs, told []string
	renews, titles := map[string][]string{}, map[string]string{}
	for _, d := range drawers {
		if _, err := exec.LookPath(d.tool); err != nil {
			t.Logf("not measured: %s, %v", d.title, err)
			continue
		}
		if d.build != "" {
			h.sh(d.build)
		}
		log := "log-" + d.name
		start = append(start, fmt.Sprintf("setsid %s >out-%s 2>&1 & echo $! >pid-%[2]s; until test -s %[3]s; do sleep 0.2; done", d.run, d.name, log))
		logs, titles[log], renews[log] = append(logs, log), d.title, d.renews
		if d.renews != nil {
			told = append(told, "$(cat pid-"+d.name+")")
		}
	}
	h.pando("run", "--backend", backend, "--cell", "n", "--", "sh", "-c", strings.Join(start, "\n"))
	count := "for f in " + strings.Join(logs, " ") + "; do wc -l <$f >$f.before; done"
	h.pando("branch", "n", "-n", "2", "--name", "b", "--at-fork", count)
	for log, d := range drawnBy(t, h, logs, "n", "b-1", "b-2") {
		for _, g := range slices.Sorted(maps.Keys(d.all[0])) {
			table.note(t, titles[log], g, backend, verdict(t, titles[log]+" "+g, d.before, d.all[0][g], d.all[1][g], d.all[2][g]))
		}
	}
	h.pando("rm", "b-1", "b-2", "--yes")
	table.write(t)
	logs = slices.DeleteFunc(logs, func(log string) bool { return renews[log] == nil })
	h.pando("branch", "n", "-n", "2", "--name", "r", "--at-fork", count+"; kill -USR1 "+strings.Join(told, " "))
	for log, d := range drawnBy(t, h, logs, "n", "r-1", "r-2") {
		for _, g := range renews[log] {
			if len(d.all[0][g]) > 0 { // numpy may not be there
				name := titles[log] + ", told by `--at-fork`"
				table.note(t, name, g, backend, verdict(t, name+" "+g, d.before, d.all[0][g], d.all[1][g], d.all[2][g]))
			}
		}
	}
	h.pando("rm", "n", "r-1", "r-2", "--yes")
	table.write(t)
}

// drawn is what a program has drawn in a source and in its copies.
type drawn struct {
	all    []draws
	before int // how many values of each generator the copies had at first
}

// drawnBy waits until the programs have gone on in a source and its copies, and returns
// what each has drawn. An emulated machine takes long for each command: there is one.
func drawnBy(t *testing.T, h *host, logs []string, source string, copies ...string) iter.Seq2[string, drawn] {
	t.Helper()
	out := map[string]*drawn{}
	lines := map[string]int{}
	for _, c := range copies {
		for i, n := range strings.Fields(h.inCell(c, "for f in "+strings.Join(logs, " ")+"; do cat $f.before; done")) {
			k, err := strconv.Atoi(n)
			if err != nil {
				t.Fatal(err)
			}
			lines[logs[i]] = max(lines[logs[i]], k)
		}
	}
	for _, c := range append([]string{source}, copies...) {
		var script strings.Builder
		for _, log := range logs {
			fmt.Fprintf(&script, "g=$(head -n 20 %[1]s | cut -d' ' -f1 | sort -u | wc -l); until test $(wc -l <%[1]s) -ge $((%[2]d+15*g)); do sleep 0.5; done; echo == %[1]s; cat %[1]s\n", log, lines[log])
		}
		for part := range strings.SplitSeq(h.inCell(c, script.String()), "== ") {
			log, text, _ := strings.Cut(part, "\n")
			if !slices.Contains(logs, log) {
				continue
			}
			if out[log] == nil {
				out[log] = &drawn{}
			}
			out[log].all = append(out[log].all, parseDraws(text))
		}
	}
	return func(yield func(string, drawn) bool) {
		for _, log := range logs {
			d := out[log]
			d.before = lines[log] / len(d.all[0])
			if !yield(log, *d) {
				return
			}
		}
	}
}

// measureInterpreter copies a cell's interpreter that has drawn.
func measureInterpreter(t *testing.T, h *host, backend, kind, title, setup, draw string, table *table) {
	if _, err := exec.LookPath(map[string]string{"python": "/usr/bin/python3", "node": "node"}[kind]); err != nil {
		t.Logf("not measured: %s, %v", title, err)
		return
	}
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
	h.pando("template", "rm", "warm-"+kind, "--cascade")
	table.write(t)
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
