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
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/durable/durabletest"
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

// A journal of keys with any record in it is read, or said to be damaged; what is
// read of it answers without breaking.
func FuzzOnceRecord(f *testing.F) {
	f.Add([]byte(`{"at":"2026-01-01T00:00:00Z","key":"k","asked":"a","over":true,"answer":"e30=","status":202,"location":"/v1/operations/o-1"}`))
	f.Add([]byte(`{"key":"k","failed":true}`))
	f.Add([]byte(`{"over":true,"status":-1}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, rec []byte) {
		fsys := journal(t, "once.log", rec)
		o, err := OpenOnce(fsys, "once.log")
		if err != nil {
			if errorOf(err).Message == "" {
				t.Error("no reason")
			}
			return
		}
		defer o.Close()
		for k, d := range o.all {
			gone := make(chan struct{})
			close(gone)
			o.begin(k, d.Asked, gone)
		}
	})
}

// The same of operations: each that is read has ended.
func FuzzOperationRecord(f *testing.F) {
	f.Add([]byte(`{"operation":"o-1","kind":"build","state":"running","by":"a","owner":"b","began":"2026-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"operation":"o-1","state":"done","ended":"2999-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"state":"odd","error":"internal"}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, rec []byte) {
		o, err := OpenOperations(journal(t, "operations.log", rec), "operations.log", slog.New(slog.DiscardHandler))
		if err != nil {
			return
		}
		defer o.Close()
		if o.busy() {
			t.Error("one goes on")
		}
		for _, v := range o.list(access.Local) {
			op, err := o.get(access.Local, v.ID)
			if err != nil {
				t.Fatal(err)
			}
			if v.State == api.OperationRunning {
				t.Errorf("%+v", v)
			}
			if _, _, more := o.after(op, 1<<62); more != nil {
				t.Errorf("%+v says more", v)
			}
			o.abort(op)
			if _, err := json.Marshal(o.look(op)); err != nil {
				t.Error(err)
			}
		}
	})
}

// journal is a disk with a journal that has one record.
func journal(t *testing.T, name string, rec []byte) durable.FS {
	t.Helper()
	fsys := durabletest.New()
	log, err := durable.OpenLog(fsys, name, func([]byte) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	log.Append(rec) // one that is empty or too long is none
	log.Close()
	return fsys
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
