package bench

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write golden files anew")

// testLab is a lab without pauses. It lies where the ids of containers get to,
// as t.TempDir does not; closing removes it.
func testLab(t *testing.T, o Options) *lab {
	t.Helper()
	o.Pause, o.Exe = time.Nanosecond, "/nonexistent/pando"
	l, err := newLab(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return l
}

func TestContestantsAlternate(t *testing.T) {
	l := testLab(t, Options{Runs: 3})
	var order []string
	var list []contestant
	for _, name := range []string{"a", "b", "c"} {
		list = append(list, contestant{name: name, ours: name == "a", round: func(_ context.Context, r *recorder) error {
			order = append(order, fmt.Sprint(name, r.n))
			r.put("x", float64(r.n))
			return nil
		}})
	}
	var out AxisResult
	if err := l.hold(t.Context(), &out, contest{contestants: list, cases: []Case{{Name: "x"}}}); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(order, " "), "a0 b0 c0 b1 c1 a1 c2 a2 b2 a3 b3 c3"; got != want {
		t.Errorf("order: got %s, want %s", got, want)
	}
	for _, s := range out.Case("x").Series {
		if fmt.Sprint(s.Samples) != "[1 2 3]" || s.Median != 2 {
			t.Errorf("%s: samples %v, median %v: the first round does not count, the others do", s.Name, s.Samples, s.Median)
		}
	}
}

func TestPeerThatFailsIsAbsent(t *testing.T) {
	l := testLab(t, Options{Runs: 3})
	rounds := 0
	list := []contestant{
		{name: "ours", ours: true, round: func(_ context.Context, r *recorder) error { r.put("x", 1); return nil }},
		{name: "peer", round: func(_ context.Context, r *recorder) error {
			if rounds++; r.n == 2 {
				return errors.New("no more\nat all")
			}
			r.put("x", 1)
			return nil
		}},
	}
	out := AxisResult{}
	if err := l.hold(t.Context(), &out, contest{contestants: list, cases: []Case{{Name: "x"}}}); err != nil {
		t.Fatal(err)
	}
	if len(out.Absent) != 1 || out.Absent[0] != (Absent{"peer", "it failed: no more"}) {
		t.Errorf("absent: %v", out.Absent)
	}
	if out.Case("x").Find("peer") != nil || rounds != 3 {
		t.Errorf("a peer that failed has a series, or was asked again (%d rounds)", rounds)
	}
}

func TestOursThatFailsIsAnError(t *testing.T) {
	l := testLab(t, Options{Runs: 3})
	list := []contestant{{name: "ours", ours: true, round: func(context.Context, *recorder) error { return errors.New("broken") }}}
	var out AxisResult
	if err := l.hold(t.Context(), &out, contest{contestants: list, cases: []Case{{Name: "x"}}}); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("got %v", err)
	}
	list[0].round = func(_ context.Context, r *recorder) error { r.put("y", 1); return nil }
	if err := l.hold(t.Context(), &out, contest{contestants: list, cases: []Case{{Name: "x"}}}); err == nil || !strings.Contains(err.Error(), "never declared") {
		t.Errorf("got %v", err)
	}
}

// sampleResult is a result with everything in it.
func sampleResult(t *testing.T) *Result {
	l := testLab(t, Options{Runs: 10})
	put := func(values map[string]float64) func(context.Context, *recorder) error {
		return func(_ context.Context, r *recorder) error {
			for _, name := range []string{"run", "run, large"} {
				r.put(name, values[name]+float64(r.n)/10)
				r.part(name, "receipt", 1)
			}
			return nil
		}
	}
	out := AxisResult{Axis: "run", About: "a governed run", TookS: 1.5, LoadBefore: [3]float64{1, 2, 3}, LoadAfter: [3]float64{2, 2, 3}, StealPercent: 0.1,
		Cases: []Case{}, Absent: []Absent{}, Notes: []string{}}
	err := l.hold(t.Context(), &out, contest{contestants: []contestant{
		{name: "pando", ours: true, command: "pando run -- true", round: put(map[string]float64{"run": 20, "run, large": 30})},
		{name: "crun", against: "pando", lacks: []string{"no receipt"}, round: put(map[string]float64{"run": 29, "run, large": 29})},
	}, cases: []Case{
		{Name: "run", What: "from start to end", Goals: []Goal{{Series: "pando", AtMost: 25}, {Series: "pando", AtMost: 1, Of: "crun"}, {Series: "pando", AtMost: 0.2, Of: "cp -a"}}},
		{Name: "run, large", What: "the same", Goals: []Goal{{Series: "pando", AtMost: 25}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	out.relate("flat", "large over small", "pando", "run, large", "run", 1.3)
	out.absent("runsc", "not installed")
	out.note("a note")
	out.decide()
	return &Result{
		Schema: Schema, Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), TookS: 2, Settings: Settings{Runs: 10, Warmup: 1, PauseMS: 150},
		Machine:  Machine{CPU: "a processor", Cores: 2, Memory: 24 << 30, Kernel: "6.18", System: "Debian", Arch: "x86_64", FileSystem: "ext4", Journal: new(bool), Root: true, Load: [3]float64{0.1, 0.2, 0.3}},
		Versions: map[string]string{"pando": "1", "go": "go1.26", "crun": "1.8"}, Axes: []AxisResult{out},
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != string(got) {
		t.Errorf("%s is not what comes out (go test ./bench -update, if that is meant):\n%s", path, got)
	}
}

// TestDocument holds the shape of the JSON document: results are committed,
// and charts are drawn from them.
func TestDocument(t *testing.T) {
	r := sampleResult(t)
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "result.json", append(b, '\n'))
	var again Result
	if err := json.Unmarshal(b, &again); err != nil {
		t.Fatal(err)
	}
	if c, _ := json.Marshal(again); string(c) != string(must(json.Marshal(r))) {
		t.Error("reading the document loses something")
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	r := sampleResult(t)
	r.WriteTable(&b)
	golden(t, "table.txt", []byte(b.String()))
	if r.Publishable() != "" {
		t.Error("ten rounds are enough")
	}
	r.Settings.Runs = 9
	if r.Publishable() == "" {
		t.Error("nine rounds are not enough")
	}
	r.Settings.Runs, r.Settings.Quick = 10, true
	if r.Publishable() == "" {
		t.Error("a quick result is not for publishing")
	}
}

func TestGoals(t *testing.T) {
	a := sampleResult(t).Axes[0]
	verdicts := map[string]string{}
	for _, c := range a.Cases {
		for _, g := range c.Goals {
			verdicts[c.Name+": "+g.Text(c.Unit)] = g.verdict()
		}
	}
	for goal, want := range map[string]string{
		"run: ≤ 25 ms": "met", "run: ≤ crun": "met", "run: ≤ 0.2 × cp -a": "(undecided: it was not measured)",
		"run, large: ≤ 25 ms": "NOT MET", "flat: ≤ 1.3 ×": "NOT MET",
	} {
		if verdicts[goal] != want {
			t.Errorf("%s: %q, want %q (all: %v)", goal, verdicts[goal], want, verdicts)
		}
	}
	if s := a.Case("run").Find("crun"); s.Ratio < 1.4 || s.Ratio > 1.5 {
		t.Errorf("ratio %v", s.Ratio)
	}
	if s := a.Case("run").Find("pando"); s.Ratio != 0 {
		t.Errorf("ours is compared with itself: %v", s.Ratio)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
