package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// events are what go test -json prints for some results, "TEST" passed, "!TEST" failed,
// "-TEST" skipped; the package "p" fails when one of them did.
func events(results ...string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	end := "pass"
	for _, r := range results {
		action, name := "pass", r
		switch r[0] {
		case '!':
			action, name, end = "fail", r[1:], "fail"
		case '-':
			action, name = "skip", r[1:]
		}
		enc.Encode(event{Action: "output", Package: module + "p", Test: name, Output: "=== RUN   " + name + "\n"})
		enc.Encode(event{Action: "output", Package: module + "p", Test: name, Output: "    p_test.go:7: needs a moon\n"})
		enc.Encode(event{Action: action, Package: module + "p", Test: name, Elapsed: 0.1})
	}
	enc.Encode(event{Action: end, Package: module + "p", Elapsed: 0.2})
	return b.String()
}

func TestSkipsAreListed(t *testing.T) {
	list := filepath.Join(t.TempDir(), "skips.txt")
	for _, c := range []struct{ name, list, fails string }{
		{"listed", "p TestB  any words\n", ""},
		{"not listed", "# p TestB\np TestBB\n", "p TestB  needs a moon"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.WriteFile(list, []byte(c.list), 0o644); err != nil {
				t.Fatal(err)
			}
			rep := newReport(io.Discard)
			if err := rep.read(strings.NewReader(events("TestA", "-TestB"))); err != nil {
				t.Fatal(err)
			}
			err := rep.compareSkips(list)
			if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
				t.Errorf("error %v, want %q", err, c.fails)
			}
		})
	}
}

func TestSummary(t *testing.T) {
	var out strings.Builder
	rep := newReport(&out)
	if err := rep.read(strings.NewReader(events("TestA", "-TestB", "!TestC"))); err != nil {
		t.Fatal(err)
	}
	rep.summary(20, 1)
	for _, want := range []string{"slow\tp TestA  0.1s", "skipped\tp TestB  needs a moon", "1 passed, 1 failed, 1 skipped", "FAIL\tp"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestPlan(t *testing.T) {
	rules := table{
		{"host", "a/...", "*"},
		{"quick", "a/x", "*"},
		{"vm", "a/x", "TestOne/gvisor"},
		{"soak", "a/b", "TestAll"},
		{"vm", "a/b", "TestAll/core"},
	}
	packages := []string{"a/b", "a/x", "c"}
	for _, c := range []struct {
		tiers string
		want  []string
	}{
		{"quick", []string{"a/x -skip ^TestOne$/^gvisor$", "c"}},
		{"host", []string{"a/b -skip ^TestAll$|^TestAll$/^core$"}},
		{"vm", []string{"a/b -run ^TestAll$/^core$", "a/x -run ^TestOne$/^gvisor$"}},
		{"soak", []string{"a/b -run ^TestAll$ -skip ^TestAll$/^core$"}},
		{"host,vm", []string{"a/b -skip ^TestAll$", "a/b -run ^TestAll$/^core$", "a/x -run ^TestOne$/^gvisor$"}},
		{"quick,host,vm,soak", []string{"a/b", "a/x", "c"}},
	} {
		var got []string
		for _, s := range rules.plan(packages, strings.Split(c.tiers, ",")) {
			got = append(got, s.String())
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: (-want +got)\n%s", c.tiers, d)
		}
	}
	if err := rules.check([]string{"a/x"}); err == nil || !strings.Contains(err.Error(), "a/b has no tests") {
		t.Errorf("a rule for a package that is gone: %v", err)
	}
}

// scripted is a runner with given output: each run prints the next text.
type scripted struct {
	texts []string
	asked []string
}

func (s *scripted) close() {}

func (s *scripted) run(ctx context.Context, g []selection, rep *report) error {
	s.asked = append(s.asked, g[0].String())
	text := s.texts[0]
	s.texts = s.texts[1:]
	return rep.read(strings.NewReader(text))
}

func TestRetry(t *testing.T) {
	death := `{"Action":"output","Package":"` + module + `p","Output":"panic: boo\n"}` + "\n" +
		`{"Action":"fail","Package":"` + module + `p"}` + "\n"
	for _, c := range []struct {
		name   string
		first  string
		second []string // what the second runs print
		listed string
		asked  []string
		flaky  []string
		failed []string
	}{
		{"all pass", events("TestA"), nil, "", nil, nil, nil},
		{"passes the second time", events("TestA", "!TestB/sub", "!TestB"), []string{events("TestB/sub", "TestB")}, "",
			[]string{"p -run ^TestB$/^sub$"}, []string{"p TestB/sub"}, nil},
		{"fails twice", events("!TestB"), []string{events("!TestB")}, "", []string{"p -run ^TestB$"}, nil, []string{"p TestB"}},
		{"is known as flaky", events("!TestB"), nil, "p TestB\tabc\tneeds a moon\n", nil, nil, []string{"p TestB (known as flaky, not mended)"}},
		{"its name is a pattern", events("!TestB/a.b(c)"), []string{events("TestB/a.b(c)")}, "", []string{`p -run ^TestB$/^a\.b\(c\)$`}, []string{"p TestB/a.b(c)"}, nil},
		{"the package dies", death, []string{events("TestA", "TestB")}, "", []string{"p"}, []string{"p"}, nil},
		{"the package dies twice", death, []string{death}, "", []string{"p"}, nil, []string{"p"}},
		{"nothing runs the second time", events("!TestB"), []string{events()}, "", []string{"p -run ^TestB$"}, nil, []string{"p TestB"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rep := newReport(io.Discard)
			if err := rep.read(strings.NewReader(c.first)); err != nil {
				t.Fatal(err)
			}
			list := filepath.Join(t.TempDir(), "flaky.txt")
			if err := os.WriteFile(list, []byte(c.listed), 0o644); err != nil {
				t.Fatal(err)
			}
			listed, err := readFlaky(list)
			if err != nil {
				t.Fatal(err)
			}
			s := &scripted{texts: c.second}
			flaky, failed := retry(t.Context(), s, []selection{{pkg: "p"}}, rep, listed)
			var names []string
			for _, f := range flaky {
				names = append(names, f.test.String())
			}
			if !slices.Equal(names, c.flaky) || !slices.Equal(failed, c.failed) || !slices.Equal(s.asked, c.asked) {
				t.Errorf("flaky %q, failed %q, asked for %q; want %q, %q, %q", names, failed, s.asked, c.flaky, c.failed, c.asked)
			}
			if err := recordFlaky(t.Context(), list, flaky); err != nil {
				t.Fatal(err)
			}
			if listed, err = readFlaky(list); err != nil || len(listed) != len(names)+strings.Count(c.listed, "\n") {
				t.Errorf("the list afterwards: %v, %v", listed, err)
			}
		})
	}
}
