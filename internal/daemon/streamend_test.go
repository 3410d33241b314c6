package daemon

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/testenv"
)

// TestStreamsOfAnEndingDaemonAreLogged: a client that is attached when the daemon ends is in the audit
// log, once, though nothing waits for the end of its stream.
func TestStreamsOfAnEndingDaemonAreLogged(t *testing.T) {
	var said bytes.Buffer
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	audit, err := OpenAudit(path)
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{cfg: Config{Audit: audit, Log: slog.New(slog.NewTextHandler(&said, nil))}, common: &common{met: newMetrics()}}
	attached, over := make(chan struct{}), make(chan struct{})
	ended := make(chan struct{}, 2)
	h := d.count(d.withRecord(false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		if r.URL.Path == "/stays" {
			close(attached)
			<-over
		}
	})))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r)
		ended <- struct{}{}
	}))
	defer srv.Close()
	ask := func(path string) {
		if resp, err := http.Get(srv.URL + path); err == nil {
			resp.Body.Close()
		}
	}
	ask("/ends")
	testenv.Receive(t, ended, "the end of a stream")
	go ask("/stays")
	testenv.Receive(t, attached, "the other stream")

	if !d.finish(finishing) {
		t.Error("a stream holds the daemon back")
	}
	d.streams.writeDown(func(l auditLine) { audit.write(d.cfg.Log, l) })
	if err := audit.Close(); err != nil {
		t.Error(err)
	}
	close(over)
	testenv.Receive(t, ended, "the end of the other stream")
	for _, what := range []string{"GET /ends", "GET /stays"} {
		if log := readAll(t, path); strings.Count(log, what) != 1 || !strings.Contains(log, `"status":101`) {
			t.Errorf("%s is not in the audit log once:\n%s", what, log)
		}
	}
	if said.Len() > 0 {
		t.Errorf("the daemon's log: %s", said.String())
	}
}
