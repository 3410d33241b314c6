package client

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
)

// PANDO_HOST is an address, or refused with what it has to be; plain HTTP goes to this
// host alone.
func FuzzHost(f *testing.F) {
	for _, s := range []string{"", "http://127.0.0.1:7070", "http://[::1]:7070", "http://localhost", "https://example.org", "https://h:1#sha256=" + strings.Repeat("ab", 32),
		"http://example.org", "http://127.0.0.1.example.org", "https://u:p@h", "https://h/x", "https://h#x", "ftp://h", "http://[::1%25lo]:1", "http://2130706433:1", "https://h:99999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := parseHost(s)
		if r.err != nil {
			if e := asAPI(r.err); e == nil || e.Kind != "invalid" || e.Hint == "" {
				t.Errorf("%q: %v", s, r.err)
			}
			return
		}
		host, _, err := net.SplitHostPort(r.addr)
		if err != nil || host == "" {
			t.Fatalf("%q: %q", s, r.addr)
		}
		if a := net.ParseIP(host); r.tls == nil && host != "localhost" && (a == nil || !a.IsLoopback()) {
			t.Errorf("%q goes to %s in plain text", s, r.addr)
		}
	})
}

// E51: whatever is in a name arrives as it was; an answer that is empty or no JSON is
// a clear error; IPv6 addresses work.
func TestE51ClientSpeaksPlainly(t *testing.T) {
	var asked string
	answer := `{}`
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/daemon" {
			asked = r.URL.EscapedPath()
		}
		io.WriteString(w, answer)
	})
	for _, network := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", network)
		if err != nil {
			if strings.HasPrefix(network, "[") {
				t.Log("no IPv6 here")
				continue
			}
			t.Fatal(err)
		}
		srv := httptest.NewUnstartedServer(h)
		srv.Listener.Close()
		srv.Listener = l
		srv.Start()
		defer srv.Close()
		c := New(Config{Host: "http://" + l.Addr().String(), Token: "pando_x"})
		answer = `{}`
		for name, want := range map[string]string{"a b": "a%20b", "a/b": "a%2Fb", "ü": "%C3%BC", "a?b#c": "a%3Fb%23c", "%2f": "%252f", "a\r\nb": "a%0D%0Ab", "": "-"} {
			if _, err := c.Pause(context.Background(), name); err != nil || asked != "/v1/cells/"+want+"/pause" {
				t.Errorf("%s: %q is asked for as %s, %v", network, name, asked, err)
			}
		}
		for _, empty := range []string{"", "\n", "<html>", "{"} {
			answer = empty
			if _, err := c.Pause(context.Background(), "web"); err == nil || !strings.Contains(err.Error(), "cannot read the daemon's answer to POST /v1/cells/web/pause") {
				t.Errorf("%q: %v", empty, err)
			}
		}
	}
	if _, err := New(Config{Host: "http://127.0.0.1:1"}).Cell(context.Background(), ".."); err == nil || asAPI(err).Kind != "invalid" {
		t.Errorf("a way up is asked for: %v", err)
	}
	if _, err := New(Config{Host: "http://127.0.0.1:1"}).Begin(context.Background(), "nothing", "", api.RunRequest{}); err == nil || asAPI(err).Kind != "invalid" {
		t.Errorf("no operation is begun: %v", err)
	}
}
