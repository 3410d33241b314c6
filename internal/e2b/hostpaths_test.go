package e2b

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/access/accesstest"
	"github.com/pando-dev/pando/internal/bound/boundtest"
)

// requests are those that are JSON; messages are the others.
func requests() []any {
	return append(messages(), &createRequest{}, &connectRequest{}, &forkRequest{}, &snapshotRequest{}, &timeoutRequest{}, &refreshRequest{}, &pauseRequest{}, &network{}, &templateRequest{},
		&buildRequest{}, &contextRequest{}, &executeRequest{}, &composeRequest{}, &tagsRequest{}, &untagRequest{})
}

// Every field of every type that is read of a request is classified: whether it can
// name something of the daemon's host. What the table has beside them is gone.
func TestX01EveryFieldIsClassified(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "hostpaths.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	var terms func(e ast.Expr)
	terms = func(e ast.Expr) {
		switch e := e.(type) {
		case *ast.BinaryExpr:
			terms(e.X)
			terms(e.Y)
		case *ast.Ident:
			types = append(types, e.Name)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.TypeSpec); ok && s.Name.Name == "request" {
			terms(s.Type.(*ast.InterfaceType).Methods.List[0].Type)
		}
		return true
	})
	var read []reflect.Type
	for _, r := range requests() {
		at := reflect.TypeOf(r).Elem()
		read = append(read, at)
		if i := slices.Index(types, at.Name()); i >= 0 {
			types = slices.Delete(types, i, i+1)
		} else {
			t.Errorf("%s can't be read", at)
		}
	}
	if len(types) > 0 {
		t.Errorf("%q can be read, and are not among the requests of this test", types)
	}
	if n := accesstest.Complete(t, fields, read); n < 50 {
		t.Errorf("only %d fields were found", n)
	}
}

// What names something of the host is refused wherever a request is read, before
// anything is done, and for callers that have nothing but a sandbox's own token.
func TestX01EveryReaderChecks(t *testing.T) {
	old := fields["pathRequest.path"]
	fields["pathRequest.path"] = func(_, f reflect.Value) []string { return []string{"the path " + f.String()} }
	defer func() { fields["pathRequest.path"] = old }()
	admin := access.Principal{Name: "x", Level: access.Admin}
	for who, p := range map[string]*access.Principal{"no token": nil, "run": {Name: "x", Level: access.Run}, "admin": &admin,
		"labelled": {Name: "x", Level: access.Admin, Bounds: &access.Bounds{Labels: map[string]string{"team": "a"}}}} {
		called := 0
		for name, serve := range map[string]http.HandlerFunc{
			"decode": func(w http.ResponseWriter, r *http.Request) {
				var in pathRequest
				if decode(w, r, &in) {
					called++
				}
			},
			"unary":  unary(func(*http.Request, *pathRequest) (any, error) { called++; return struct{}{}, nil }),
			"stream": stream(func(*http.Request, *pathRequest, *sender) error { called++; return nil }),
		} {
			body := []byte(`{"path":"/root"}`)
			kind := typeJSON
			if name == "stream" {
				body, kind = enveloped(0, body), typeStream
			}
			r := httptest.NewRequest("POST", "/", strings.NewReader(string(body)))
			r.Header.Set("Content-Type", kind)
			if p != nil {
				r = r.WithContext(access.With(r.Context(), *p))
			}
			w := httptest.NewRecorder()
			called = 0
			serve(w, r)
			refused := strings.Contains(w.Body.String(), "the path /root belongs to the daemon's host")
			if may := p == &admin; (called == 1) != may || refused == may {
				t.Errorf("%s, %s: called %d, %d %s", name, who, called, w.Code, w.Body)
			}
		}
	}
}

func TestX01HostIsOutOfReach(t *testing.T) {
	run := access.With(t.Context(), access.Principal{Name: "x", Level: access.Run})
	for _, req := range []any{createRequest{Metadata: map[string]string{metaBackend: "none"}}, createRequest{Metadata: map[string]string{metaBackend: "new"}},
		buildRequest{FromImage: "/root/layout"}, buildRequest{FromImage: "dir:/"}} {
		if fields.MayName(run, req) == nil {
			t.Errorf("%+v is not refused", req)
		}
	}
	for _, req := range []any{createRequest{Metadata: map[string]string{metaBackend: "gvisor", "a": "none"}, TemplateID: "base"}, createRequest{Metadata: map[string]string{metaBackend: "microvm"}}, buildRequest{FromImage: "e2bdev/base:latest"}} {
		if err := fields.MayName(run, req); err != nil {
			t.Errorf("%+v: %v", req, err)
		}
	}
}

// A request of few bytes that would be many structs is not decoded.
func TestX02RequestsThatExpand(t *testing.T) {
	body := `{"steps":[` + strings.Repeat("{},", maxBody/3-10) + "{}]}"
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "/", strings.NewReader(body))
	boundtest.AllocatesBeside(t, 0, 6*maxBody, func() { // its text, in buffers that grow
		var req buildRequest
		if decode(w, r, &req) || w.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}
