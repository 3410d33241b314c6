package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
)

// Begin starts long work that continues without the caller. kind is one of api.OperationKinds,
// of the cell, run or template in its path ("" where it has none), req the body of the request.
func (c *Client) Begin(ctx context.Context, kind, of string, req any) (out api.Operation, err error) {
	for _, k := range api.OperationKinds {
		if k.Kind != kind {
			continue
		}
		path := k.Path
		if a, b := strings.Index(path, "{"), strings.Index(path, "}"); a > 0 {
			path = path[:a] + segment(of) + path[b+1:]
		}
		b, err := encode(req)
		if err != nil {
			return out, err
		}
		body, err := c.ask(ctx, c.direct.do, http.Header{"Prefer": {"respond-async"}}, "POST", path, nil, bytes.NewReader(b), "application/json")
		if err != nil {
			return out, err
		}
		defer body.Close()
		if err := json.NewDecoder(body).Decode(&out); err != nil || out.ID == "" {
			return out, &api.Error{Kind: "internal", Message: fmt.Sprintf("cannot read the daemon's answer to POST %s: %v", path, err)}
		}
		return out, nil
	}
	return out, &api.Error{Kind: "invalid", Message: fmt.Sprintf("cannot begin %q: there is no such operation", kind)}
}

// Operations lists the operations that the caller may see, newest first.
func (c *Client) Operations(ctx context.Context) (out []api.Operation, err error) {
	return out, c.do(ctx, "GET", "/v1/operations", nil, nil, &out)
}

// Operation shows an operation; with wait, when it has ended.
func (c *Client) Operation(ctx context.Context, id string, wait bool) (out api.Operation, err error) {
	q := url.Values{}
	flag(q, "wait", wait)
	return out, c.do(ctx, "GET", "/v1/operations/"+segment(id), q, nil, &out)
}

// Abort stops an operation, and returns when it is undone.
func (c *Client) Abort(ctx context.Context, id string) (out api.Operation, err error) {
	return out, c.do(ctx, "POST", "/v1/operations/"+segment(id)+"/abort", nil, nil, &out)
}

// Follow passes on the events of an operation, from the oldest kept one on, and returns the
// operation when it has ended. After losing its connection it continues where it was, as long as
// a daemon answers.
func (c *Client) Follow(ctx context.Context, id string, on Listener) (out api.Operation, err error) {
	var seen int64
	for {
		before := seen
		over, err := c.follow(ctx, id, on, &seen, &out)
		if over || ctx.Err() != nil || err != nil && (!hungUp(err) || seen == before) {
			if err != nil {
				err = unwrap(ctx, err)
			}
			return out, err
		}
		select { // a daemon that is just restarting
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// follow reads one stream of events and advances seen.
func (c *Client) follow(ctx context.Context, id string, on Listener, seen *int64, out *api.Operation) (over bool, err error) {
	body, err := c.ask(ctx, c.direct.do, http.Header{"Accept": {"text/event-stream"}, "Last-Event-ID": {strconv.FormatInt(*seen, 10)}},
		"GET", "/v1/operations/"+segment(id)+"/events", nil, nil, "")
	if err != nil {
		return true, err
	}
	defer body.Close()
	for ev, err := range serverEvents(body) {
		if err != nil {
			return false, err
		}
		switch ev.name {
		case "end":
			if err := json.Unmarshal(ev.data, out); err != nil {
				return true, &api.Error{Kind: "internal", Message: "cannot read the end of operation " + id + ": " + err.Error()}
			}
			return true, nil
		case "":
			var l api.StreamLine
			if err := json.Unmarshal(ev.data, &l); err != nil {
				return true, &api.Error{Kind: "internal", Message: "cannot read what operation " + id + " says: " + err.Error()}
			}
			on.tell(l)
		}
		if n, err := strconv.ParseInt(ev.id, 10, 64); err == nil {
			*seen = n
		}
	}
	return false, io.ErrUnexpectedEOF
}

// serverEvent is one server-sent event (https://html.spec.whatwg.org/multipage/server-sent-events.html).
type serverEvent struct {
	name, id string
	data     []byte // one line, as the daemon writes it
}

// follow yields what a stream of server-sent events says, which are all of one type, until it ends or the caller stops.
func follow[T any](ctx context.Context, c *Client, path string, q url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		body, err := c.ask(ctx, c.direct.do, http.Header{"Accept": {"text/event-stream"}}, "GET", path, q, nil, "")
		if err != nil {
			yield(none, err)
			return
		}
		defer body.Close()
		for ev, err := range serverEvents(body) {
			v := none
			switch {
			case err != nil:
				err = unwrap(ctx, err)
			case ev.name == "error":
				e := new(api.Error)
				if err = json.Unmarshal(ev.data, e); err == nil {
					err = e
				}
			case ev.name != "":
				continue
			default:
				err = json.Unmarshal(ev.data, &v)
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}

// serverEvents reads a stream of server-sent events, which has no end but an error.
func serverEvents(body io.Reader) iter.Seq2[serverEvent, error] {
	return func(yield func(serverEvent, error) bool) {
		lines := bufio.NewReader(body)
		var ev serverEvent
		for {
			line, err := readLine(lines)
			if err != nil {
				yield(serverEvent{}, err)
				return
			}
			line = bytes.TrimRight(line, "\r\n")
			key, v, _ := bytes.Cut(line, []byte(": "))
			switch string(key) {
			case "event":
				ev.name = string(v)
			case "id":
				ev.id = string(v)
			case "data":
				ev.data = bytes.Clone(v)
			case "":
				if len(line) > 0 || ev.data == nil { // a comment, or nothing
					continue
				}
				if !yield(ev, nil) {
					return
				}
				ev = serverEvent{}
			}
		}
	}
}
