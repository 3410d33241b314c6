package bench

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestAxesApart(t *testing.T) {
	for _, b := range apart {
		axes, err := AxesOn(b)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"run", "exec", "spawn", "eval", "branch", "chain", "density"} {
			if !slices.Contains(namesOf(axes), want) {
				t.Errorf("%s has no axis %s", b, want)
			}
		}
		for _, a := range axes {
			if a.measure == nil {
				t.Errorf("%s measures nothing", a.Name)
			}
		}
		if all, err := choose([]string{"all"}, b); err != nil || len(all) != len(axes) {
			t.Errorf("all is %v, %v", namesOf(all), err)
		}
		if _, err := choose([]string{"ledger"}, b); err == nil || !strings.Contains(err.Error(), "same code") {
			t.Errorf("ledger on %s: %v", b, err)
		}
		if !slices.Equal(Backends()[b], namesOf(axes)) {
			t.Errorf("%s can be asked for with %v", b, Backends()[b])
		}
	}
	if _, err := choose([]string{"run"}, "mainframe"); err == nil || !strings.Contains(err.Error(), gvisor) || !strings.Contains(err.Error(), microvm) {
		t.Errorf("an unknown backend: %v", err)
	}
	if _, err := AxesOn("mainframe"); err == nil {
		t.Error("an unknown backend has axes")
	}
}

func TestKeysTellBackendsApart(t *testing.T) {
	keys := Keys()
	slices.Sort(keys)
	if len(slices.Compact(slices.Clone(keys))) != len(keys) {
		t.Errorf("two axes have one key: %v", keys)
	}
	here, there := AxisResult{Axis: "branch"}, AxisResult{Axis: "branch", Backend: gvisor}
	for _, a := range []*AxisResult{&here, &there} {
		if !slices.Contains(keys, a.Key()) {
			t.Errorf("%s is not among %v", a.Key(), keys)
		}
	}
	if here.Key() == there.Key() || here.Title() == there.Title() {
		t.Errorf("%q and %q, %q and %q", here.Key(), there.Key(), here.Title(), there.Title())
	}
}

func TestCommandsSayTheirBackend(t *testing.T) {
	l := testLab(t, Options{})
	if got := strings.Join(l.run("--", "true"), " "); got != "run -- true" {
		t.Error(got)
	}
	l.backend = gvisor
	if got := strings.Join(l.run("--", "true"), " "); got != "run --backend gvisor -- true" {
		t.Error(got)
	}
}

// TestGaps: what it finds are those that a heart of a peer wrote, without the torn first
// and last lines.
func TestGaps(t *testing.T) {
	c := &runscContainer{out: t.TempDir() + "/out"}
	text := "1000000\n2000000\n3500000\n63500000\n64"
	if err := os.WriteFile(c.out, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for after, want := range map[int64][]float64{0: {1, 1.5, 60}, 3: {1.5, 60}, 8: {60}} {
		got, err := c.gaps(t.Context(), after)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("after %d: %v, %v; want %v", after, got, err, want)
		}
	}
}
