// Package boundtest measures what a parser of untrusted bytes allocates.
//
// It owns the rule that all fuzz targets of such parsers hold: what is allocated is
// proportional to the input, and to what the parser's own limits allow beside it.
// It counts bytes, never time. It leaves to the caller what is parsed.
package boundtest

import (
	"runtime"
	"testing"
)

// Slack is what parsing may allocate whatever the input is, in bytes; PerByte is
// what it may allocate for each byte of it.
const (
	Slack   = 1 << 20
	PerByte = 16
)

// Allocates fails t when f, which parses size bytes of input, allocates out of
// proportion to them.
func Allocates(t testing.TB, size int, f func()) {
	t.Helper()
	AllocatesBeside(t, size, 0, f)
}

// AllocatesBeside is Allocates for a parser with buffers or results of a fixed size,
// which are more bytes that it may allocate.
func AllocatesBeside(t testing.TB, size, more int, f func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	if n, limit := after.TotalAlloc-before.TotalAlloc, uint64(Slack+PerByte*size+more); n > limit {
		t.Errorf("parsing %d bytes allocated %d, more than %d", size, n, limit)
	}
}
