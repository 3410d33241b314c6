// Package boundtest measures what a parser of untrusted bytes allocates.
//
// It owns the rule that all fuzz targets of such parsers hold: what is allocated is
// proportional to the input, and to what the parser's own limits allow beside it.
// It counts bytes, never time, and makes input that claims to be more than it is. It
// leaves to the caller what is parsed.
package boundtest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"runtime"
	"strconv"
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

// SparseArchive is a tar archive of a kilobyte or two with a file that is all hole, of
// size bytes.
func SparseArchive(t testing.TB, name string, size int64) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	body := append(fmt.Appendf(nil, "1\n%d\n0\n", size), make([]byte, 512)...)[:512] // one extent, of no data, at the end
	// The writer refuses GNU's records: they are written under a name of the same length.
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(body)), PAXRecords: map[string]string{
		"XYZ.sparse.major": "1", "XYZ.sparse.minor": "0", "XYZ.sparse.realsize": strconv.FormatInt(size, 10)}}
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(body); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	archive := bytes.ReplaceAll(b.Bytes(), []byte("XYZ."), []byte("GNU."))
	if h, err := tar.NewReader(bytes.NewReader(archive)).Next(); err != nil || h.Size != size {
		t.Fatalf("the archive that was made has %v, %v", h, err)
	}
	return archive
}
