package daemon

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// The documentation page has each route and each type, no dangling links and no external parts,
// and needs no token. It is the only such answer.
func TestDocs(t *testing.T) {
	_, srv := house(t, Config{})
	resp, err := http.Get(srv.URL + "/") // leads there
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	b.ReadFrom(resp.Body)
	resp.Body.Close()
	page, csp := b.String(), resp.Header.Get("Content-Security-Policy")
	if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") || !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	ids := map[string]bool{}
	for _, m := range regexp.MustCompile(`id="([^"]+)"`).FindAllStringSubmatch(page, -1) {
		if ids[m[1]] {
			t.Errorf("id %s is there twice", m[1])
		}
		ids[m[1]] = true
	}
	for _, r := range Routes {
		if !ids[docsID(r)] {
			t.Errorf("%s %s is not there", r.Method, r.Path)
		}
	}
	for _, m := range regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		if to, in := strings.CutPrefix(m[1], "#"); in && !ids[to] || !in && m[1] != "/v1/openapi.json" {
			t.Errorf("it leads to %s", m[1])
		}
	}
	for _, bad := range []string{"%!", "src=", "@import", "url("} {
		if strings.Contains(page, bad) {
			t.Errorf("it has %s", bad)
		}
	}
	r, _ := http.NewRequest("GET", srv.URL+"/docs", nil)
	r.Header.Set("If-None-Match", resp.Header.Get("ETag"))
	if resp, err := http.DefaultTransport.RoundTrip(r); err != nil || resp.StatusCode != http.StatusNotModified {
		t.Errorf("the same again: %v, %v", resp, err)
	}
	for _, path := range []string{"/docs/", "/docs/x", "/v1/openapi.json"} {
		if resp, err := http.Get(srv.URL + path); err != nil || resp.StatusCode == 200 {
			t.Errorf("%s: %v, %v", path, resp, err)
		}
	}
}

// Each route with a body has an example, which is one.
func TestExamples(t *testing.T) {
	known := 0
	for _, r := range Routes {
		path, _ := r.Split()
		text, ok := examples()[r.Method+" "+path]
		if ok {
			known++
		}
		if (r.In != nil) != ok {
			t.Errorf("%s %s: takes %T, example %q", r.Method, path, r.In, text)
			continue
		}
		if !ok {
			continue
		}
		dec := json.NewDecoder(strings.NewReader(text))
		dec.DisallowUnknownFields()
		if err := dec.Decode(reflect.New(reflect.TypeOf(r.In)).Interface()); err != nil {
			t.Errorf("%s %s: %s: %v", r.Method, path, text, err)
		}
		if example := docsExample(r); strings.ContainsAny(strings.ReplaceAll(strings.SplitN(example, " -d ", 2)[0], "{PANDO_HOST/http/ws}", ""), "{}") {
			t.Errorf("a word of the path has no example: %s", example)
		}
	}
	if known != len(examples()) {
		t.Errorf("%d examples are of no route", len(examples())-known)
	}
}
