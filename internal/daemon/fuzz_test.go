package daemon

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
)

// A cursor leads somewhere in the list, or is refused; a page is never longer than it
// may be, and a whole list by pages has each item once.
func FuzzCursor(f *testing.F) {
	for _, s := range []string{"", "WyJjLTAwIl0", "bnVsbA", "W10", "eyJhIjoxfQ", "WyJjLTk5Il0=", "%"} {
		f.Add(s, 3)
	}
	list := make([]api.Cell, 20)
	for i := range list {
		list[i].ID = "c-" + string(rune('a'+i))
	}
	route := Route{Method: "GET", Path: "/v1/cells?limit&cursor"}
	f.Fuzz(func(t *testing.T, cursor string, limit int) {
		r := httptest.NewRequest("GET", "/v1/cells", nil)
		q := r.URL.Query()
		q.Set("cursor", cursor)
		q.Set("limit", json.Number(strings.TrimSpace(string(must(json.Marshal(limit))))).String())
		r.URL.RawQuery = q.Encode()
		w := httptest.NewRecorder()
		out, err := cutPage(w, r, route, list)
		if err != nil {
			if e := errorOf(err); e.Kind != "invalid" && e.Kind != "conflict" {
				t.Errorf("%q: %v", cursor, err)
			}
			return
		}
		got := out.([]api.Cell)
		if limit < 0 || limit > 0 && len(got) > limit || len(got) > len(list) {
			t.Errorf("%d of %d", len(got), limit)
		}
		if next := w.Header().Get("X-Next-Cursor"); next != "" && limit > 0 {
			q.Set("cursor", next)
			r.URL.RawQuery = q.Encode()
			more, err := cutPage(httptest.NewRecorder(), r, route, list)
			if err != nil || len(more.([]api.Cell)) == 0 || more.([]api.Cell)[0].ID == got[len(got)-1].ID {
				t.Errorf("what follows: %v, %v", more, err)
			}
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Whatever a request is, the audit log gets one line of JSON, in which nothing but
// its fields is.
func FuzzAuditLine(f *testing.F) {
	f.Add("GET", "/v1/cells/a\nb", "c-1\x00\xff", `"}{`)
	f.Add("A\rB", "/", "", "")
	path := filepath.Join(f.TempDir(), "audit.jsonl")
	a, err := OpenAudit(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, method, at, object, who string) {
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.Method, r.URL.Path = method, at
		v := &requestRecord{id: "req-1", from: "1.2.3.4:5", object: object, who: access.Principal{Name: who}, w: &recordedWriter{status: 200}}
		a.note(&Daemon{cfg: Config{Log: slog.New(slog.DiscardHandler)}}, v, r)
		b := must(os.ReadFile(path))
		var l auditLine
		if bytes.Count(b, []byte("\n")) != 1 || !bytes.HasSuffix(b, []byte("\n")) || json.Unmarshal(b, &l) != nil || len(b) > 4000+6*len(who) {
			t.Errorf("%q", b)
		}
	})
}

// The number of the last event that was seen is one, or refused.
func FuzzLastSeen(f *testing.F) {
	for _, s := range []string{"", "0", "17", "-1", "+1", "1e3", "9223372036854775808", "1 ", "０"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, head, query string) {
		r := httptest.NewRequest("GET", "/v1/operations/o-1/events", nil)
		r.Header = http.Header{"Last-Event-Id": {head}}
		q := r.URL.Query()
		q.Set("after", query)
		r.URL.RawQuery = q.Encode()
		n, err := lastSeen(r)
		if n < 0 || err != nil && (n != 0 || errorOf(err).Kind != "invalid") || head == "" && query == "" && err != nil {
			t.Errorf("%q %q: %d, %v", head, query, n, err)
		}
	})
}

// What a caller prefers is found among other preferences, and nowhere else.
func FuzzPrefer(f *testing.F) {
	for _, s := range []string{"respond-async", "wait=1, Respond-Async ; x", "respond-asyncs", "\"respond-async\""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := httptest.NewRequest("POST", "/", nil)
		r.Header["Prefer"] = []string{s}
		if asksAsync(r) && !strings.Contains(strings.ToLower(s), "respond-async") {
			t.Errorf("%q", s)
		}
	})
}
