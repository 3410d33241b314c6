package e2b

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
)

// Nothing that is sent makes a signature count that is not the sandbox's own.
func FuzzSignature(f *testing.F) {
	front := New(Config{Key: []byte("k")})
	f.Add("GET", "path=a&signature=v1_x")
	f.Add("POST", "path=a&username=user&signature=v1_&signature_expiration=99999999999999999999")
	f.Add("GET", "path=a&signature=&signature=v1_x&signature_expiration=-1")
	f.Fuzz(func(t *testing.T, method, query string) {
		r := &http.Request{Method: method, URL: &url.URL{Path: "/files", RawQuery: query}, Header: http.Header{}}
		if front.validSignature(r, someID) {
			t.Errorf("%s %q is taken", method, query)
		}
		signed(r)
	})
}

// Whatever a request's host and headers are, it is for a cell by its id, or for none.
func FuzzAddress(f *testing.F) {
	front := New(Config{Key: []byte("k")})
	f.Add("3000-"+someID+".localhost:7070", "", "", "/")
	f.Add("localhost", someID, "49983", "/files")
	f.Add("-1-"+someID+".x", "../x", "99999999999999999999", "/sandboxes/%2e%2e/x")
	f.Fuzz(func(t *testing.T, host, id, port, path string) {
		r := &http.Request{Method: "GET", Host: host, URL: &url.URL{Path: path}, Header: http.Header{"E2b-Sandbox-Id": {id}, "E2b-Sandbox-Port": {port}}}
		front.Match(r)
		if got, _, ok := address(r); ok && id == "" && !isSandboxID(string(got)) {
			t.Errorf("%q is for %q", host, got)
		}
		if isSandboxID(id) && strings.ContainsAny(id, "/.\\\x00 ") {
			t.Errorf("%q is an id", id)
		}
	})
}

// Every part of a form has the path that was sent, and reading it ends.
func FuzzForm(f *testing.F) {
	f.Add([]byte("--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/home/user/a.txt\"\r\n\r\nabc\r\n--x--\r\n"), "x")
	f.Add([]byte("--x\r\nContent-Disposition: form-data; name=\"file\"; filename*=utf-8''..%2f..%2fetc\r\n\r\n\r\n--x--\r\n"), "x")
	f.Add([]byte("--x\r\nContent-Disposition: form-data; filename=\"a\r\nX: y\"\r\n\r\n--x"), "x")
	f.Fuzz(func(t *testing.T, b []byte, boundary string) {
		boundtest.Allocates(t, len(b), func() {
			form := newParts(bytes.NewReader(b), boundary)
			for n := 0; ; n++ {
				part, err := form.NextPart()
				if err != nil {
					return
				}
				if n > len(b) {
					t.Fatal("it has no end")
				}
				if name := rawName(part.Header.Get("Content-Disposition")); strings.ContainsAny(name, "\r\n") && !bytes.ContainsAny(b, "%") {
					t.Errorf("a name of several lines: %q", name)
				}
				io.Copy(io.Discard, part)
			}
		})
	})
}

// What the control plane reads is read, or refused; the answer's header stays one
// line, and short.
func FuzzControl(f *testing.F) {
	f.Add(`{"templateID":"base","timeout":60,"network":{"allowOut":["a.example"],"rules":{"a.example":[{"transform":{"headers":{"A":"b"}}}]}}}`)
	f.Add(`{"steps":[{"type":"RUN","args":["x"],"hat":1}],"fromImage":"x"}`)
	f.Add(`{"metadata":{"pando:backend":"none"},"autoPause":false}`)
	f.Fuzz(func(t *testing.T, body string) {
		boundtest.Allocates(t, len(body), func() {
			for _, read := range []func(http.ResponseWriter, *http.Request) (any, bool){decoded[createRequest], decoded[connectRequest], decoded[network], decoded[buildRequest], decoded[executeRequest]} {
				w := httptest.NewRecorder()
				r := httptest.NewRequest("POST", "/", strings.NewReader(body))
				to, ok := read(w, r.WithContext(access.With(r.Context(), access.Local)))
				if !ok {
					continue
				}
				if h := w.Header().Get(headerIgnored); len(h) > maxIgnored*300 || strings.ContainsAny(h, "\r\n") {
					t.Errorf("%q", h)
				}
				switch v := to.(type) {
				case *createRequest:
					labels, err := labelsOf(v)
					if b := labels[metaBackend]; err == nil && b != "" && !slices.Contains(isolating, b) {
						t.Errorf("backend %q is taken", b)
					}
					v.Network.policy(&api.CreateRequest{}, v.AllowInternet, nil)
				case *network:
					if hosts, err := v.rules(); err == nil && len(hosts) > 0 && strings.Contains(body, "hunter2") && strings.Contains(string(v.mask()), "hunter2") && !strings.Contains(strings.Join(namesIn(hosts), " "), "hunter2") {
						t.Errorf("%s is told as %s", body, v.mask())
					}
				}
			}
		})
	})
}

func decoded[T request](w http.ResponseWriter, r *http.Request) (any, bool) {
	var to T
	ok := decode(w, r, &to)
	return &to, ok
}

func namesIn(hosts map[string]map[string]string) (names []string) {
	for host, headers := range hosts {
		names = append(names, host)
		for name := range headers {
			names = append(names, name)
		}
	}
	return names
}

// Every member that is not known is named, in every request of the control plane and
// of the sandbox, at every depth.
func TestEveryUnknownMemberIsNamed(t *testing.T) {
	for _, to := range requests() {
		object, want := withUnknown("", reflect.TypeOf(to).Elem())
		b, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		got := unknown("", b, reflect.TypeOf(to).Elem())
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(slices.Compact(got), want) {
			t.Errorf("%T: %q, want %q", to, got, want)
		}
	}
}

// withUnknown makes an object with a member that is not known in each object of it.
func withUnknown(prefix string, t reflect.Type) (object map[string]any, names []string) {
	object, names = map[string]any{"hat": 1}, []string{prefix + "hat"}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		in := f.Type
		if in.Kind() == reflect.Pointer {
			in = in.Elem()
		}
		list := in.Kind() == reflect.Slice
		if list {
			in = in.Elem()
		}
		if in.Kind() != reflect.Struct || in == timeType {
			continue
		}
		inner, more := withUnknown(prefix+name+".", in)
		object[name] = inner
		if list {
			object[name] = []any{inner, inner}
		}
		names = append(names, more...)
	}
	return object, names
}

// The token of one sandbox opens no other, and what names a sandbox names it exactly.
func TestE50TokensOfOtherSandboxes(t *testing.T) {
	f := New(Config{Key: []byte("k")})
	const other = cell.ID("c-fedcba9876543210")
	r := httptest.NewRequest("POST", "/process.Process/List", nil)
	for name, token := range map[string]string{
		"another sandbox's": f.token(other, useEnvd), "that of its ports": f.token(someID, useTraffic), "an empty one": "", "one of another key": New(Config{Key: []byte("x")}).token(someID, useEnvd),
		"half of it": f.token(someID, useEnvd)[:40],
	} {
		r.Header.Set("X-Access-Token", token)
		if f.mayEnvd(r, someID) {
			t.Errorf("%s is taken", name)
		}
	}
	r.Header.Set("X-Access-Token", f.token(someID, useEnvd))
	if !f.mayEnvd(r, someID) {
		t.Error("its own is refused")
	}
	for _, id := range []string{"c-0123456789ABCDEF", "c-0123456789abcde", "../c-0123456789abcdef", "c-0123456789abcdef/", "c-0123456789abcde\n", ""} {
		if isSandboxID(id) {
			t.Errorf("%q is an id", id)
		}
	}
}

// The name of a file ends no header.
func TestNamesInHeaders(t *testing.T) {
	for _, name := range []string{"a\r\nX-Evil: 1", `a"; filename="b`, "ä", "\x00", ""} {
		w := httptest.NewRecorder()
		(&body{w: w, name: name}).begin(0)
		var b bytes.Buffer
		if err := w.Result().Header.Write(&b); err != nil || strings.Count(b.String(), "\r\n") != 3 || strings.Contains(b.String(), "\r\nX-Evil") {
			t.Errorf("%q: %q, %v", name, b.String(), err)
		}
	}
	if got := rawName(`form-data; name="file"; filename="../../etc/x"`); got != "../../etc/x" {
		t.Error(got) // the engine resolves it in the cell, as the cell's user
	}
}
