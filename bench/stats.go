package bench

import (
	"math"
	"slices"
	"time"
)

// Summary is what is published of samples.
type Summary struct {
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Summarize computes the summary of samples, zero if there are none. The
// median of an even number is the mean of the two in the middle; the 90th
// percentile is the smallest sample that at least 90 % do not exceed (nearest
// rank): a value that was measured.
func Summarize(samples []float64) Summary {
	n := len(samples)
	if n == 0 {
		return Summary{}
	}
	s := slices.Clone(samples)
	slices.Sort(s)
	m := s[n/2]
	if n%2 == 0 {
		m = (s[n/2-1] + s[n/2]) / 2
	}
	rank := (9*n + 9) / 10 // ceil(0.9 n)
	return Summary{Median: round(m), P90: s[rank-1], Min: s[0], Max: s[n-1]}
}

// round keeps microseconds of milliseconds: more digits would be noise.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

func toMS(d time.Duration) float64 { return round(float64(d.Nanoseconds()) / 1e6) }

// percentile is the smallest sample that at least so many per cent do not exceed.
func percentile(samples []float64, p int) float64 {
	s := slices.Sorted(slices.Values(samples))
	return s[(p*len(s)+99)/100-1]
}
