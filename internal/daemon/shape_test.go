package daemon

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// Whatever goes wrong is answered in one shape: the kind, a sentence, and the
// status that the table has for the kind.
func TestErrorsHaveOneShape(t *testing.T) {
	d, srv := house(t, Config{Limits: &Limits{Upload: 1 << 20}})
	d.mux = d.routes(append([]Route{
		{Method: "GET", Path: "/v1/broken", Access: Read, handle: func(*Daemon, http.ResponseWriter, *http.Request) (any, error) { panic("a defect") }},
		{Method: "GET", Path: "/v1/unknown", Access: Read, cannot: "do it", handle: func(*Daemon, http.ResponseWriter, *http.Request) (any, error) { return nil, io.ErrUnexpectedEOF }},
	}, Routes...))
	admin := token(t, d, Admin, time.Time{})
	for _, x := range []struct {
		name, method, path, kind string
		body                     io.Reader
		want                     string
	}{
		{"no such path", "GET", "/v1/nothing", "", nil, "not-found"},
		{"no such version", "GET", "/v2/cells", "", nil, "not-found"},
		{"another method", "PATCH", "/v1/cells", "", nil, "wrong-method"},
		{"another method of a thing", "PUT", "/v1/cells/web", "", nil, "wrong-method"},
		{"a form", "POST", "/v1/runs", "application/x-www-form-urlencoded", strings.NewReader("a=b"), "wrong-type"},
		{"no JSON", "POST", "/v1/runs", "application/json", strings.NewReader("{"), "invalid"},
		{"an unknown field", "POST", "/v1/runs", "application/json; charset=utf-8", strings.NewReader(`{"comand":["true"]}`), "invalid"},
		{"long JSON", "POST", "/v1/runs", "application/json", io.MultiReader(strings.NewReader(`"`), endless{'a'}), "too-large"},
		{"a long body that says so", "PUT", "/v1/cells/web/files", tarball, strings.NewReader(strings.Repeat("x", 2<<20)), "too-large"},
		{"a crooked path", "GET", "/v1//cells", "", nil, "invalid"},
		{"a defect", "GET", "/v1/broken", "", nil, "internal"},
		{"an error without a kind", "GET", "/v1/unknown", "", nil, "internal"},
		{"an offset that is none", "GET", "/v1/runs?limit=x", "", nil, "invalid"},
	} {
		if x.name == "an offset that is none" {
			d.mux = d.routes([]Route{{Method: "GET", Path: "/v1/runs?limit&cursor", Access: Read, cannot: "list", handle: func(*Daemon, http.ResponseWriter, *http.Request) (any, error) { return []api.Run{}, nil }}})
		}
		r, err := http.NewRequest(x.method, srv.URL+x.path, x.body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+admin)
		if x.kind != "" {
			r.Header.Set("Content-Type", x.kind)
		}
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		var e api.Error
		err = json.Unmarshal(b, &e)
		if err != nil || string(e.Kind) != x.want || resp.StatusCode != api.ReasonOf(e.Kind).Status || !strings.HasPrefix(e.Message, "cannot ") || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s", x.name, resp.StatusCode, b)
		}
		if x.want == "wrong-method" && resp.Header.Get("Allow") == "" {
			t.Errorf("%s: it is not said what is allowed", x.name)
		}
	}
}

// endless is a body that goes on: what is read of it is bounded.
type endless struct{ of byte }

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e.of
	}
	return len(p), nil
}

// Every kind of error has a row in the one table, and none twice.
func TestKindsHaveOneTable(t *testing.T) {
	seen := map[api.Kind]bool{}
	for _, r := range api.Reasons {
		if seen[r.Kind] || r.Status < 400 || r.Says == "" {
			t.Errorf("%+v", r)
		}
		seen[r.Kind] = true
	}
	for _, k := range []cell.Kind{cell.Invalid, cell.NotFound, cell.Exists, cell.Conflict, cell.Denied, cell.Unsupported, cell.Corrupt, cell.Unavailable, cell.Timeout,
		cell.Interrupted, cell.NotRunnable, cell.NoSuchBinary, cell.Internal, cell.Unauthenticated, cell.Limited, cell.Stale, cell.TooLarge, cell.WrongMethod, cell.WrongType} {
		if !seen[api.Kind(k)] {
			t.Errorf("%s has no row", k)
		}
	}
}
