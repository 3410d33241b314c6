package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/operation"
	"github.com/pando-dev/pando/internal/testenv"
)

// serve answers requests with work.
func serve(t *testing.T, do operation.Work) (*Daemon, *httptest.Server) {
	d := &Daemon{cfg: Config{Log: slog.New(slog.DiscardHandler)}, common: &common{life: t.Context()}}
	route := Route{Access: Act, cannot: "do it", handle: func(d *Daemon, w http.ResponseWriter, r *http.Request) (any, error) {
		if _, err := decode[api.EvalRequest](w, r); err != nil {
			return nil, err
		}
		return d.stream(w, r, "", do)
	}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.answer(w, r.WithContext(access.With(r.Context(), access.Local)), route)
	}))
	t.Cleanup(srv.Close)
	return d, srv
}

func ask(t *testing.T, ctx context.Context, srv *httptest.Server, accept string) (status int, body *bufio.Reader) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "POST", srv.URL, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	resp, err := srv.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp.StatusCode, bufio.NewReader(resp.Body)
}

func rest(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The caller decides between lines and the result alone; the end of lines is
// always a result or an error.
func TestStreamEnds(t *testing.T) {
	said := func(ctx context.Context, out func(api.StreamLine)) (any, error) {
		out(api.StreamLine{Stdout: []byte("hi")})
		return map[string]int{"n": 1}, nil
	}
	failed := func(ctx context.Context, out func(api.StreamLine)) (any, error) {
		out(api.StreamLine{Stderr: []byte("oh")})
		return nil, cell.Errorf(cell.Conflict, "x", "wait", "it is busy")
	}
	refused := func(ctx context.Context, out func(api.StreamLine)) (any, error) {
		return nil, cell.Errorf(cell.Conflict, "x", "wait", "it is busy")
	}
	for _, c := range []struct {
		name   string
		do     operation.Work
		accept string
		status int
		want   string
	}{
		{"lines", said, "application/json;q=0.1, application/jsonl", 200, `{"stdout":"aGk="}` + "\n" + `{"result":{"n":1}}` + "\n"},
		{"alone", said, "*/*", 200, `{"n":1}` + "\n"},
		{"failed", failed, jsonLines, 200, `{"stderr":"b2g="}` + "\n" + `{"error":{"kind":"conflict","message":"cannot do it: it is busy","hint":"wait"}}` + "\n"},
		{"failed alone", failed, "", 409, `{"kind":"conflict","message":"cannot do it: it is busy","hint":"wait"}` + "\n"},
		{"refused before the first line", refused, jsonLines, 409, `{"kind":"conflict","message":"cannot do it: it is busy","hint":"wait"}` + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, srv := serve(t, c.do)
			status, body := ask(t, t.Context(), srv, c.accept)
			if diff := cmp.Diff(c.want, rest(t, body)); diff != "" || status != c.status {
				t.Errorf("status %d, (-want +got):\n%s", status, diff)
			}
		})
	}
}

// A line is there as soon as it was said, and work ends when its caller does,
// also while it waits for the caller to read.
func TestStreamHangUp(t *testing.T) {
	for _, accept := range []string{jsonLines, "application/json"} {
		ended := make(chan error, 1)
		began := make(chan struct{})
		_, srv := serve(t, func(ctx context.Context, out func(api.StreamLine)) (any, error) {
			out(api.StreamLine{Stdout: []byte("x")})
			close(began)
			for ctx.Err() == nil {
				out(api.StreamLine{Stdout: make([]byte, 64<<10)})
				select {
				case <-ctx.Done():
				case <-time.After(time.Millisecond):
				}
			}
			ended <- context.Cause(ctx)
			out(api.StreamLine{Stdout: []byte("too late")})
			return nil, ctx.Err()
		})
		ctx, hangUp := context.WithCancel(t.Context())
		if accept == jsonLines {
			_, body := ask(t, ctx, srv, accept)
			if l, err := body.ReadString('\n'); err != nil || !strings.Contains(l, "stdout") {
				t.Fatal(l, err)
			}
			hangUp()
		} else {
			go func() { <-began; hangUp() }()
			r, _ := http.NewRequestWithContext(ctx, "POST", srv.URL, strings.NewReader("{}"))
			if _, err := srv.Client().Do(r); err == nil {
				t.Fatal("it answered")
			}
		}
		testenv.Receive(t, ended, accept+": the end of work after its caller hung up")
	}
}

// Work ends with the daemon, and its caller is told so.
func TestStreamDaemonEnds(t *testing.T) {
	life, end := context.WithCancel(t.Context())
	d, srv := serve(t, func(ctx context.Context, out func(api.StreamLine)) (any, error) {
		out(api.StreamLine{Stdout: []byte("x")})
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	d.life = life
	_, body := ask(t, t.Context(), srv, jsonLines)
	if _, err := body.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	end()
	var l api.StreamLine
	if err := json.Unmarshal([]byte(rest(t, body)), &l); err != nil || l.Error == nil || l.Error.Kind != "unavailable" {
		t.Errorf("the last line is %+v (%v)", l, err)
	}
}

// Lines after the end of the work are dropped, and do not block.
func TestStreamTooLate(t *testing.T) {
	for _, lines := range []int{0, 1} {
		over, said := make(chan struct{}), make(chan struct{})
		_, srv := serve(t, func(ctx context.Context, out func(api.StreamLine)) (any, error) {
			for range lines {
				out(api.StreamLine{Stdout: []byte("x")})
			}
			go func() {
				defer close(said)
				<-over
				for range 2 * waitingLines {
					out(api.StreamLine{Stdout: []byte("late")})
				}
			}()
			return 1, nil
		})
		_, body := ask(t, t.Context(), srv, jsonLines)
		got := rest(t, body)
		close(over)
		testenv.Receive(t, said, fmt.Sprintf("the end of the work, after %d lines,", lines))
		if strings.Contains(got, "bGF0ZQ") || !strings.HasSuffix(got, `{"result":1}`+"\n") {
			t.Errorf("it was heard: %s", got)
		}
	}
}

// X42: what streams has its headers soon, however long the work is silent, and says at
// its end what went wrong.
func TestX42SilentWorkHasHeaders(t *testing.T) {
	silent := make(chan struct{})
	_, srv := serve(t, func(ctx context.Context, out func(api.StreamLine)) (any, error) {
		<-silent // nothing comes before the caller has the headers
		return nil, cell.Errorf(cell.Conflict, "x", "wait", "it is busy")
	})
	status, body := ask(t, t.Context(), srv, jsonLines)
	close(silent)
	if got := rest(t, body); status != http.StatusOK || !strings.Contains(got, `{"error":`) || strings.Count(got, "\n") != 1 {
		t.Errorf("%d: %q", status, got)
	}
}
