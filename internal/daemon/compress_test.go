package daemon

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/operation"
)

// large is a text that is longer than compressMin, and can be compressed.
func large() string { return strings.Repeat("a line of an answer, and another\n", 400) }

// unpacked is a body without its content coding.
func unpacked(t *testing.T, head http.Header, b []byte) string {
	t.Helper()
	var r io.Reader = bytes.NewReader(b)
	var err error
	switch c := head.Get("Content-Encoding"); c {
	case "gzip":
		r, err = gzip.NewReader(r)
	case "zstd":
		r, err = zstd.NewReader(r)
	case "":
	default:
		t.Fatalf("Content-Encoding: %s", c)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// encoded asks with an Accept-Encoding, and returns the answer as it was sent.
func encoded(t *testing.T, srv *httptest.Server, method, path, secret, accept string, more ...string) (status int, head http.Header, body []byte) {
	t.Helper()
	r, err := http.NewRequest(method, srv.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	r.Header.Set("Accept-Encoding", accept)
	for i := 0; i+1 < len(more); i += 2 {
		r.Header.Set(more[i], more[i+1])
	}
	transport := &http.Transport{DisableCompression: true} // it would ask for gzip by itself
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, b
}

func TestAnswersAreCompressed(t *testing.T) {
	keys, err := operation.OpenKeysOrNew(durable.Disk(t.TempDir()), "once", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Close()
	d, srv := house(t, Config{Keys: keys})
	secret := token(t, d, Admin, time.Time{})
	text := func(kind string) func(*Daemon, http.ResponseWriter, *http.Request) (any, error) {
		return func(_ *Daemon, w http.ResponseWriter, r *http.Request) (any, error) {
			w.Header().Set("Content-Type", kind)
			io.WriteString(w, large())
			return done{}, nil
		}
	}
	d.mux = d.routes([]Route{
		{Method: "GET", Path: "/v1/cells", Access: Read, handle: func(_ *Daemon, w http.ResponseWriter, r *http.Request) (any, error) {
			setTag(w, "sha256:1")
			return large(), nil
		}},
		{Method: "GET", Path: "/v1/tree", Access: Read, handle: func(*Daemon, http.ResponseWriter, *http.Request) (any, error) { return "short", nil }},
		{Method: "GET", Path: "/metrics", Access: Read, Gives: metricsText, handle: text(metricsText)},
		{Method: "GET", Path: "/v1/cells/{cell}/file", Access: Read, Gives: octets, handle: text(octets)},
		{Method: "GET", Path: "/v1/cells/{cell}/files", Access: Read, Gives: tarball, handle: text(tarball)},
		{Method: "GET", Path: "/v1/runs/{run}/events", Access: Read, Gives: jsonLines, handle: text(jsonLines)},
		{Method: "ANY", Path: "/v1/cells/{cell}/ports/{port}/http/{rest...}", Access: Act, Gives: "*/*", handle: text("text/html")},
		{Method: "GET", Path: "/v1/key", Access: Read, handle: func(_ *Daemon, w http.ResponseWriter, _ *http.Request) (any, error) {
			w.Header().Set("Content-Encoding", "br")
			return text("text/plain")(nil, w, nil)
		}},
		{Method: "POST", Path: "/v1/tokens", Access: Read, Out: api.Token{}, handle: text("application/json")},
		{Method: "GET", Path: "/v1/credentials", Access: Read, handle: text("application/json")},
		{Method: "POST", Path: "/v1/gc", Access: Read, handle: func(*Daemon, http.ResponseWriter, *http.Request) (any, error) { return large(), nil }},
	})
	for _, x := range []struct{ method, path, accept, coding, vary string }{
		{"GET", "/v1/cells", "gzip", "gzip", "Accept-Encoding"},
		{"GET", "/v1/cells", "GZIP", "gzip", "Accept-Encoding"},
		{"GET", "/v1/cells", "gzip, deflate, br, zstd", "zstd", "Accept-Encoding"},
		{"GET", "/v1/cells", "gzip;q=1, zstd; q=0.5", "gzip", "Accept-Encoding"},
		{"GET", "/v1/cells", "*", "zstd", "Accept-Encoding"},
		{"GET", "/v1/cells", "*, zstd;q=0", "gzip", "Accept-Encoding"},
		{"GET", "/v1/cells", "", "", "Accept-Encoding"},
		{"GET", "/v1/cells", "identity, gzip;q=0.2", "", "Accept-Encoding"},
		{"GET", "/v1/cells", "gzip;q=0", "", "Accept-Encoding"},
		{"GET", "/v1/cells", "gzip;q=x, br", "", "Accept-Encoding"},
		{"HEAD", "/v1/cells", "gzip", "", "Accept-Encoding"},
		{"GET", "/v1/tree", "gzip", "", "Accept-Encoding"},
		{"GET", "/metrics", "gzip", "gzip", "Accept-Encoding"},
		{"GET", "/v1/runs/r-1/events", "gzip", "gzip", "Accept-Encoding"},
		{"GET", "/v1/cells/a/file", "gzip", "", ""},
		{"GET", "/v1/cells/a/files", "gzip", "", ""},
		{"GET", "/v1/cells/a/ports/80/http/", "gzip", "", ""},
		{"POST", "/v1/tokens", "gzip", "", ""},
		{"GET", "/v1/credentials", "gzip", "", ""},
		{"POST", "/v1/gc", "zstd", "zstd", "Accept-Encoding"},
		{"GET", "/docs", "gzip", "gzip", "Accept-Encoding"},
		{"GET", "/docs", "zstd", "", "Accept-Encoding"},
	} {
		name := x.method + " " + x.path + " for " + x.accept
		status, head, b := encoded(t, srv, x.method, x.path, secret, x.accept)
		if got := head.Get("Content-Encoding"); status != 200 || got != x.coding || head.Get("Vary") != x.vary {
			t.Errorf("%s: %d %q, want %q; Vary: %q", name, status, got, x.coding, head.Get("Vary"))
			continue
		}
		if x.method == "HEAD" {
			continue
		}
		if x.coding != "" && len(b) > len(large())/5 && x.path != "/docs" {
			t.Errorf("%s: %d bytes of %d", name, len(b), len(large()))
		}
		body := unpacked(t, head, b)
		switch x.path {
		case "/v1/tree":
			body = strings.Trim(body, "\"\n")
			if body != "short" {
				t.Errorf("%s: %s", name, body)
			}
		case "/docs":
			if body != string(docsPage().body) {
				t.Errorf("%s: %d bytes", name, len(body))
			}
		default:
			var s string
			if json.Unmarshal([]byte(body), &s) == nil {
				body = s
			}
			if body != large() {
				t.Errorf("%s: %.80q", name, body)
			}
		}
		if x.path == "/v1/cells" {
			want := `"sha256:1"`
			if x.coding != "" {
				want = `"sha256:1-` + x.coding + `"`
			}
			if got := head.Get("ETag"); got != want {
				t.Errorf("%s: ETag %s, want %s", name, got, want)
			}
		}
	}
	// The page is not sent again to a cache that has it, whatever its coding.
	_, head, _ := encoded(t, srv, "GET", "/docs", secret, "gzip")
	if status, again, _ := encoded(t, srv, "GET", "/docs", secret, "gzip", "If-None-Match", head.Get("ETag")); status != http.StatusNotModified || again.Get("ETag") != head.Get("ETag") {
		t.Errorf("%d %v", status, again)
	}
	// What a key stands for is told again in the coding that is asked for now.
	for _, accept := range []string{"gzip", "zstd", ""} {
		status, head, b := encoded(t, srv, "POST", "/v1/gc", secret, accept, "Idempotency-Key", "k")
		if head.Get("Content-Encoding") != accept || status != 200 || !strings.Contains(unpacked(t, head, b), "a line of an answer") {
			t.Errorf("%s: %d %v", accept, status, head)
		}
	}
	// The user's own socket is as near as memory.
	r := httptest.NewRequest("GET", "/v1/cells", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	w := httptest.NewRecorder()
	d.local().ServeHTTP(w, r)
	if w.Header().Get("Content-Encoding") != "" || !strings.Contains(w.Body.String(), "a line of an answer") {
		t.Errorf("on the socket: %v", w.Header())
	}
}

// The ETag of a compressed answer has the same meaning in later requests.
func TestTagsOfCompressedAnswers(t *testing.T) {
	for given, ok := range map[string]bool{`"sha256:1"`: true, `"sha256:1-gzip"`: true, `"sha256:2", "sha256:1-zstd"`: true, `"sha256:1-br"`: false, `"sha256:2-gzip"`: false} {
		r := httptest.NewRequest("POST", "/", nil)
		r.Header.Set("If-Match", given)
		if err := checkPreconditions(r, "sha256:1"); (err == nil) != ok {
			t.Errorf("%s: %v", given, err)
		}
	}
}

// Lines that are flushed arrive one by one, as they are, and an answer that is broken off
// looks broken off.
func TestLinesAreNotCompressed(t *testing.T) {
	d, srv := house(t, Config{})
	secret := token(t, d, Read, time.Time{})
	next := make(chan bool)
	d.mux = d.routes([]Route{
		{Method: "GET", Path: "/v1/cells", Access: Read, Gives: Lines, handle: func(d *Daemon, w http.ResponseWriter, r *http.Request) (any, error) {
			s := &liner{w: w, cancel: func(error) {}}
			for i := range 3 {
				s.put(&api.StreamLine{Stdout: []byte(large())})
				if i < 2 {
					select {
					case <-next:
					case <-r.Context().Done(): // the test has failed
					}
				}
			}
			return done{}, nil
		}},
		{Method: "GET", Path: "/v1/tree", Access: Read, handle: func(_ *Daemon, w http.ResponseWriter, _ *http.Request) (any, error) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, large())
			panic(http.ErrAbortHandler)
		}},
	})
	r, _ := http.NewRequest("GET", srv.URL+"/v1/cells", nil)
	r.Header.Set("Authorization", "Bearer "+secret)
	r.Header.Set("Accept-Encoding", "gzip")
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.Header.Get("Content-Encoding") != "" {
		t.Fatalf("%v", resp.Header)
	}
	lines := json.NewDecoder(resp.Body)
	for i := range 3 {
		var l api.StreamLine
		if err := lines.Decode(&l); err != nil || string(l.Stdout) != large() {
			t.Fatalf("line %d: %v", i, err)
		}
		if i < 2 {
			next <- true // which the handler waits for before it writes more
		}
	}
	for range 3 * compressMost { // none of the compressors is lost
		r, _ := http.NewRequest("GET", srv.URL+"/v1/tree", nil)
		r.Header = resp.Request.Header
		if resp, err := http.DefaultTransport.RoundTrip(r); err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
			if err == nil {
				t.Fatal("an answer that was broken off is taken for a whole one")
			}
		}
	}
	d.compressors.mu.Lock()
	defer d.compressors.mu.Unlock()
	if d.compressors.lent != 0 {
		t.Errorf("%d compressors are lent", d.compressors.lent)
	}
}

// Compressors are bounded; when all are in use, an answer is sent uncompressed.
func TestCompressorsAreBounded(t *testing.T) {
	var c compressors
	var out bytes.Buffer
	var all []compressor
	for i := range compressMost {
		z := c.take(codings[i%2], &out)
		if z == nil {
			t.Fatalf("none of %d is free", compressMost)
		}
		all = append(all, z)
	}
	if c.take("gzip", &out) != nil {
		t.Error("there are more than there may be")
	}
	route := Route{Method: "GET", Path: "/v1/cells"}
	w := httptest.NewRecorder()
	a := &compressed{ResponseWriter: w, r: httptest.NewRequest("GET", "/", nil), route: route, pool: &c, coding: "gzip"}
	writeJSON(a, 200, large())
	a.end()
	if w.Header().Get("Content-Encoding") != "" || !strings.Contains(w.Body.String(), "a line of an answer") {
		t.Errorf("%v %.80s", w.Header(), w.Body)
	}
	for i, z := range all {
		c.put(codings[i%2], z)
	}
	if c.lent != 0 || len(c.idle["gzip"])+len(c.idle["zstd"]) > 2*idleCompressors {
		t.Errorf("%d are lent, %d wait", c.lent, len(c.idle["gzip"])+len(c.idle["zstd"]))
	}
	for _, coding := range codings { // also one that was used before, and for another answer
		for i := range 3 {
			out.Reset()
			z := c.take(coding, &out)
			fmt.Fprint(z, i, large())
			z.Close()
			if got := unpacked(t, http.Header{"Content-Encoding": {coding}}, out.Bytes()); got != fmt.Sprint(i, large()) {
				t.Errorf("%s: %.80q", coding, got)
			}
			c.put(coding, z)
		}
	}
}

// A body with a content coding is refused, with what could be sent.
func TestEncodedBodiesAreRefused(t *testing.T) {
	d, srv := house(t, Config{})
	secret := token(t, d, Admin, time.Time{})
	for path, want := range map[string]int{"POST /v1/gc": 415, "PUT /v1/cells/a/file?path=x": 415, "PUT /v1/cells/a/files?path=x": 415, "POST /v1/uploads": 415, "POST /v1/cells/a/ports/80/http/": 200} {
		for _, coding := range []string{"gzip", "br, gzip", "identity"} {
			method, path, _ := strings.Cut(path, " ")
			status, head, b := encoded(t, srv, method, path, secret, "", "Content-Encoding", coding)
			want := want
			if coding == "identity" {
				want = 200
			}
			if status != want || want == 415 && (head.Get("Accept-Encoding") != "identity" || !bytes.Contains(b, []byte(`"wrong-type"`))) {
				t.Errorf("%s %s with %s: %d %s %v", method, path, coding, status, b, head)
			}
		}
	}
}

// A part of something is not taken for the whole, as the rest of a broken upload would be.
func TestPartsAreRefused(t *testing.T) {
	d, srv := house(t, Config{})
	secret := token(t, d, Admin, time.Time{})
	for path, want := range map[string]int{"PUT /v1/cells/a/file?path=x": 400, "PUT /v1/cells/a/files?path=x": 400, "POST /v1/uploads": 400, "PUT /v1/cells/a/ports/80/http/": 200} {
		method, path, _ := strings.Cut(path, " ")
		status, _, b := encoded(t, srv, method, path, secret, "", "Content-Range", "bytes 5-9/10")
		if status != want || want == 400 && !bytes.Contains(b, []byte("Content-Range")) {
			t.Errorf("%s %s: %d %s", method, path, status, b)
		}
	}
}
