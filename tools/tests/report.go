package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"
)

// event is one line of go test -json; cmd/test2json documents the fields.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// test names a test; name is empty for a package.
type test struct{ pkg, name string }

func (t test) String() string { return strings.TrimSpace(t.pkg + " " + t.name) }

// A report collects what go test -json prints, of several at once.
type report struct {
	mu      sync.Mutex // held while an event is taken
	out     io.Writer
	said    map[test][]string
	skipped map[test]string
	took    map[test]float64 // seconds, of those that took any
	failed  map[test]string  // the output of what failed; a test without a name is a package
	passed  int
}

func newReport(out io.Writer) *report {
	return &report{out: out, said: map[test][]string{}, skipped: map[test]string{}, took: map[test]float64{}, failed: map[test]string{}}
}

// read takes the events of one go test. A line that is no event is printed.
func (r *report) read(in io.Reader) error {
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		r.line(sc.Bytes())
	}
	return sc.Err()
}

// line takes one line of the output.
func (r *report) line(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var e event
	if err := json.Unmarshal(b, &e); err != nil {
		fmt.Fprintf(r.out, "%s\n", b) // printed past the tests
		return
	}
	r.take(e)
}

func (r *report) take(e event) {
	t := test{strings.TrimPrefix(e.Package, module), e.Test}
	switch e.Action {
	case "output":
		r.said[t] = append(r.said[t], e.Output)
		return
	case "build-output":
		fmt.Fprint(r.out, e.Output)
		return
	case "build-fail":
		r.failed[test{pkg: strings.TrimPrefix(e.ImportPath, module)}] = "cannot build"
		return
	case "fail":
		text := strings.Join(r.said[t], "")
		r.failed[t] = text
		fmt.Fprint(r.out, text)
		if t.name == "" {
			fmt.Fprintf(r.out, "FAIL\t%s\t%.1fs\n", t.pkg, e.Elapsed)
		}
	case "pass":
		if t.name == "" {
			fmt.Fprintf(r.out, "ok\t%s\t%.1fs\n", t.pkg, e.Elapsed)
		} else {
			r.passed++
		}
	case "skip":
		if t.name != "" {
			r.skipped[t] = reason(r.said[t])
		}
	default:
		return
	}
	if t.name != "" && e.Elapsed > 0 {
		r.took[t] = e.Elapsed
	}
	delete(r.said, t)
}

// anyFailed reports whether a test or a package has failed so far.
func (r *report) anyFailed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failed) > 0
}

// reason is what a skipped test said last before its own result.
func reason(said []string) string {
	text := ""
	for _, s := range said {
		s = strings.TrimSpace(s)
		if s == "" || strings.HasPrefix(s, "=== ") || strings.HasPrefix(s, "--- ") {
			continue
		}
		text = s
	}
	if _, rest, ok := strings.Cut(text, "skip '"); ok { // a script's line
		return strings.TrimSuffix(rest, "'")
	}
	if at, rest, ok := strings.Cut(text, ": "); ok && strings.Contains(at, ".go:") {
		return rest
	}
	return text
}

// lines are the skipped tests with their reasons, sorted.
func (r *report) lines() []string {
	var lines []string
	for t, why := range r.skipped {
		lines = append(lines, fmt.Sprintf("%s %s  %s", t.pkg, t.name, why))
	}
	sort.Strings(lines)
	return lines
}

// slow are lines of the n tests that took longest, with the time by the clock.
func (r *report) slow(n int) []string {
	all := slices.SortedFunc(maps.Keys(r.took), func(a, b test) int {
		return cmp.Or(cmp.Compare(r.took[b], r.took[a]), cmp.Compare(a.String(), b.String()))
	})
	var lines []string
	for _, t := range all[:min(n, len(all))] {
		lines = append(lines, fmt.Sprintf("slow\t%s %s  %.1fs", t.pkg, t.name, r.took[t]))
	}
	return lines
}

// summary prints the slowest tests and the totals; failed is how many failed for good.
func (r *report) summary(slowest, failed int) {
	for _, l := range r.slow(slowest) {
		fmt.Fprintln(r.out, l)
	}
	for _, l := range r.lines() {
		fmt.Fprintln(r.out, "skipped\t"+l)
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", r.passed, failed, len(r.skipped))
}

// compareSkips refuses a skip that the list does not have.
func (r *report) compareSkips(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	listed := map[string]bool{}
	for _, l := range strings.Split(string(b), "\n") {
		if f := strings.Fields(l); len(f) >= 2 && !strings.HasPrefix(f[0], "#") {
			listed[f[0]+" "+f[1]] = true
		}
	}
	var unlisted []string
	for _, l := range r.lines() {
		if f := strings.Fields(l); !listed[f[0]+" "+f[1]] {
			unlisted = append(unlisted, l)
		}
	}
	if len(unlisted) > 0 {
		return fmt.Errorf("skipped, and not listed in %s:\n%s", path, strings.Join(unlisted, "\n"))
	}
	return nil
}
