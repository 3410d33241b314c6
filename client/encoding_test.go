package client

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
)

// Answers of a daemon on another host come compressed, and read like others: errors, too.
// The connection is kept.
func TestCompressedAnswers(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "gzip" {
			json.NewEncoder(w).Encode([]api.Cell{{ID: "c-plain"}})
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		status := http.StatusOK
		var v any = []api.Cell{{ID: "c-1", Name: strings.Repeat("x", 100_000)}}
		if r.URL.Path != "/v1/cells" {
			status, v = http.StatusConflict, api.Error{Kind: "conflict", Message: "cannot do it"}
		}
		w.WriteHeader(status)
		z := gzip.NewWriter(w)
		json.NewEncoder(z).Encode(v)
		z.Close()
	})
	srv := httptest.NewUnstartedServer(h)
	l := &counted{Listener: srv.Listener}
	srv.Listener = l
	srv.StartTLS()
	defer srv.Close()
	sum := sha256.Sum256(srv.Certificate().Raw)
	c := New(Config{Host: srv.URL + "#sha256=" + hex.EncodeToString(sum[:])})
	for range 3 {
		before := l.n.Load()
		for range 2 {
			if _, err := c.Cells(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if n := l.n.Load() - before; n > 1 {
			t.Errorf("two requests took %d new connections", n)
		}
		cells, err := c.Cells(context.Background())
		if err != nil || len(cells) != 1 || len(cells[0].Name) != 100_000 {
			t.Fatalf("%v %.200v", err, cells)
		}
		if _, err := c.Cell(context.Background(), "a"); asAPI(err) == nil || asAPI(err).Message != "cannot do it" {
			t.Fatalf("%v", err)
		}
	}
	near := httptest.NewServer(h)
	defer near.Close()
	if cells, err := New(Config{Host: near.URL}).Cells(context.Background()); err != nil || len(cells) != 1 || cells[0].ID != "c-plain" {
		t.Errorf("on this host: %v %.200v", err, cells)
	}
}
