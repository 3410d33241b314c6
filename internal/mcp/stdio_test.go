package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/access"
)

// A request over standard input that is not UTF-8 is refused with its number, and the session goes
// on.
func TestInputThatIsNoText(t *testing.T) {
	in, send := io.Pipe()
	read, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- New(Config{Client: client.New(client.Config{Socket: "none"})}).answer(t.Context(), in, out)
		out.Close()
	}()
	answers := bufio.NewReader(read)
	ask := func(line string) (got struct {
		ID     json.RawMessage
		Result json.RawMessage
		Error  *struct {
			Code    int
			Message string
		}
	}) {
		t.Helper()
		if _, err := io.WriteString(send, line+"\n"); err != nil {
			t.Fatal(err)
		}
		answer, err := answers.ReadBytes('\n')
		if err != nil || json.Unmarshal(answer, &got) != nil {
			t.Fatalf("%s: %q, %v", line, answer, err)
		}
		return got
	}
	if got := ask(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`); got.Result == nil {
		t.Fatalf("initialize: %+v", got)
	}
	io.WriteString(send, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	for id, line := range map[string]string{
		`2`:    `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"show","arguments":{"id":"caf` + "\xe9" + `"}}}`,
		`"x"`:  `{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"show","arguments":{"id":"caf\udce9"}}}`,
		`null`: "\xff\xfe{",
	} {
		got := ask(line)
		if string(got.ID) != id || got.Error == nil || !strings.Contains(got.Error.Message, "not UTF-8") {
			t.Errorf("%q: id %s, %+v", line, got.ID, got.Error)
		}
	}
	// What is no JSON, or no message, ends nothing, either. Blank lines are none.
	for line, want := range map[string]int{
		"garbage": -32700, `{"jsonrpc":"2.0","id":5,`: -32700, `{"a":1} {"b":2}`: -32700,
		"42": -32600, "{}": -32600, "[]": -32600, "[7]": -32600, `{"jsonrpc":"1.0","id":5,"method":"ping"}`: -32600, "\n \n{": -32700,
	} {
		if got := ask(line); got.Error == nil || got.Error.Code != want || got.Result != nil {
			t.Errorf("%q: %+v", line, got.Error)
		}
	}
	for _, batch := range []string{`[{"jsonrpc":"2.0","id":5,"method":"ping"}]`, `[{"jsonrpc":"2.0","id":5,"method":"ping"},{"jsonrpc":"2.0","id":5,"method":"ping"}]`} {
		if got := ask(batch); got.Error == nil || got.Error.Code != -32600 || !strings.Contains(got.Error.Message, "it is a batch") {
			t.Errorf("%s: %+v", batch, got.Error)
		}
	}
	// Space around a message is no part of it.
	for _, space := range []string{" ", "\t", " \r"} {
		if got := ask(space + `{"jsonrpc":"2.0","id":6,"method":"ping"}` + space); string(got.ID) != "6" || got.Result == nil {
			t.Errorf("with %q around it: id %s, %+v", space, got.ID, got.Error)
		}
	}
	if got := ask(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`); string(got.ID) != "3" || !bytes.Contains(got.Result, []byte(`"exec"`)) {
		t.Errorf("after them: id %s, %.100s", got.ID, got.Result)
	}
	// A line longer than one buffer is whole.
	if got := ask(`{"jsonrpc":"2.0","id":4,"method":"tools/list","params":{"_meta":{"x":"` + strings.Repeat("ü", 5000) + `"}}}`); string(got.ID) != "4" || got.Result == nil {
		t.Errorf("a long line: id %s, %+v", got.ID, got.Error)
	}
	send.Close()
	if err := <-ended; err != nil {
		t.Errorf("at the end of the input: %v", err)
	}
}

// A request in a session that this daemon does not know is answered without one, and the log says
// so: its client can't cancel calls.
func TestUnknownSessionIsLogged(t *testing.T) {
	var log bytes.Buffer
	h := Handler(Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(*http.Request) *client.Client { return client.New(client.Config{Socket: "none"}) })
	post := func(session string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
		r = r.WithContext(access.With(r.Context(), access.Principal{Name: "x", Level: access.Run}))
		for name, value := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Session-Id": session} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	post("")
	if strings.Contains(log.String(), "without its session") {
		t.Errorf("a request without a session is logged: %s", log.String())
	}
	w := post("of-an-earlier-daemon")
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"exec"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if got := strings.Count(log.String(), "level=INFO msg=\"answered without its session, which this daemon does not know\" method=POST"); got != 1 {
		t.Errorf("it is logged %d times: %s", got, log.String())
	}
}

// Agents choose among the backends with an isolation, and the error for another names them.
func TestBackendsOfAgents(t *testing.T) {
	s := New(Config{})
	for _, b := range []string{"", "auto", "namespace", "gvisor", "microvm"} {
		if req, err := s.request(place{Backend: b}); err != nil || req.Backend != b {
			t.Errorf("%q: %q, %v", b, req.Backend, err)
		}
	}
	for _, b := range []string{"none", "mem", "docker"} {
		_, err := s.request(place{Backend: b})
		if e, ok := err.(*api.Error); !ok || !strings.Contains(e.Hint, "namespace, gvisor or microvm") {
			t.Errorf("%q: %v", b, err)
		}
	}
}
