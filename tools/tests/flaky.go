package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// A flake is a test that failed and then passed.
type flake struct {
	test    test
	failure string // the first line that says what failed
}

// readFlaky reads the tests that a list of flakes names. An absent list is empty.
func readFlaky(path string) (map[string]bool, error) {
	names := map[string]bool{}
	if path == "" {
		return names, nil
	}
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for l := range strings.Lines(string(b)) {
		if l = strings.TrimSpace(l); l != "" && !strings.HasPrefix(l, "#") {
			name, _, _ := strings.Cut(l, "\t")
			names[name] = true
		}
	}
	return names, nil
}

// recordFlaky appends lines of test, commit and failure, separated by tabs.
func recordFlaky(ctx context.Context, path string, flaky []flake) error {
	if path == "" || len(flaky) == 0 {
		return nil
	}
	commit, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		commit = []byte("unknown")
	}
	return appendLines(path, flaky, func(f flake) string {
		return fmt.Sprintf("%s\t%s\t%s", f.test, strings.TrimSpace(string(commit)), f.failure)
	})
}

// appendMarks appends the names alone.
func appendMarks(path string, flaky []flake) error {
	if path == "" || len(flaky) == 0 {
		return nil
	}
	return appendLines(path, flaky, func(f flake) string { return "flaky: " + f.test.String() })
}

func appendLines(path string, flaky []flake, line func(flake) string) error {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	for _, f := range flaky {
		if _, err := fmt.Fprintln(file, line(f)); err != nil {
			file.Close()
			return err
		}
	}
	return file.Close()
}

// retry runs each test that failed once more, alone, and returns the flaky tests
// and a line for each that failed for good. A package that failed without naming a
// test, or that ended in the middle of one, runs again as a whole.
func retry(ctx context.Context, r runner, plan []selection, rep *report, listed map[string]bool) (flaky []flake, failed []string) {
	for _, t := range again(rep) {
		switch {
		case ctx.Err() != nil:
			failed = append(failed, t.String()+" (interrupted)")
			continue
		case listed[t.String()]:
			failed = append(failed, t.String()+" (known as flaky, not mended)")
			continue
		}
		second := newReport(rep.out)
		for _, s := range plan {
			if s.pkg != t.pkg {
				continue
			}
			if t.name != "" {
				s = selection{pkg: t.pkg, run: anchored([]string{quoted(t.name)})[0], skip: s.skip}
			}
			if err := r.run(ctx, []selection{s}, second); err != nil {
				fmt.Fprintln(rep.out, err)
			}
			if t.name != "" {
				break
			}
		}
		if len(second.failed) > 0 || second.passed == 0 {
			failed = append(failed, t.String())
			continue
		}
		flaky = append(flaky, flake{t, failureLine(rep.failed[t])})
		if t.name == "" { // tests that ran the second time only
			rep.passed += second.passed
		}
	}
	return flaky, failed
}

// quoted makes a test's name a pattern.
func quoted(name string) string {
	return strings.NewReplacer("(", `\(`, ")", `\)`, "[", `\[`, "]", `\]`, "+", `\+`, "*", `\*`, "?", `\?`, ".", `\.`, "|", `\|`, "$", `\$`).Replace(name)
}

// again are the tests to run once more: the deepest that failed, or their package
// where it did not come to its end.
func again(rep *report) []test {
	var all []test
	for t := range rep.failed {
		if t.name == "" && !died(rep, t.pkg) {
			continue
		}
		deeper := false
		for o := range rep.failed {
			deeper = deeper || o.pkg == t.pkg && o.name != t.name && t.name != "" && strings.HasPrefix(o.name, t.name+"/")
		}
		if !deeper && (t.name == "" || !died(rep, t.pkg)) {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b test) int { return cmp.Compare(a.String(), b.String()) })
	return all
}

// died reports whether a package failed otherwise than by its tests' verdicts.
func died(rep *report, pkg string) bool {
	text, failed := rep.failed[test{pkg: pkg}]
	if !failed {
		return false
	}
	named := false
	for t, said := range rep.failed {
		if t.pkg == pkg && t.name != "" {
			named = true
			text += said
		}
	}
	return !named || strings.Contains(text, "\npanic: ") || strings.HasPrefix(text, "panic: ") ||
		strings.Contains(text, "fatal error: ") || strings.Contains(text, "test timed out after")
}

// failureLine is the first line of a test's output that says something.
func failureLine(text string) string {
	for l := range strings.Lines(text) {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "=== ") || strings.HasPrefix(l, "--- ") {
			continue
		}
		return strings.ReplaceAll(l[:min(len(l), 200)], "\t", " ")
	}
	return "no output"
}
