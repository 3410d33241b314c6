package client

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
)

// patience is how long a lost daemon on another host is looked for after it has answered once:
// it may be restarting, which its cells survive.
const patience = 30 * time.Second

// hangUps is how often a request that changes nothing is sent to daemons that hang up at once.
const hangUps = 3

// send sends a request, and again what may be sent again: what a daemon refused because it
// is ending, or has not read, and, when the daemon hung up before it had answered, what changes nothing and
// what has a key by which the daemon knows that it has done it.
func (c *Client) send(req *http.Request, send sender) (*http.Response, error) {
	repeatable := c.repeatable(req)
	began, wait := time.Now(), time.Duration(0)
	for tries := 1; ; tries++ {
		resp, err := send(req)
		switch {
		case req.Context().Err() != nil:
			return resp, err
		case err == nil:
			if resp.Header.Get(api.EndingHeader) == "" || req.Body != nil && req.GetBody == nil || time.Since(began) > patience {
				return resp, nil
			}
			resp.Body.Close()
			wait = min(max(2*wait, 20*time.Millisecond), time.Second)
		case errors.As(err, &unread{}) && time.Since(began) < patience:
			wait = min(max(2*wait, 20*time.Millisecond), time.Second)
		case !repeatable:
			return nil, err
		case hungUp(err) && tries < hangUps: // a connection that was kept too long, or a daemon that is just ending
			wait = 0
		case c.remote == nil || c.answered.Load() == 0 || !hungUp(err) && !unreachable(err) || time.Since(began) > patience:
			return nil, err
		default:
			wait = min(max(2*wait, 20*time.Millisecond), time.Second)
		}
		if err := pause(req.Context(), wait); err != nil {
			return nil, err
		}
		if req.GetBody != nil {
			if req.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// repeatable reports whether a request may be sent twice, and adds an idempotency key where that
// needs one. Only daemons on other hosts get keys, since a key costs a journal write. Requests
// that run commands or code get none, since these end with their connection.
func (c *Client) repeatable(req *http.Request) bool {
	switch {
	case req.Method == http.MethodGet:
		return true
	case c.remote == nil || req.Method != http.MethodPost || req.Body != nil && req.GetBody == nil,
		strings.HasSuffix(req.URL.Path, "/execs"), strings.HasSuffix(req.URL.Path, "/eval"):
		return false
	}
	req.Header.Set("Idempotency-Key", rand.Text())
	return true
}

// unreachable reports whether err says that no daemon answers at its address.
func unreachable(err error) bool {
	e := asAPI(err)
	return e != nil && e.Kind == "unavailable"
}

// pause waits for d, and returns the context's error if it ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
