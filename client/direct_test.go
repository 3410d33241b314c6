package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/testenv"
)

// counted counts the connections that were accepted.
type counted struct {
	net.Listener
	n atomic.Int64
}

func (c *counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.n.Add(1)
	}
	return conn, err
}

// daemonAt answers requests on a socket.
func daemonAt(t *testing.T, socket string, h http.HandlerFunc) (*counted, *http.Server) {
	t.Helper()
	os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	at := &counted{Listener: l}
	srv := &http.Server{Handler: h}
	go srv.Serve(at)
	t.Cleanup(func() { srv.Close() })
	return at, srv
}

// Sequential requests need one connection, whatever the answers look like.
func TestDirectKeepsItsConnection(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	at, _ := daemonAt(t, socket, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		switch {
		case r.Method == "GET":
			fmt.Fprintf(w, "{%s}\n\n", strings.Repeat(" ", 100_000)) // in chunks
		case r.Method == "DELETE":
			w.WriteHeader(http.StatusNoContent)
		case strings.HasSuffix(r.URL.Path, "/eval"):
			fmt.Fprintln(w, `{"stdout":"b3V0"}`)
			http.NewResponseController(w).Flush()
			fmt.Fprintln(w, `{"result":{}}`)
		default:
			w.WriteHeader(http.StatusConflict)
			fmt.Fprintln(w, `{"kind":"conflict","message":"no"}`)
		}
	})
	c := New(Config{Socket: socket})
	for range 5 {
		if _, err := c.Eval(t.Context(), "a", api.EvalRequest{Code: "1"}, Listener{}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Daemon(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := c.do(t.Context(), "DELETE", "/v1/x", nil, nil, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Branch(t.Context(), "a", api.BranchRequest{}); kindOf(err) != "conflict" {
			t.Fatal(err)
		}
	}
	if n := at.n.Load(); n != 1 {
		t.Errorf("it took %d connections", n)
	}
	var asks sync.WaitGroup
	for range 50 {
		asks.Go(func() {
			if _, err := c.Daemon(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	asks.Wait()
	c.direct.mu.Lock()
	defer c.direct.mu.Unlock()
	if n := len(c.direct.idle); n > maxIdle {
		t.Errorf("%d connections wait", n)
	}
}

// A daemon that ended since has got nothing of a request, and the next one gets
// it, once.
func TestDirectFindsTheNextDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	var asked atomic.Int64
	h := func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "GET" {
			asked.Add(1)
		}
		fmt.Fprintln(w, "{}")
	}
	_, first := daemonAt(t, socket, h)
	c := New(Config{Socket: socket})
	var both sync.WaitGroup // two connections wait
	for range 2 {
		both.Go(func() { c.Daemon(t.Context()) })
	}
	both.Wait()
	first.Close()
	daemonAt(t, socket, h)
	for i := range int64(3) {
		if _, err := c.Branch(t.Context(), "a", api.BranchRequest{}); err != nil || asked.Load() != i+1 {
			t.Fatalf("asked %d times: %v", asked.Load(), err)
		}
	}
}

// An answer counts although the request was not read to its end.
func TestDirectIsRefusedEarly(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	daemonAt(t, socket, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			fmt.Fprintln(w, "{}")
			return
		}
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		fmt.Fprintln(w, `{"kind":"invalid","message":"too much"}`)
	})
	c := New(Config{Socket: socket})
	for range 2 { // the daemon waits half a second before it closes
		_, err := c.Eval(t.Context(), "a", api.EvalRequest{Code: strings.Repeat("x", 4<<20)}, Listener{})
		if kindOf(err) != "invalid" {
			t.Fatalf("it is %v", err)
		}
	}
}

// A caller that gives up before an answer hangs up.
func TestDirectGivesUp(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	gone := make(chan bool, 1)
	daemonAt(t, socket, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			fmt.Fprintln(w, "{}")
			return
		}
		io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
			gone <- true
		case <-t.Context().Done(): // the test has failed
		}
	})
	c := New(Config{Socket: socket})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Branch(ctx, "a", api.BranchRequest{})
	if kindOf(err) != "interrupted" {
		t.Errorf("it is %v", err)
	}
	testenv.Receive(t, gone, "the end of the request")
	if _, err := c.Daemon(t.Context()); err != nil {
		t.Errorf("nothing can be asked any more: %v", err)
	}
}

func kindOf(err error) string {
	e, _ := errors.AsType[*api.Error](err)
	if e == nil {
		return ""
	}
	return string(e.Kind)
}
