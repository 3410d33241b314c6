package bench

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// A cell's answer counts only when it is right and differs from those of all others.
func TestAnswersAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	answer := func(v string) []byte { return []byte(`{"ok":true,"value":{"type":"list","json":` + v + `}}`) }
	if err := distinct(answer(`[[0,0,0,0,0],0.25,"a"]`), seen); err != nil {
		t.Error(err)
	}
	if err := distinct(answer(`[[0,0,0,0,0],0.5,"b"]`), seen); err != nil {
		t.Error(err)
	}
	for _, wrong := range []string{
		`[[0,0,0,0,0],0.25,"c"]`, // a random number that another had
		`[[0,0,0,0,0],0.75,"b"]`,
		`[[0,0,0,0],0.8,"d"]`,
		`[[0,0,0,0,1],0.9,"e"]`,
		`[0,0,0]`, `null`, `"x"`,
	} {
		if distinct(answer(wrong), seen) == nil {
			t.Errorf("%s was taken", wrong)
		}
	}
	if err := distinct([]byte(`{"ok":false,"error":{"type":"NameError"}}`), seen); err == nil || !strings.Contains(err.Error(), "NameError") {
		t.Errorf("an exception: %v", err)
	}
}

func TestEach(t *testing.T) {
	var at, most, sum atomic.Int64
	no := errors.New("no")
	err := each(3, slices.Values(numbers(100)), func(n int) error {
		most.Store(max(most.Load(), at.Add(1)))
		defer at.Add(-1)
		sum.Add(int64(n))
		if n == 7 {
			return no
		}
		return nil
	})
	if !errors.Is(err, no) || sum.Load() != 4950 || most.Load() > 3 {
		t.Errorf("%v, sum %d, %d at once", err, sum.Load(), most.Load())
	}
}

func TestNumbersWithUnits(t *testing.T) {
	for _, x := range []struct {
		v    float64
		unit string
		want string
	}{{5231, "cells", "5231 cells"}, {412.3, "KiB", "412 KiB"}, {0.5, "KiB", "0.5 KiB"}} {
		if got := Number(x.v, x.unit); got != x.want {
			t.Errorf("%v: %s, want %s", x.v, got, x.want)
		}
	}
}

// A peer that answers twice the same, or wrong, is no peer.
func TestColdPeersAreChecked(t *testing.T) {
	l := testLab(t, Options{Path: t.TempDir()})
	say := func(lines ...string) coldPeer {
		var n atomic.Int64
		p := coldPeer{name: "x"}
		for range 2 {
			p.workers = append(p.workers, command{args: []string{"/bin/echo", lines[int(n.Add(1))-1]}}.run)
		}
		return p
	}
	for want, p := range map[string]coldPeer{
		"":             say(`[[0,0,0,0,0],1,"a"]`, `[[0,0,0,0,0],2,"b"]`),
		"another had":  say(`[[0,0,0,0,0],1,"a"]`, `[[0,0,0,0,0],1,"a"]`),
		"it answered ": say(`[[0,0,0,0,0],1,"a"]`, `nothing`),
	} {
		out := &AxisResult{}
		if err := l.hold(t.Context(), out, contest{runs: 1, cases: []Case{{Name: "c"}}, contestants: []contestant{p.contestant("c", 2)}}); err != nil {
			t.Fatal(err)
		}
		if want == "" && (len(out.Absent) > 0 || len(out.Case("c").Series) != 1) || want != "" && len(out.Absent) != 1 {
			t.Errorf("%q: %+v", want, out)
		}
	}
}
