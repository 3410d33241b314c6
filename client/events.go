package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/url"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
)

// EventOptions choose among a run's events.
type EventOptions struct {
	Kinds  []string // only these; "process" stands for all that begin with "process."
	Denied bool     // only denials and reached limits
	Follow bool     // continue until the run ends
	// Since leaves out what was before it; zero: nothing.
	Since time.Time
}

// Events yields a run's events in order and checks their hash chain. After the intact events a
// broken chain is an error of kind "corrupt".
func (c *Client) Events(ctx context.Context, sel string, o EventOptions) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		for line, err := range c.EventLines(ctx, sel, api.EventsJSON, o) {
			var ev api.Event
			if err == nil {
				err = json.Unmarshal(line, &ev)
			}
			if !yield(ev, err) || err != nil {
				return
			}
		}
	}
}

// EventLines is Events as JSON, a line each, in one of the formats.
func (c *Client) EventLines(ctx context.Context, sel, format string, o EventOptions) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		q := url.Values{}
		if format != "" {
			q.Set("format", format)
		}
		if len(o.Kinds) > 0 {
			q.Set("kind", strings.Join(o.Kinds, ","))
		}
		flag(q, "denied", o.Denied)
		flag(q, "follow", o.Follow)
		if !o.Since.IsZero() {
			q.Set("not_before", o.Since.UTC().Format(time.RFC3339Nano))
		}
		body, err := c.raw(ctx, "GET", "/v1/runs/"+segment(sel)+"/events", q, nil)
		if err != nil {
			yield(nil, err)
			return
		}
		defer body.Close()
		in := bufio.NewReader(body)
		for {
			line, err := in.ReadBytes('\n')
			switch {
			case err == io.EOF && len(line) == 0:
				return
			case ctx.Err() != nil:
				yield(nil, unwrap(ctx, err))
				return
			case err != nil:
				yield(nil, &api.Error{Kind: "unavailable", Message: fmt.Sprintf("lost the daemon: the events broke off: %v", err), Hint: "try again"})
				return
			}
			line = bytes.TrimSuffix(line, []byte("\n"))
			var last api.EventError
			if bytes.HasPrefix(line, []byte(`{"error":`)) && json.Unmarshal(line, &last) == nil && last.Error != nil {
				yield(nil, last.Error)
				return
			}
			if !yield(line, nil) {
				return
			}
		}
	}
}
