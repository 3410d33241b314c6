package gateway

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
)

// FuzzX10Frames: whatever a server sends, in whatever pieces, is given with the
// same length up to where it goes wrong (or where a header is cut off), and the value is never in it.
func FuzzX10Frames(f *testing.F) {
	const value = "s3cr3t-value-0123"
	list, err := newLent([]cell.Lent{{Handle: "x", Placeholder: "the-placeholder-of", Secret: value, For: []string{"a.example"}, As: "X-Key: {secret}"}})
	if err != nil {
		f.Fatal(err)
	}
	hide := hiddenOf(list)
	f.Add([]byte("\x81\x11" + value))
	f.Add([]byte("\x01\x05" + value[:5] + "\x89\x11" + value + "\x80\x0c" + value[5:]))
	f.Add([]byte("\x82\x7e\x00\x03abc\x88\x00"))
	f.Add([]byte("\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xffabc"))
	f.Add([]byte("\xc1\x01a"))
	f.Add([]byte("\x81\x05" + value[:5] + "\x80\x0c" + value[5:])) // continues nothing
	f.Add([]byte("\x01\x05" + value[:5] + "\x81\x0c" + value[5:])) // one message in the other
	f.Fuzz(func(t *testing.T, b []byte) {
		boundtest.Allocates(t, len(b), func() {
			whole, err := io.ReadAll(newFrames(bytes.NewReader(b), hide))
			pieces, err2 := io.ReadAll(newFrames(iotest.OneByteReader(bytes.NewReader(b)), hide))
			if len(whole) > len(b) || err == nil && len(whole)+10 <= len(b) || (err == nil) != (err2 == nil) {
				t.Fatalf("%d bytes became %d (%v), and one by one %d (%v)", len(b), len(whole), err, len(pieces), err2)
			}
			if err == nil && len(whole) != len(pieces) { // the first bytes of an encoding may differ: they are not held back
				t.Fatalf("%q, and one by one %q", whole, pieces)
			}
			if bytes.Contains(payloads(pieces), []byte(value)) || bytes.Contains(payloads(whole), []byte(value)) {
				t.Fatalf("the value is in %q", whole)
			}
		})
	})
}

// payloads joins what each message holds, with a line between messages.
func payloads(b []byte) (out []byte) {
	for len(b) >= 2 {
		control, n, at := b[0]&8 != 0, int(b[1]&0x7f), 2
		switch {
		case n == 126 && len(b) >= 4:
			n, at = int(b[2])<<8|int(b[3]), 4
		case n > 125:
			return out
		}
		end := min(len(b), at+n)
		if !control {
			if b[0]&0xf != 0 {
				out = append(out, '\n')
			}
			out = append(out, b[at:end]...)
		}
		b = b[end:]
	}
	return out
}

// FuzzX49Foreign: whatever a request says is judged without a panic, and what
// stands in a header for authentication passes only as the placeholder.
func FuzzX49Foreign(f *testing.F) {
	const held = "trk_pandoA7bC9dE2fG4hJ6kL8mN1pQ3"
	list, err := newLent([]cell.Lent{{Handle: "x", Placeholder: held, Secret: "s3cr3t-value-0123", For: []string{"a.example"}, As: "Authorization: Bearer {secret}"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("Bearer "+held, "a=b;c", "k=v", "realtime")
	f.Add("Basic bWU6", "%74oken=x", "__cf_bm=1", "a, b")
	f.Add(held+", other", "key="+held, "", "")
	f.Fuzz(func(t *testing.T, auth, query, cookie, protocol string) {
		h := http.Header{"Authorization": {auth}, "Cookie": {cookie}, "Sec-Websocket-Protocol": {protocol}}
		r := &http.Request{Method: "GET", URL: &url.URL{Path: "/", RawQuery: query}, Header: h}
		if foreign(r, nil) == "" && strings.TrimSpace(auth) != "" {
			t.Fatalf("%q passes where nothing may", auth)
		}
		if foreign(r, list[0]) == "" && strings.TrimSpace(auth) != "" && !list[0].isIn(auth) {
			t.Fatalf("%q passes", auth)
		}
	})
}
