package daemon

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/testenv"
)

const oneRequest = "POST /v1/daemon/nothing HTTP/1.1\r\nHost: pando\r\nContent-Length: 2\r\n\r\n{}"

// pair is both ends of a connection over a unix socket, the second as the daemon has it.
func pair(t *testing.T, ending *atomic.Bool) (net.Conn, *localConn) {
	t.Helper()
	h := paths.Home{State: t.TempDir(), Run: t.TempDir()}
	l, err := Listen(h)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	local := &localListener{guarded: l.(*guarded), ending: ending.Load}
	c, err := net.Dial("unix", h.Socket())
	if err != nil {
		t.Fatal(err)
	}
	s, err := local.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.(*localConn).UnixConn.Close() })
	return c, s.(*localConn)
}

// A request that a client could write to a daemon that ends is answered, also when the server
// closes its connection before it reads it; one that it could not write was not received.
func TestX58UnreadRequestsAreAnswered(t *testing.T) {
	var ending atomic.Bool
	ending.Store(true)
	c, s := pair(t, &ending)
	if _, err := io.WriteString(c, oneRequest); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := io.WriteString(c, oneRequest); err == nil || n > 0 {
		t.Errorf("%d bytes were written to a daemon that reads no more: %v", n, err)
	}
	s.note(http.StateClosed)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get(api.EndingHeader) != "true" {
		t.Errorf("%+v %v", resp, err)
	}

	// What the server reads after Close is answered by its handler, or, without one, by end.
	for _, handled := range []bool{true, false} {
		c, s = pair(t, &ending)
		io.WriteString(c, oneRequest)
		s.Close()
		b := make([]byte, len(oneRequest))
		if _, err := io.ReadFull(s, b); err != nil || string(b) != oneRequest {
			t.Errorf("%q %v", b, err)
		}
		want := unreadAnswer
		if handled {
			done := s.handle()
			want = "the handler's answer"
			io.WriteString(s, want)
			done()
		}
		s.Close()
		s.note(http.StateClosed)
		if b, err := io.ReadAll(c); string(b) != want {
			t.Errorf("handled %v: %q %v", handled, b, err)
		}
	}
}

// A daemon that does not end, and a stream, close connections as they are told to.
func TestX58OtherConnectionsAreClosed(t *testing.T) {
	for _, stream := range []bool{false, true} {
		var ending atomic.Bool
		ending.Store(stream)
		c, s := pair(t, &ending)
		if stream {
			s.note(http.StateHijacked)
		}
		io.WriteString(c, "bytes")
		s.Close()
		s.note(http.StateClosed)
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("a stream (%v) ends with %q", stream, b)
		}
	}
}

// Whatever clients send while a daemon ends is done, is answered with the header, or was not
// sent; no connection breaks off without an answer.
func TestX58NoRequestIsLostAtTheEnd(t *testing.T) {
	h := paths.Home{State: t.TempDir(), Run: t.TempDir()}
	for range 20 {
		l, err := Listen(h)
		if err != nil {
			t.Fatal(err)
		}
		d, _ := house(t, Config{})
		ctx, end := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- d.Serve(ctx, l) }()
		const clients = 8
		lost := make(chan string, clients)
		var asked atomic.Int64
		for range clients {
			go func() {
				lost <- func() string {
					for {
						c, err := net.Dial("unix", h.Socket())
						if err != nil {
							return "" // refused
						}
						in := bufio.NewReader(c)
						for {
							n, err := io.WriteString(c, oneRequest)
							if err != nil {
								c.Close()
								if n > 0 {
									return "a part was taken"
								}
								break
							}
							resp, err := http.ReadResponse(in, nil)
							if err != nil {
								c.Close()
								return "no answer: " + err.Error()
							}
							io.Copy(io.Discard, resp.Body)
							asked.Add(1)
							if resp.Header.Get(api.EndingHeader) == "" && resp.StatusCode == http.StatusServiceUnavailable {
								return "an answer without the header"
							}
							if resp.Close {
								c.Close()
								break
							}
						}
					}
				}()
			}()
		}
		testenv.Eventually(t, func() bool { return asked.Load() > 50 }, "fifty answers")
		end()
		for range clients {
			if why, _ := testenv.Receive(t, lost, "a client to end"); why != "" {
				t.Error(why)
			}
		}
		if err, _ := testenv.Receive(t, served, "the daemon to end"); err != nil && !strings.Contains(err.Error(), "closed") {
			t.Error(err)
		}
	}
}
