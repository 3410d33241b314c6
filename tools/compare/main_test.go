package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/pando-dev/pando/bench"
)

func TestTable(t *testing.T) {
	var file strings.Builder
	for _, l := range []struct {
		side    string
		samples []float64
	}{{"old", []float64{10, 1000, 12}}, {"new", []float64{6, 5}}, {"old", []float64{10}}, {"new", []float64{900}}} {
		s := bench.Series{Name: "pando run", Samples: l.samples, Parts: []bench.Part{{Name: "start", Samples: []float64{2}}}}
		b, err := json.Marshal(line{Side: l.side, Result: bench.Result{Axes: []bench.AxisResult{{Axis: "run", Cases: []bench.Case{{Name: "files", Series: []bench.Series{s}}}}}}})
		if err != nil {
			t.Fatal(err)
		}
		file.Write(append(b, '\n'))
	}
	var out strings.Builder
	if err := table(&out, strings.NewReader(file.String())); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"11.000  6.000  -45.5 %   10.000, 5.000  4, 3  run files: pando run\n", "2.000  2.000   +0.0 %    2.000, 2.000  2, 2  run files: pando run: start\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestMissing(t *testing.T) {
	for _, c := range []struct {
		of   bench.AxisResult
		want string
	}{
		{bench.AxisResult{Axis: "run", Cases: []bench.Case{{Name: "files"}}}, ""},
		{bench.AxisResult{Axis: "run", Cases: []bench.Case{{Name: "files"}}, Error: "no room"}, "not all of run was measured; no room"},
		{bench.AxisResult{Axis: "eval", Absent: []bench.Absent{{Peer: "client", Why: "no python3"}}}, "not all of eval was measured; client: no python3"},
	} {
		if got := missing(bench.Result{Axes: []bench.AxisResult{c.of}}); got != c.want {
			t.Errorf("%q, not %q", got, c.want)
		}
	}
}

func TestArguments(t *testing.T) {
	if got, want := arguments("spawn,--n,1:10"), []string{"bench", "spawn", "--n", "1,10"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
}
