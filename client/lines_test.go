package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/testenv"
)

// answering returns a client of a daemon that answers every request with text.
func answering(t *testing.T, answer http.HandlerFunc) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			fmt.Fprintln(w, "{}")
			return
		}
		answer(w, r)
	})}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return New(Config{Socket: socket})
}

// Lines reach the listener in their order, of any length, and the last is the
// answer.
func TestEvalListens(t *testing.T) {
	long := strings.Repeat("x", 300_000)
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != "application/jsonl" || r.URL.EscapedPath() != "/v1/cells/a%2Fb/eval" {
			t.Errorf("%s, accepting %s", r.URL.EscapedPath(), r.Header.Get("Accept"))
		}
		fmt.Fprintln(w, `{"progress":{"step":"waiting"}}`)
		fmt.Fprintln(w, `{"stdout":"b3V0"}`)
		fmt.Fprintln(w, `{"later":{"than":"this client"}}`)
		fmt.Fprintln(w, `{"stderr":"ZXJy"}`)
		fmt.Fprintf(w, `{"result":{"name":%q,"result":{"ok":true}}}`+"\n", long)
	})
	var heard []string
	res, err := c.Eval(t.Context(), "a/b", api.EvalRequest{Code: "1"}, Listener{
		Progress: func(p api.Progress) { heard = append(heard, p.Step) },
		Stdout:   func(b []byte) { heard = append(heard, "1"+string(b)) },
		Stderr:   func(b []byte) { heard = append(heard, "2"+string(b)) },
	})
	if err != nil || res.Name != long || string(res.Result) != `{"ok":true}` {
		t.Fatalf("%v, %d bytes of name, %s", err, len(res.Name), res.Result)
	}
	if diff := cmp.Diff([]string{"waiting", "1out", "2err"}, heard); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An answer that breaks off is an error, never a result.
func TestStreamBreaksOff(t *testing.T) {
	for name, c := range map[string]struct{ text, kind string }{
		"nothing":       {"", "unavailable"},
		"no last line":  {`{"stdout":"b3V0"}` + "\n", "unavailable"},
		"half a line":   {`{"stdout":"b3V0"}` + "\n" + `{"result":{"na`, "unavailable"},
		"no JSON":       {"what\n", "internal"},
		"said to fail":  {`{"stdout":"b3V0"}` + "\n" + `{"error":{"kind":"conflict","message":"cannot"}}` + "\n", "conflict"},
		"another shape": {`{"result":[1]}` + "\n", "internal"},
	} {
		t.Run(name, func(t *testing.T) {
			cl := answering(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, c.text) })
			_, err := cl.Eval(t.Context(), "c", api.EvalRequest{}, Listener{})
			if e, ok := errors.AsType[*api.Error](err); !ok || string(e.Kind) != c.kind {
				t.Errorf("it is %v, not %s", err, c.kind)
			}
		})
	}
}

// A caller that stops reading hangs up, and the daemon notices.
func TestStreamHangsUp(t *testing.T) {
	gone := make(chan bool, 1)
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, `{"stdout":"b3V0"}`)
		http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			gone <- true
		case <-t.Context().Done(): // the test has failed
		}
	})
	ctx, enough := context.WithCancel(t.Context())
	_, err := c.ForkTemplate(ctx, "py", api.WarmForkRequest{}, Listener{Stdout: func([]byte) { enough() }})
	if e, ok := errors.AsType[*api.Error](err); !ok || e.Kind != "interrupted" {
		t.Errorf("it is %v", err)
	}
	testenv.Receive(t, gone, "the end of the request")
}
