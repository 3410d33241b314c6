package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
)

// A caller's hang-up is no failure of the daemon: its log has nothing of it, and the audit log
// says that the request was interrupted. Failures are in both.
func TestX47HangUpsAreNoFailures(t *testing.T) {
	for _, c := range []struct {
		name  string
		gone  bool
		begun bool // the answer has
		err   error
		fails bool
		kind  string
	}{
		{"gone", true, false, errors.New("context canceled"), false, string(cell.Interrupted)},
		{"gone during the answer", true, true, errors.New("short write"), false, ""},
		{"gone, which only the write has noticed", false, true, fmt.Errorf("write: %w", syscall.EPIPE), false, ""},
		{"a defect", false, false, errors.New("no such table"), true, string(cell.Internal)},
		{"a file that can't be read", false, true, errors.New("input/output error"), true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			d, _ := house(t, Config{})
			d.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
			ctx, cancel := context.WithCancel(access.With(t.Context(), access.Principal{Level: access.Admin}))
			defer cancel()
			v := &requestRecord{id: "req-1"}
			r := httptest.NewRequestWithContext(context.WithValue(ctx, requestRecordKey{}, v), "GET", "/v1/x", nil)
			func() {
				defer func() {
					if p := recover(); p != nil && p != http.ErrAbortHandler {
						panic(p)
					}
				}()
				d.reply(httptest.NewRecorder(), r, Route{Method: "GET", Path: "/v1/x", Access: Read, cannot: "look", handle: func(d *Daemon, _ http.ResponseWriter, r *http.Request) (any, error) {
					if c.gone {
						cancel()
					}
					if c.begun {
						d.brokenOff(r, "cannot finish", c.err)
					}
					return nil, c.err
				}})
			}()
			if got := strings.Contains(log.String(), "level=ERROR"); got != c.fails || v.kind != c.kind {
				t.Errorf("kind %q, logged as a failure: %v\n%s", v.kind, got, log.String())
			}
		})
	}
}
