// Skips reads what go test -json prints, shows it as go test does without -v,
// and ends with the tests that took longest, and with every test that was
// skipped and why, so that nothing is skipped unseen. It exits 1 if a test failed.
//
//	go test -json ./... | go run ./tools/skips [-known FILE]
//
// With -known it also exits 1 if a test was skipped that FILE does not list. A
// line of FILE is the package below the module, the test, and for people the
// reason: "internal/linux TestX  needs …"; # begins a comment.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sort"
	"strings"
)

const module = "github.com/pando-dev/pando/"

// event is one line of go test -json; cmd/test2json documents the fields.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// test names a test; name is empty for a package.
type test struct{ pkg, name string }

func main() {
	known := flag.String("known", "", "the `file` that lists which tests may be skipped")
	flag.Parse()
	if err := run(os.Stdin, os.Stdout, *known); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer, known string) error {
	r := report{out: out, said: map[test][]string{}, skipped: map[test]string{}, took: map[test]float64{}}
	if err := r.read(in); err != nil {
		return err
	}
	r.summary()
	if r.failed > 0 {
		return fmt.Errorf("%d failed", r.failed)
	}
	if r.passed == 0 {
		return fmt.Errorf("no test ran")
	}
	if known == "" {
		return nil
	}
	return r.compare(known)
}

type report struct {
	out            io.Writer
	said           map[test][]string
	skipped        map[test]string
	took           map[test]float64 // seconds, of those that took any
	passed, failed int
}

func (r *report) read(in io.Reader) error {
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		var e event
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
			fmt.Fprintln(r.out, sc.Text()) // what was printed past the tests
			continue
		}
		r.take(e)
	}
	return sc.Err()
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
		r.failed++
		return
	case "fail":
		r.failed++
		fmt.Fprint(r.out, strings.Join(r.said[t], ""))
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

func (r *report) lines() []string {
	var lines []string
	for t, why := range r.skipped {
		lines = append(lines, fmt.Sprintf("%s %s  %s", t.pkg, t.name, why))
	}
	sort.Strings(lines)
	return lines
}

// slowest is how many of the tests that took longest are shown.
const slowest = 20

// slow are the lines of these. What a test takes is by the clock, with what it waited for
// others that run beside it.
func (r *report) slow() []string {
	all := slices.SortedFunc(maps.Keys(r.took), func(a, b test) int {
		return cmp.Or(cmp.Compare(r.took[b], r.took[a]), cmp.Compare(a.pkg+" "+a.name, b.pkg+" "+b.name))
	})
	var lines []string
	for _, t := range all[:min(slowest, len(all))] {
		lines = append(lines, fmt.Sprintf("slow\t%s %s  %.1fs", t.pkg, t.name, r.took[t]))
	}
	return lines
}

func (r *report) summary() {
	for _, l := range r.slow() {
		fmt.Fprintln(r.out, l)
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, len(r.skipped))
	for _, l := range r.lines() {
		fmt.Fprintln(r.out, "skipped\t"+l)
	}
}

// compare refuses a skip that the list does not have.
func (r *report) compare(path string) error {
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
