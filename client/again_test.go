package client

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
)

// A daemon elsewhere that hangs up before it answers, and is away for a moment, is
// asked again with the same key; what runs code is not.
func TestC32ARepeatedRequestKeepsItsKey(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var now atomic.Pointer[http.Server]
	keys := make(chan string, 10)
	var lose atomic.Int64
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if r.Method == http.MethodPost {
			keys <- r.URL.Path + " " + r.Header.Get("Idempotency-Key") + " " + string(b)
			if lose.Add(-1) >= 0 {
				go now.Load().Close()
				c, _, _ := http.NewResponseController(w).Hijack()
				c.Close()
				return
			}
		}
		io.WriteString(w, "{}")
	})
	serve := func(l net.Listener) {
		s := &http.Server{Handler: h}
		now.Store(s)
		s.Serve(l)
	}
	go serve(l)
	c := New(Config{Host: "http://" + l.Addr().String(), Token: "pando_x"})
	ctx := context.Background()
	if _, err := c.Daemon(ctx); err != nil {
		t.Fatal(err)
	}
	lose.Store(1)
	again := func() { // the next daemon, at the same address
		for time.Sleep(300 * time.Millisecond); ; time.Sleep(10 * time.Millisecond) {
			if l, err := net.Listen("tcp", l.Addr().String()); err == nil {
				serve(l)
				return
			}
		}
	}
	go again()
	if _, err := c.Checkpoint(ctx, "web", api.CheckpointRequest{Message: "m"}); err != nil {
		t.Fatal(err)
	}
	if a, b := <-keys, <-keys; a != b || len(a) < len("/v1/cells/web/checkpoints ")+20 {
		t.Errorf("first %q, then %q", a, b)
	}
	lose.Store(1)
	go again()
	if _, err := c.RunExec(ctx, "web", api.ExecRequest{Command: []string{"x"}}); err == nil || len(keys) != 1 {
		t.Errorf("an exec was sent %d times: %v", len(keys), err)
	}
	now.Load().Close()
}

// A daemon that has never answered is not waited for.
func TestNoPatienceWithStrangers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var visits atomic.Int32
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			visits.Add(1)
			c.Close()
		}
	}()
	_, err = New(Config{Host: "http://" + l.Addr().String(), Token: "pando_x"}).Cells(t.Context())
	l.Close()
	<-over
	if err == nil || visits.Load() != 3 { // at once, in case the first connections were kept too long
		t.Errorf("asked %d times: %v", visits.Load(), err)
	}
}

// What a daemon refused because it is ending is sent again, whatever it is: nothing of it
// was done. A daemon that says that it is ending gets nothing that changes something.
func TestX58EndingDaemonsRequestsAreSentAgain(t *testing.T) {
	var ends, refuses, asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		switch {
		case r.Method == http.MethodGet:
			fmt.Fprintf(w, `{"ending": %v}`, ends.Add(-1) >= 0)
		case ends.Load() > 0:
			t.Error("a daemon that said that it is ending is asked for more")
		case refuses.Add(-1) >= 0:
			w.Header().Set(api.EndingHeader, "true")
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			if !strings.Contains(string(b), `"command":["x"]`) {
				t.Errorf("it was sent %q", b)
			}
			asked.Add(1)
			io.WriteString(w, `{"exec": "x-1"}`)
		}
	}))
	defer s.Close()
	ends.Store(2)
	refuses.Store(2)
	c := New(Config{Host: s.URL, Token: "pando_x"})
	x, err := c.StartExec(t.Context(), "web", api.ExecRequest{Command: []string{"x"}})
	if err != nil || x.ID != "x-1" || asked.Load() != 1 {
		t.Errorf("%+v, %v; it was done %d times", x, err, asked.Load())
	}
}

// A request that a daemon at the unix socket has not read is sent again, whatever it is. One
// that it has read, or begun to answer, is not. At a TCP socket what was read is not certain, and
// none is.
func TestX58UnreadRequestsAreSentAgain(t *testing.T) {
	for _, x := range []struct {
		name   string
		read   int64  // bytes that the first daemon reads; -1: all
		answer string // that it sends
		times  int32  // at the unix socket
	}{
		{"none is read", 0, "", 2}, {"a part is read", 10, "", 2}, {"all is read", -1, "", 1}, {"an answer has begun", 10, "HTTP/1.1 200", 1},
	} {
		for network, address := range map[string]string{"unix": filepath.Join(t.TempDir(), "s"), "tcp": "127.0.0.1:0"} {
			l, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			var came atomic.Int32
			serve := func(c net.Conn) {
				defer c.Close()
				in := bufio.NewReader(c)
				if network == "tcp" { // where the client asks first whether the daemon is ending
					http.ReadRequest(in)
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
				}
				if came.Add(1) > 1 {
					http.ReadRequest(in)
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
					return
				}
				if x.read > 0 {
					c.Read(make([]byte, x.read))
				} else if x.read < 0 {
					req, _ := http.ReadRequest(in)
					io.Copy(io.Discard, req.Body)
				}
				io.WriteString(c, x.answer)
			}
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					serve(c)
				}
			}()
			times, cfg := x.times, Config{Socket: address}
			if network == "tcp" {
				times, cfg = 1, Config{Host: "http://" + l.Addr().String(), Token: "pando_x"}
			}
			_, err = New(cfg).RunExec(t.Context(), "web", api.ExecRequest{Command: []string{"x"}})
			if (err == nil) != (times > 1) || came.Load() != times {
				t.Errorf("%s, %s: sent %d times, not %d: %v", network, x.name, came.Load(), times, err)
			}
		}
	}
}
