package gateway

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/pando-dev/pando/internal/agent/turn"
	"github.com/pando-dev/pando/internal/bound/boundtest"
)

// readAlong reads an encoded request in pieces of n bytes, and reports whether it was decoded to its end.
func readAlong(coding string, body []byte, n int) (req turn.Request, done, whole bool, decoded int) {
	r := turn.NewReader()
	c := readCoded(decoders[coding], func(b []byte) { r.Write(b); decoded += len(b) }, func() { whole = true }, func() {})
	for len(body) > 0 {
		k := min(n, len(body))
		c.Write(body[:k])
		body = body[k:]
	}
	c.end()
	c.end() // as at the end of its exchange
	req, done = r.Done()
	return req, done, whole, decoded
}

func compressed(t testing.TB, coding, body string) []byte {
	var b bytes.Buffer
	if coding == "gzip" {
		w := gzip.NewWriter(&b)
		w.Write([]byte(body))
		w.Close()
		return b.Bytes()
	}
	w, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	w.Write([]byte(body))
	w.Close()
	return b.Bytes()
}

const anAsk = `{"tools":[{}],"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"Fix it."}]}]}`

// FuzzCodedRequest: whatever a cell sends as an encoded request, what is known of it does not depend on the
// pieces, and it costs a window at most.
func FuzzCodedRequest(f *testing.F) {
	for _, coding := range []string{"gzip", "zstd"} {
		f.Add(compressed(f, coding, anAsk), 3)
		f.Add(compressed(f, coding, strings.Repeat(anAsk, 2)), 100)
		f.Add(compressed(f, coding, strings.Repeat(" ", 1<<20)+anAsk), 7)
	}
	f.Add([]byte("\x28\xb5\x2f\xfd\x00\xff"), 1) // zstd with a window of terabytes
	f.Fuzz(func(t *testing.T, body []byte, n int) {
		n = max(1, n&0xff)
		for _, coding := range []string{"gzip", "deflate", "zstd"} {
			var req, also turn.Request
			var done, whole, done2, whole2 bool
			boundtest.AllocatesBeside(t, len(body), 3*maxWindow, func() { req, done, whole, _ = readAlong(coding, body, 1<<20) })
			if also, done2, whole2, _ = readAlong(coding, body, n); whole != whole2 || whole && (req != also || done != done2) {
				t.Fatalf("%s: %+v %v %v, in pieces of %d: %+v %v %v", coding, req, done, whole, n, also, done2, whole2)
			}
		}
	})
}

// A bomb costs a window, and ends at the bound of an answer.
func TestBombOfARequest(t *testing.T) {
	for _, coding := range []string{"gzip", "zstd"} {
		bomb := compressed(t, coding, `{"pad":"`+strings.Repeat("a", 64<<20)+`",`+anAsk[1:])
		boundtest.AllocatesBeside(t, len(bomb), 3*maxWindow, func() {
			_, done, whole, n := readAlong(coding, bomb, 4<<10)
			if done || whole || n > 2*freeExpansion+maxRatio*len(bomb) || n < freeExpansion {
				t.Errorf("%s: %d bytes were %d, %v, %v", coding, len(bomb), n, done, whole)
			}
		})
	}
	var wide bytes.Buffer // it asks for a larger window than is given
	w, err := zstd.NewWriter(&wide, zstd.WithWindowSize(4*maxWindow))
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		w.Write(bytes.Repeat([]byte(" "), maxWindow))
	}
	w.Write([]byte(anAsk))
	w.Close()
	if _, done, whole, n := readAlong("zstd", wide.Bytes(), 1<<20); done || whole || n > 0 {
		t.Errorf("with a window of 32 MiB, %d bytes are decoded, %v, %v", n, done, whole)
	}
	if req, done, whole, _ := readAlong("zstd", compressed(t, "zstd", anAsk), 1); !done || !whole || req.Text != "Fix it." {
		t.Errorf("a request is read as %+v, %v, %v", req, done, whole)
	}
}
