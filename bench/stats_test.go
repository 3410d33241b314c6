package bench

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestSummarize(t *testing.T) {
	for _, c := range []struct {
		name    string
		samples []float64
		want    Summary
	}{
		{"none", nil, Summary{}},
		{"one", []float64{3}, Summary{3, 3, 3, 3}},
		{"two", []float64{4, 2}, Summary{3, 4, 2, 4}},
		{"odd", []float64{5, 1, 9}, Summary{5, 9, 1, 9}},
		{"ten: the ninth, not the tenth", []float64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, Summary{5.5, 9, 1, 10}},
		{"eleven: the tenth", []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, Summary{6, 10, 1, 11}},
		{"an outlier moves neither", []float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1000}, Summary{1, 1, 1, 1000}},
	} {
		if got := Summarize(c.samples); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestSummarizeHolds compares with the definitions, on many samples.
func TestSummarizeHolds(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		samples := make([]float64, 1+rnd.IntN(40))
		for i := range samples {
			samples[i] = float64(rnd.IntN(20))
		}
		before := slices.Clone(samples)
		s := Summarize(samples)
		if !slices.Equal(before, samples) {
			t.Fatal("the samples were changed")
		}
		within := func(v float64) (n int) {
			for _, x := range samples {
				if x <= v {
					n++
				}
			}
			return n
		}
		n := len(samples)
		if 10*within(s.P90) < 9*n || (s.P90 > s.Min && 10*within(s.P90-0.5) >= 9*n) {
			t.Fatalf("%v: p90 %v", samples, s.P90)
		}
		if 2*within(s.Median) < n || s.Median < s.Min || s.Median > s.Max || s.Min != slices.Min(samples) || s.Max != slices.Max(samples) {
			t.Fatalf("%v: %+v", samples, s)
		}
	}
}

func TestPercentile(t *testing.T) {
	var hundred []float64
	for i := range 100 {
		hundred = append(hundred, float64(100-i))
	}
	for _, c := range []struct {
		samples []float64
		p       int
		want    float64
	}{{hundred, 99, 99}, {hundred, 50, 50}, {hundred, 100, 100}, {hundred[:12], 99, 100}, {[]float64{3}, 99, 3}} {
		if got := percentile(c.samples, c.p); got != c.want {
			t.Errorf("of %d samples %d %% do not exceed %g, not %g", len(c.samples), c.p, c.want, got)
		}
	}
}
