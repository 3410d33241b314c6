package daemon

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/access/accesstest"
	"github.com/pando-dev/pando/internal/cell"
)

// Every field of every request type of the route table is classified: whether it can
// name something of the daemon's host. What the table has beside them is gone.
func TestX01EveryFieldIsClassified(t *testing.T) {
	var requests []reflect.Type
	for _, r := range Routes {
		if r.In != nil {
			requests = append(requests, reflect.TypeOf(r.In))
		}
	}
	if n := accesstest.Complete(t, fields, requests); n < 100 {
		t.Errorf("only %d fields were found", n)
	}
}

// Every word of a path or a query is classified, and handlers read no other.
func TestX01EveryWordIsClassified(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Routes {
		path, names := r.Split()
		for _, name := range append(names, PathWords(path)...) {
			if seen[name] = true; words[name] == nil {
				t.Errorf("%s of %s %s is not classified: can it name something of the daemon's host? See words in hostpaths.go", name, r.Method, path)
			}
		}
	}
	for name := range words {
		if !seen[name] {
			t.Errorf("%s is classified, and no route has it", name)
		}
	}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 20 {
		t.Fatal(files, err)
	}
	reads := regexp.MustCompile(`(?:Query\(\)|\bq)(?:\.(?:Get|Has)\(|\[)"([^"]+)"|(?:queryInt|queryBool|selector)\(r, "([^"]+)"|PathValue\("([^"]+)"`)
	found := 0
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range reads.FindAllStringSubmatch(string(text), -1) {
			if name := m[1] + m[2] + m[3]; !seen[name] {
				t.Errorf("%s reads %s, which no route has", f, name)
			}
			found++
		}
	}
	if found < 30 {
		t.Errorf("only %d reads were found", found)
	}
}

// A parameter that names the host, or is not classified, is refused for callers that
// may not name the host.
func TestX01WordsAreChecked(t *testing.T) {
	route := Route{Method: "DELETE", Path: "/v1/images/{cell}?image&new"}
	for who, c := range callers {
		for query, harmless := range map[string]bool{"": true, "image=docker.io/library/python:3": true, "other=/root": true, "new=": true,
			"new=x": false, "image=x&new=&new=y": false, "image=oci:/root/layout": false, "image=x&image=dir:/": false} {
			r := httptest.NewRequest("DELETE", "/v1/images/web?"+query, nil)
			r.SetPathValue("cell", "web")
			if !c.anon {
				r = r.WithContext(access.With(r.Context(), c.p))
			}
			if err := mayAsk(r, route); (err == nil) != (c.may || harmless) || err != nil && cell.KindOf(err) != cell.Denied {
				t.Errorf("%s, %s: %v", query, who, err)
			}
		}
	}
}

// Parameters are checked before a route's handler.
func TestX01WordsAreCheckedFirst(t *testing.T) {
	d, srv := house(t, Config{})
	called := 0
	d.mux = d.routes([]Route{{Method: "GET", Path: "/v1/x?new", Access: Read, cannot: "do it", handle: func(*Daemon, http.ResponseWriter, *http.Request) (any, error) {
		called++
		return nil, nil
	}}})
	_, secret, err := d.cfg.Tokens.Make("", Act, time.Time{}, access.Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]int{"": http.StatusOK, "new=x": http.StatusForbidden} {
		req, err := http.NewRequest("GET", srv.URL+"/v1/x?"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+secret)
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != want {
			t.Errorf("%q: %s", query, resp.Status)
		}
	}
	if called != 1 {
		t.Errorf("the handler was called %d times", called)
	}
}

// callers are those that may, or may not, name the host.
var callers = map[string]struct {
	p    access.Principal
	may  bool
	anon bool
}{
	"unknown":        {anon: true},
	"read":           {p: access.Principal{Name: "x", Level: Read}},
	"run":            {p: access.Principal{Name: "x", Level: Act}},
	"labelled run":   {p: access.Principal{Name: "x", Level: Act, Bounds: &access.Bounds{Labels: map[string]string{"team": "a"}}}},
	"labelled admin": {p: access.Principal{Name: "x", Level: Admin, Bounds: &access.Bounds{Labels: map[string]string{"team": "a"}}}},
	"limited admin":  {p: access.Principal{Name: "x", Level: Admin, Bounds: &access.Bounds{MaxCells: 3}}, may: true},
	"admin":          {p: access.Principal{Name: "x", Level: Admin}, may: true},
	"local":          {p: access.Local, may: true},
}

// Naming something of the host is for callers with all rights there; everything else is for all
// callers.
func TestX01HostIsOutOfReach(t *testing.T) {
	env := func(list ...string) []string {
		return append([]string{"PATH=/usr/bin:/bin", "TERM=xterm", "LC_ALL=C"}, list...)
	}
	host := map[string]any{
		"a source":               api.RunRequest{From: "/root"},
		"a mount":                api.RunRequest{Mounts: []string{"/:/host:rw"}},
		"no isolation":           api.RunRequest{Backend: "none"},
		"none as default":        api.RunRequest{Prefer: "none"},
		"a directory image":      api.RunRequest{Image: "dir:/"},
		"a cache":                api.RunRequest{Cell: "web", Caches: []string{"go"}},
		"a directory as a cache": api.RunRequest{Cell: "web", Caches: []string{"off", "/srv/acme"}},
		"what is kept":           api.RunRequest{Cell: "web", CacheWrite: "always"},
		"a cell's cache":         api.CreateRequest{Caches: []string{"go"}},
		"a kernel":               api.RunRequest{Kernel: "/boot/vmlinuz"},
		"a layout":               api.RunRequest{Image: "oci:/root/layout"},
		"a relative layout":      api.RunRequest{Image: "oci:./layout"},
		"an archive":             api.RunRequest{Image: "oci:image.tar"},
		"a policy":               api.RunRequest{Policy: "files: {mounts: [/:/host]}"},
		"applying":               api.RunRequest{OnSuccess: "apply"},
		"a secret":               api.RunRequest{WithSecret: []string{".env"}},
		"a directory of its own": api.RunRequest{CallerDir: "/root"},
		"a cell's source":        api.CreateRequest{From: "/etc"},
		"a cell's mount":         api.CreateRequest{Mounts: []string{"/etc:/mnt"}},
		"a cell's isolation":     api.CreateRequest{Backend: "none"},
		"a cell's image":         api.CreateRequest{Image: "dir:/"},
		"a cell's kernel":        api.CreateRequest{Kernel: "/boot/vmlinuz"},
		"a cell's policy":        api.CreateRequest{Policy: "version: 1\n"},
		"a template's source":    api.TemplateRequest{From: "/etc"},
		"a template's secret":    api.TemplateRequest{WithSecret: []string{".env"}},
		"a pulled layout":        api.ImagePullRequest{Image: "/root/layout"},
		"a pulled archive":       &api.ImagePullRequest{Image: "oci:x.tgz"},
		"a project's policy":     api.PolicyRequest{Dir: "/root/project"},
		"a policy's mounts":      api.PolicyRequest{Of: "web", Run: api.RunRequest{Mounts: []string{"/:/host"}}},
		"one of two policies":    api.PolicyDiffRequest{A: api.PolicyRequest{Of: "web"}, B: api.PolicyRequest{Dir: "/root"}},
		"an agent's key":         api.CredentialRequest{Key: "SHA256:x"},
		"a policy file":          api.PolicyAllowRequest{Path: "/root/pando.policy.yaml"},
		"a program":              api.RunRequest{Command: []string{"/srv/acme/bin/x", "y"}},
		"a program of a cell":    api.RunRequest{Cell: "web", Image: "host", Command: []string{"/root/x"}},
		"a program of a race":    api.RaceRequest{Attempt: api.RunRequest{Command: []string{"{{.x}}"}}, Variations: []map[string]string{{"x": "/srv/acme/x"}}},
		"a text in its place":    api.RaceRequest{Attempt: api.RunRequest{Command: []string{`{{"/srv/acme/x"}}`}}},
		"a source of a race":     api.RaceRequest{Attempt: api.RunRequest{Command: []string{"x"}, From: "/srv/acme"}},
		"a program by ..":        api.RunRequest{Command: []string{"../../srv/acme/x"}},
		"a program by /bin/..":   api.RunRequest{Command: []string{"/usr/bin/../../srv/acme/x"}},
		"one from /workspace":    api.RunRequest{Command: []string{"/workspace/../srv/acme/x"}},
		"one by its workdir":     api.RunRequest{Workdir: "/srv/acme", Command: []string{"./x"}},
		"one by workdir's ..":    api.RunRequest{Workdir: "../../srv", Command: []string{"acme/x"}},
		"a program of a policy":  api.PolicyRequest{Of: "web", Run: api.RunRequest{Command: []string{"/srv/acme/x"}}},
		"applying what was done": api.AcceptRequest{Apply: true},
	}
	for _, v := range []string{
		"PIP_CACHE_DIR=/srv/acme", "GOENV=/root/x", "GOPATH=/srv/acme", "CARGO_HOME=/srv", "XDG_CACHE_HOME=/srv", "JAVA_HOME=/srv/acme", "VIRTUAL_ENV=/srv/acme", "NVM_DIR=/srv/acme",
		"MISE_GLOBAL_CONFIG_FILE=/root/.netrc", "NPM_CONFIG_USERCONFIG=/root/.npmrc", "npm_config_cache=/srv", "SSL_CERT_FILE=/root/key", "SSH_AUTH_SOCK=/run/agent", "HOME=/root",
		"PATH=/srv/acme/bin", "PATH=/usr/bin:/srv/acme", "PATH=/usr/bin:", "PATH=/usr/bin:../x", "PATH=/usr/bin/../../srv", "a_new_one=/srv", "=", "TERMINFO=/srv/acme",
	} {
		host[v+" of a run"] = api.RunRequest{CallerEnv: env(v)}
		host[v+" of a cell"] = api.CreateRequest{CallerEnv: env(v)}
		host[v+" of a template"] = api.TemplateRequest{CallerEnv: env(v)}
		host[v+" of a command"] = api.ExecRequest{CallerEnv: env(v)}
		host[v+" of a policy"] = api.PolicyRequest{Of: "web", Run: api.RunRequest{CallerEnv: env(v)}}
	}
	plain := map[string]any{
		"a run":             api.RunRequest{Backend: "gvisor", Image: "oci:docker.io/library/python:3", Cell: "web", CallerEnv: env(), Workdir: "/workspace/x", Command: []string{"/srv/acme/x"}},
		"a program":         api.RunRequest{Command: []string{"make", "/srv/x"}},
		"a system's":        api.RunRequest{Command: []string{"/usr/bin/env", "x"}},
		"a script":          api.RunRequest{Command: []string{"./run/x"}, Workdir: "sub"},
		"one in /workspace": api.RunRequest{Command: []string{"/workspace/x"}},
		"a cell":            api.CreateRequest{Name: "a", Allow: []string{"a.example"}, Place: "/home/user", Lease: api.LeaseRequest{For: "5m"}, CallerEnv: env()},
		"a template":        api.TemplateRequest{Name: "t", Setup: "x = 1", Limits: api.Limits{Memory: "1G"}, CallerEnv: env()},
		"a policy":          api.PolicyRequest{Of: "web", Dir: "/home/me"},
		"an image":          api.ImagePullRequest{Image: "docker.io/library/python:3"},
		"a result":          api.AcceptRequest{Reason: "it is right"},
		"nothing":           api.RunRequest{CallerEnv: []string{}, Mounts: []string{}},
	}
	for who, c := range callers {
		ctx := t.Context()
		if !c.anon {
			ctx = access.With(ctx, c.p)
		}
		for what, req := range host {
			if err := mayName(ctx, req); (err == nil) != c.may || err != nil && cell.KindOf(err) != cell.Denied {
				t.Errorf("%s, %s: %v", what, who, err)
			}
		}
		for what, req := range plain {
			if err := mayName(ctx, req); err != nil {
				t.Errorf("%s, %s: %v", what, who, err)
			}
		}
	}
}

// A field that is not classified is refused, wherever it is in a request.
func TestX01UnclassifiedIsRefused(t *testing.T) {
	type Inner struct {
		Path string `json:"path"`
	}
	type Request struct {
		Name  string           `json:"name"`
		List  []Inner          `json:"list"`
		Map   map[string]Inner `json:"map"`
		Point *Inner           `json:"point"`
		Inner
	}
	f := access.Fields{"Request.name": harmless}
	run := access.With(t.Context(), callers["run"].p)
	if err := f.MayName(run, Request{Name: "a"}); err != nil {
		t.Error(err)
	}
	for _, req := range []Request{{List: []Inner{{"x"}}}, {Map: map[string]Inner{"a": {"x"}}}, {Point: &Inner{"x"}}, {Inner: Inner{"x"}}} {
		if err := f.MayName(run, req); cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), "Inner.path") {
			t.Errorf("%+v: %v", req, err)
		}
		if err := f.MayName(access.With(t.Context(), access.Local), req); err != nil {
			t.Error(err)
		}
	}
}

// Each handler reads its body by what checks it: whatever field of whatever route
// names the host, a token with labels is refused before anything is done.
func TestX01EveryRouteChecks(t *testing.T) {
	d, srv := house(t, Config{})
	d.mux = d.routes(Routes)
	_, secret, err := d.cfg.Tokens.Make("", Admin, time.Time{}, access.Bounds{Labels: map[string]string{"team": "a"}})
	if err != nil {
		t.Fatal(err)
	}
	special := map[string]string{"backend": "none", "prefer": "none", "on_success": "apply", "image": "dir:/"}
	tried := 0
	for _, r := range Routes {
		path, _ := r.Split()
		if r.In == nil || !r.Traits.has(labelled) {
			continue
		}
		path = regexp.MustCompile(`\{[a-z]+\}`).ReplaceAllString(path, "web")
		at := reflect.TypeOf(r.In)
		for i := range at.NumField() {
			name, ok := access.JSONName(at.Field(i))
			key := at.Name() + "." + name
			if !ok || fields[key] == nil || reflect.ValueOf(fields[key]).Pointer() == reflect.ValueOf(harmless).Pointer() {
				continue
			}
			var value any = cmp.Or(special[name], "/srv/acme")
			switch at.Field(i).Type.Kind() {
			case reflect.Slice:
				value = []string{"PIP_CACHE_DIR=/srv/acme"}
				if name == "command" {
					value = []string{"/srv/acme/x"}
				}
			case reflect.Bool:
				value = true
			}
			body, err := json.Marshal(map[string]any{name: value})
			if err != nil {
				t.Fatal(err)
			}
			req, err := http.NewRequest(r.Method, srv.URL+path, bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+secret)
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			said, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != http.StatusForbidden || !strings.Contains(string(said), "belongs to the daemon's host") {
				t.Errorf("%s %s with %s: %d %s", r.Method, path, body, resp.StatusCode, said)
			}
			tried++
		}
	}
	if tried < 40 {
		t.Errorf("only %d fields were tried", tried)
	}
}
