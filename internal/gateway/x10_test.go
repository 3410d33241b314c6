package gateway_test

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/klauspost/compress/zstd"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gateway"
	"github.com/pando-dev/pando/internal/gateway/gatewaytest"
)

// packed is a text in a content coding.
func packed(coding, text string) []byte {
	var b bytes.Buffer
	var w io.WriteCloser
	switch coding {
	case "gzip", "x-gzip":
		w = gzip.NewWriter(&b)
	case "deflate":
		w = zlib.NewWriter(&b)
	case "raw deflate":
		w, _ = flate.NewWriter(&b, 6)
	case "zstd":
		w, _ = zstd.NewWriter(&b)
	default:
		return []byte(text)
	}
	io.WriteString(w, text)
	w.Close()
	return b.Bytes()
}

// reflector is a host that knows the value and tells it in the way that its path
// names, asked to or not.
type reflector struct {
	asked atomic.Pointer[http.Header]
}

func (s *reflector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := r.Header.Clone()
	s.asked.Store(&h)
	text := "you are <" + trkValue + ">, and " + trkValue
	way, coding, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch way {
	case "coded":
		w.Header().Set("Content-Encoding", strings.TrimPrefix(coding, "raw "))
		w.Write(packed(coding, text))
	case "pieces":
		w.Header().Set("Content-Encoding", coding)
		for _, c := range packed(coding, text) {
			w.Write([]byte{c})
			w.(http.Flusher).Flush()
		}
	case "part":
		w.Header().Set("Content-Range", "bytes 0-19/100")
		w.WriteHeader(http.StatusPartialContent)
		io.WriteString(w, text[:20])
	case "range":
		http.ServeContent(w, r, "x.txt", time.Time{}, strings.NewReader(text))
	case "grpc":
		w.Header().Set("Grpc-Encoding", "gzip")
		w.Write(packed("gzip", text))
	case "delta":
		w.Header().Set("IM", "gzip")
		w.WriteHeader(http.StatusIMUsed)
		w.Write(packed("gzip", text))
	case "header":
		w.Header().Set("X-Echo", trkValue)
		w.Header().Set("Trailer", "X-Late")
		w.Header().Set("Link", "<https://x/"+url.QueryEscape(trkValue)+">")
		w.WriteHeader(http.StatusEarlyHints)
		io.WriteString(w, text)
		w.Header().Set("X-Late", base64.StdEncoding.EncodeToString([]byte("a"+trkValue)))
	case "form":
		io.WriteString(w, map[string]string{
			"base64":    base64.StdEncoding.EncodeToString([]byte(text)),
			"base64url": base64.URLEncoding.EncodeToString([]byte("xy" + text)),
			"hex":       hex.EncodeToString([]byte(text)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(text))),
			"events": "data: " + trkValue + "\n\n",
		}[coding])
	case "bomb":
		w.Header().Set("Content-Encoding", "gzip")
		z, _ := gzip.NewWriterLevel(w, gzip.BestCompression)
		zeros := make([]byte, 1<<20)
		for range 1 << 10 {
			if _, err := z.Write(zeros); err != nil {
				return
			}
		}
		z.Close()
	case "end":
		w.Header().Set("Content-Type", "application/octet-stream")
		io.WriteString(w, "a"+hex.EncodeToString([]byte(trkValue))[:3])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		io.WriteString(w, text)
	}
}

// tells reports whether a text tells the value, plainly or encoded.
func tells(text string) bool {
	for _, form := range []string{trkValue, hex.EncodeToString([]byte(trkValue)), strings.ToUpper(hex.EncodeToString([]byte(trkValue)))} {
		if strings.Contains(text, form) {
			return true
		}
	}
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		if b, err := enc.DecodeString(strings.TrimSpace(text)); err == nil && bytes.Contains(b, []byte(trkValue)) {
			return true
		}
	}
	for _, coding := range []func(io.Reader) (io.Reader, error){
		func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		func(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) },
		func(r io.Reader) (io.Reader, error) { return flate.NewReader(r), nil },
		func(r io.Reader) (io.Reader, error) { return zstd.NewReader(r) },
	} {
		if z, err := coding(strings.NewReader(text)); err == nil {
			if b, _ := io.ReadAll(z); bytes.Contains(b, []byte(trkValue)) {
				return true
			}
		}
	}
	return false
}

func newReflector(t *testing.T) (*gatewaytest.Bench, *reflector) {
	b := gatewaytest.Join(t, gatewaytest.Stack(t), gatewaytest.With(gatewaytest.Policy{Rules: []gatewaytest.Rule{
		{Effect: cell.Allow, Host: "api.test", Path: "/v1/", Ports: []uint16{443}, Credential: "trk"},
		{Effect: cell.Allow, Host: "api.test", Ports: []uint16{80, 443, 8443}},
	}}, trk("x-api-key: {secret}")))
	b.Record("api.test. 60 IN A 203.0.113.1")
	s := &reflector{}
	b.HTTPS("203.0.113.1:443", s, "api.test")
	b.HTTPS("203.0.113.1:8443", s, "api.test")
	b.HTTP("203.0.113.1:80", s)
	return b, s
}

// TestX10AnswersAreLookedInto: a host that may know the value can't tell it, to
// requests into which nothing was put either, on none of its ports, in no coding.
func TestX10AnswersAreLookedInto(t *testing.T) {
	b, s := newReflector(t)
	c := gatewaytest.Client(b.Cell, b.Link, b.Trust)
	seen := "you are <" + trkHeld[:len(trkValue)]
	for _, base := range []string{"https://api.test", "https://api.test:8443", "http://api.test"} {
		for way, want := range map[string]int{
			"/plain": 200, "/coded/gzip": 200, "/coded/x-gzip": 200, "/coded/deflate": 200, "/coded/raw deflate": 200, "/coded/zstd": 200, "/coded/identity": 200, "/coded/": 200,
			"/coded/br": 502, "/coded/dcz": 502, "/coded/gzip, gzip": 502, "/coded/aes128gcm": 502,
			"/pieces/gzip": 200, "/pieces/zstd": 200, "/pieces/identity": 200, "/part": 502, "/range": 200, "/grpc": 502, "/delta": 502, "/header": 200,
			"/form/base64": 200, "/form/base64url": 200, "/form/hex": 200, "/form/HEX": 200, "/form/events": 200,
		} {
			req, _ := http.NewRequestWithContext(b.Ctx(), "GET", base+(&url.URL{Path: way}).EscapedPath(), nil)
			req.Header.Set("Accept-Encoding", "gzip, br, zstd")
			req.Header.Set("Range", "bytes=9-12")
			req.Header.Set("A-Im", "gzip")
			req.Header.Set("Grpc-Accept-Encoding", "gzip")
			res, err := c.Do(req)
			if err != nil {
				t.Fatalf("%s%s: %v", base, way, err)
			}
			body, err := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != want || err != nil {
				t.Errorf("%s%s: %d, %v, %q", base, way, res.StatusCode, err, body)
			}
			if tells(string(body)) || tells(fmt.Sprint(res.Header)) || tells(res.Trailer.Get("X-Late")) {
				t.Errorf("%s%s: the cell got the value: %q %v %v", base, way, body, res.Header, res.Trailer)
			}
			if want == 502 && !strings.Contains(string(body), "can't be inspected") {
				t.Errorf("%s%s: the reason is %s", base, way, body)
			}
			if want == 200 && !strings.HasPrefix(way, "/form") && !strings.HasPrefix(string(body), seen) {
				t.Errorf("%s%s: the body is %q", base, way, body)
			}
			if h := *s.asked.Load(); h.Get("Accept-Encoding") != "identity" || h.Get("Range") != "" || h.Get("A-Im") != "" || h.Get("Grpc-Accept-Encoding") != "identity" {
				t.Errorf("%s%s: it was asked with %v", base, way, h)
			}
		}
	}
}

// TestX10BombsTakeNoMemory: what expands without end is cut off, and is never in
// memory as a whole.
func TestX10BombsTakeNoMemory(t *testing.T) {
	b, _ := newReflector(t)
	res, err := gatewaytest.Client(b.Cell, b.Link, b.Trust).Get("http://api.test/bomb")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var most uint64
	var n int64
	buf := make([]byte, 64<<10)
	for {
		k, err := res.Body.Read(buf)
		if n += int64(k); err != nil {
			if err == io.EOF {
				t.Error("it came to its end")
			}
			break
		}
		if n%(4<<20) < int64(k) {
			var m runtime.MemStats
			runtime.GC() // what earlier tests left is not counted
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
		}
	}
	if n > 64<<20 || most > 256<<20 {
		t.Errorf("%d bytes came, with %d in memory", n, most)
	}
}

// TestX10NothingIsHeldBackForever: bytes with which an encoding of the value begins
// are given at once; a program that waits for them would wait for ever.
func TestX10NothingIsHeldBackForever(t *testing.T) {
	b, _ := newReflector(t)
	res, err := gatewaytest.Client(b.Cell, b.Link, b.Trust).Get("http://api.test/end")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got := make([]byte, 4)
	if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != "a"+hex.EncodeToString([]byte(trkValue))[:3] {
		t.Errorf("%q, %v", got, err)
	}
}

// TestX10WebSockets: a server that agrees on compression unasked is refused, and
// a value is found in a message, over the frames of one, and in a ping.
func TestX10WebSockets(t *testing.T) {
	b, _ := newReflector(t)
	b.Raw("203.0.113.1:80", func(c net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		extra := ""
		if r.URL.Path == "/extension" {
			extra = "Sec-WebSocket-Extensions: permessage-deflate\r\n"
		}
		if r.Header.Get("Sec-Websocket-Extensions") != "" {
			extra = "X-Offered: yes\r\n"
		}
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n%s\r\n", extra)
		frame := func(first byte, text string) { c.Write(wsFrame(first, text)) }
		frame(0x81, "one "+trkValue)
		frame(0x01, "two "+trkValue[:7])
		frame(0x89, "ping "+trkValue)
		frame(0x00, trkValue[7:12])
		frame(0x80, trkValue[12:]+" end")
		frame(0x81, "ends with "+trkValue[:9])
		frame(0x81, "last")
		if r.URL.Path == "/compressed" {
			frame(0xc1, string(packed("raw deflate", trkValue)))
		}
	})
	read := func(path string) string {
		c, err := gatewaytest.DialHost(b.Ctx(), b.Cell, b.Link, "api.test:80")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n", path)
		in := bufio.NewReader(c)
		if head, _ := in.Peek(12); string(head) != "HTTP/1.1 101" { // this connection goes on
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			return res.Status + " " + string(body)
		}
		out, _ := io.ReadAll(in)
		return string(out)
	}
	stand := trkHeld[:len(trkValue)]
	want := string(bytes.Join([][]byte{wsFrame(0x81, "one "+stand), wsFrame(0x01, "two "+stand[:7]), wsFrame(0x89, "ping "+stand), wsFrame(0x00, stand[7:12]), wsFrame(0x80, stand[12:]+" end"),
		wsFrame(0x81, "ends with "+trkValue[:9]), wsFrame(0x81, "last")}, nil))
	for _, path := range []string{"/", "/compressed"} {
		out := read(path)
		if _, frames, _ := strings.Cut(out, "\r\n\r\n"); !strings.HasPrefix(out, "HTTP/1.1 101") || frames != want || strings.Contains(out, "X-Offered") {
			t.Errorf("%s: %q, want %q", path, out, want)
		}
	}
	if out := read("/extension"); !strings.HasPrefix(out, "502") || !strings.Contains(out, "extension") {
		t.Errorf("an extension that was not offered: %q", out)
	}
	// A real client and a real server still understand each other.
	b, _ = newReflector(t)
	b.HTTPS("203.0.113.1:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true, CompressionMode: websocket.CompressionContextTakeover})
		if err != nil {
			return
		}
		for {
			kind, m, err := c.Read(r.Context())
			if err != nil {
				return
			}
			c.Write(r.Context(), kind, append(m, " "+trkValue...))
		}
	}), "api.test")
	hc := gatewaytest.Client(b.Cell, b.Link, b.Trust)
	hc.Timeout = 0
	hc.Transport.(*http.Transport).ForceAttemptHTTP2 = false
	c, _, err := websocket.Dial(b.Ctx(), "wss://api.test/v1/ws", &websocket.DialOptions{HTTPClient: hc, CompressionMode: websocket.CompressionContextTakeover, Subprotocols: []string{"realtime"}})
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadLimit(1 << 20)
	for _, m := range []string{"one", strings.Repeat("two", 10000), trkValue[:5]} {
		if err := c.Write(b.Ctx(), websocket.MessageText, []byte(m)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(b.Ctx()); err != nil || string(got) != m+" "+stand {
			t.Fatalf("%.60q, %v", got, err)
		}
	}
	c.CloseNow()
}

// wsFrame is a frame of a server.
func wsFrame(first byte, text string) []byte {
	out := []byte{first}
	switch {
	case len(text) < 126:
		out = append(out, byte(len(text)))
	default:
		out = binary.BigEndian.AppendUint16(append(out, 126), uint16(len(text)))
	}
	return append(out, text...)
}

// TestX10Escapes: a value is found as the usual libraries write it, and so is what
// Basic and base64 make of it.
func TestX10Escapes(t *testing.T) {
	t.Parallel()
	const value = "k7/Qz+8==R'4&<Wm9"
	basic := base64.StdEncoding.EncodeToString([]byte("user:" + "\xfb\xff\xfe" + value + "??>"))
	for _, c := range []struct{ library, secret, as, text string }{
		{"Python's quote", value, "", "k7/Qz%2B8%3D%3DR%274%26%3CWm9"},
		{"encodeURI", value, "", "k7/Qz+8==R'4&%3CWm9"},
		{"encodeURIComponent", value, "", "k7%2FQz%2B8%3D%3DR'4%26%3CWm9"},
		{"small letters", value, "", "k7%2fQz%2b8%3d%3dR%274%26%3cWm9"},
		{"PHP's json_encode", value, "", `k7\/Qz+8==R'4&<Wm9`},
		{"Rails", value, "", `k7/Qz+8==R'4\u0026\u003cWm9`},
		{"Gson", value, "", `k7/Qz+8\u003d\u003dR\u00274\u0026\u003cWm9`},
		{".NET", value, "", `k7/Qz\u002B8==R\u00274\u0026\u003CWm9`},
		{"Python's html", value, "", "k7/Qz+8==R&#x27;4&amp;&lt;Wm9"},
		{"Jinja", value, "", "k7/Qz+8==R&#39;4&amp;&lt;Wm9"},
		{"Mustache", value, "", "k7&#x2F;Qz+8&#x3D;&#x3D;R&#39;4&amp;&lt;Wm9"},
		{"Handlebars", value, "", "k7/Qz+8&#x3D;&#x3D;R&#x27;4&amp;&lt;Wm9"},
		{"base64 in PHP's json_encode", "\xfb\xff\xfe" + value + "??>", "", strings.ReplaceAll(basic, "/", `\/`)},
		{"Basic in Gson", "no", "Authorization: Basic {basic:u}", strings.ReplaceAll("dTpubw==", "=", `\u003d`)},
		{"UTF-16, little-endian", value, "", wide(value, binary.LittleEndian, 2)},
		{"UTF-16, big-endian", value, "", wide(value, binary.BigEndian, 2)},
		{"UTF-32, little-endian", value, "", wide(value, binary.LittleEndian, 4)},
		{"UTF-32, big-endian", value, "", wide(value, binary.BigEndian, 4)},
		{"UTF-16 of what is no ASCII", "schlüssel", "", wide("schlüssel", binary.LittleEndian, 2)},
		{"Basic in a query", "no", "Authorization: Basic {basic:u}", "dTpubw%3D%3D"},
	} {
		seen, err := gateway.Redacted(cell.Lent{Handle: "trk", Placeholder: trkHeld, Secret: c.secret, For: []string{"https://api.test/**"}, As: c.as}, `{"you": "`+c.text+`"}`)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(seen, c.text[2:len(c.text)-3]) {
			t.Errorf("%s: the cell sees %s of %s", c.library, seen, c.text)
		}
	}
}

// wide is a text of characters below U+10000 in UTF-16 or UTF-32.
func wide(s string, order binary.AppendByteOrder, size int) string {
	var b []byte
	for _, r := range s {
		if size == 2 {
			b = order.AppendUint16(b, uint16(r))
		} else {
			b = order.AppendUint32(b, uint32(r))
		}
	}
	return string(b)
}
