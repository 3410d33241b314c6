package e2e

import (
	"encoding/json"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/daemon"
)

// badNames are rejected by every verb and every endpoint before any path is
// touched.
var badNames = []string{
	"../x", "/x", "a b", "-rf", "$(id)", strings.Repeat("n", 300), ".", "..", "a/b", "a\nb", "~", "*", "caf\xe9", "ü", "x;y", "a\\b", "%2e%2e",
	"..%2fx", "x\x1b[2J", " ", "r-0000", "@", "a@b@c", "a:b:c", ":", "web@-1", "web@0", "web@99999999999999999999",
}

func TestF24NamesOnEveryVerb(t *testing.T) {
	rootHasRunIt(t)
	t.Parallel()
	h := newHost(t)
	h.write("f", "f\n")
	h.pando("run", "--cell", "web", "--", "sh", "-c", "echo x > x")
	before := describeDir(t, h.state("cells")) + describeDir(t, h.state("layers")) + describeDir(t, h.state("runs"))
	verbs := [][]string{
		{"run", "--cell", "NAME", "--", "true"}, {"exec", "NAME", "--", "true"}, {"shell", "NAME"}, {"ps", "NAME"}, {"stats", "NAME"},
		{"show", "NAME"}, {"runs", "NAME"}, {"runs", "export", "NAME", "-o", "-"}, {"history", "NAME"}, {"tree", "NAME"}, {"diff", "NAME"},
		{"logs", "NAME"}, {"pause", "NAME"}, {"resume", "NAME"}, {"stop", "NAME"}, {"rm", "--yes", "NAME"}, {"checkpoint", "NAME"},
		{"restore", "--yes", "NAME"}, {"undo", "--yes", "NAME"}, {"fork", "NAME"}, {"fork", "web", "--name", "NAME"}, {"fork", "web", "-n", "2", "--name", "NAME"},
		{"accept", "NAME"}, {"discard", "NAME"}, {"receipt", "show", "NAME"}, {"receipt", "verify", "NAME"}, {"receipt", "export", "NAME", "-o", "-"},
		{"cp", "NAME:x", "/dev/null"}, {"eval", "NAME", "1"}, {"branch", "NAME"}, {"branch", "web", "--name", "NAME"},
		{"template", "build", "NAME"}, {"template", "show", "NAME"}, {"template", "rm", "NAME"}, {"fork", "NAME", "--eval", "1"},
	}
	for i, verb := range verbs {
		for j, name := range badNames {
			if (i+j)%6 != 0 && os.Getenv("E2E_SOAK") == "" {
				continue // each verb with some names, and each name with some verbs
			}
			args := append([]string(nil), verb...)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "NAME", name)
			}
			if verb[0] == "cp" && strings.ContainsAny(name, "/:") || verb[0] == "cp" && strings.Trim(name, ".") == "" || verb[0] == "tree" && name == "" {
				continue // a path of this host
			}
			if len(verb) == 6 && name == "r-0000" {
				continue // r-0000-1 looks like none of ours
			}
			o := h.try(args...)
			switch {
			case o.code == 0:
				t.Errorf("pando %q succeeded", args)
			case o.code == 1:
				t.Errorf("pando %q: exit code 1: %s", args, o.stderr)
			case !strings.HasPrefix(o.stderr, "pando: cannot "):
				t.Errorf("pando %q: %s", args, o.stderr)
			case strings.Contains(o.stderr, "\x1b") || strings.Contains(o.stderr, "\xe9"):
				t.Errorf("pando %q: control characters on the terminal: %q", args, o.stderr)
			case strings.Contains(o.stderr, strings.Repeat("n", 200)):
				t.Errorf("pando %q: 300 characters come back", args[0])
			}
		}
	}
	after := describeDir(t, h.state("cells")) + describeDir(t, h.state("layers")) + describeDir(t, h.state("runs"))
	if before != after {
		t.Errorf("something was touched:\n%s\nbecame\n%s", before, after)
	}
	if n := len(h.cells()); n != 1 {
		t.Errorf("there are %d cells", n)
	}
}

func TestF24NamesOnEveryEndpoint(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.write("f", "f\n")
	h.pando("run", "--cell", "web", "--", "sh", "-c", "echo x > x")
	before := describeDir(t, h.state("cells")) + describeDir(t, h.state("layers")) + describeDir(t, h.state("runs"))
	endpoints := []struct{ method, path, body string }{
		{"GET", "/v1/cells/NAME", ""}, {"DELETE", "/v1/cells/NAME", ""}, {"POST", "/v1/cells/NAME/pause", ""}, {"POST", "/v1/cells/NAME/resume", ""},
		{"POST", "/v1/cells/NAME/stop", ""}, {"GET", "/v1/cells/NAME/processes", ""}, {"GET", "/v1/cells/NAME/stats", ""},
		{"GET", "/v1/cells/NAME/history", ""}, {"GET", "/v1/cells/NAME/tree", ""}, {"GET", "/v1/cells/NAME/diff", ""},
		{"POST", "/v1/cells/NAME/checkpoints", "{}"}, {"POST", "/v1/cells/NAME/restore", `{"number":1,"lose":true}`}, {"POST", "/v1/cells/NAME/restore", `{}`},
		{"POST", "/v1/cells/NAME/undo", "{}"}, {"POST", "/v1/cells/NAME/fork", "{}"}, {"POST", "/v1/cells/web/fork", `{"name":JSON}`},
		{"GET", "/v1/cells/NAME/files?path=x", ""}, {"PUT", "/v1/cells/NAME/files?path=x", ""},
		{"POST", "/v1/cells/NAME/execs", `{"command":["true"]}`}, {"GET", "/v1/execs/NAME", ""}, {"GET", "/v1/execs/NAME/attach", ""},
		{"POST", "/v1/plans", `{"command":["true"],"from":"/tmp","cell":JSON}`}, {"POST", "/v1/runs", `{"command":["true"],"from":"/tmp","cell":JSON}`},
		{"GET", "/v1/runs?cell=NAME", ""}, {"GET", "/v1/runs/NAME", ""}, {"GET", "/v1/runs/NAME/attach", ""}, {"POST", "/v1/runs/NAME/interrupt", ""},
		{"GET", "/v1/runs/NAME/diff", ""}, {"GET", "/v1/runs/NAME/files/stdout", ""}, {"GET", "/v1/runs/web:latest/files/NAME", ""},
		{"GET", "/v1/runs/NAME/export", ""}, {"POST", "/v1/runs/NAME/accept", "{}"}, {"POST", "/v1/runs/NAME/discard", "{}"},
		{"POST", "/v1/cells/NAME/eval", `{"code":"1"}`}, {"POST", "/v1/cells/NAME/branch", "{}"}, {"POST", "/v1/cells/web/branch", `{"name":JSON}`},
		{"POST", "/v1/templates", `{"name":JSON}`}, {"GET", "/v1/templates/NAME", ""}, {"DELETE", "/v1/templates/NAME", ""},
		{"POST", "/v1/templates/NAME/fork", "{}"},
		{"GET", "/v1/receipts/NAME", ""}, {"GET", "/v1/receipts/NAME/bundle", ""}, {"POST", "/v1/receipts/NAME/verify", ""},
	}
	// And each route of the table with a name in its path that is not among them: its
	// other names are right.
	right := map[string]string{"cell": "web", "run": "web:latest", "name": "stdout", "port": "80", "rest": "x"}
	known := map[string]bool{}
	for _, e := range endpoints {
		path, _, _ := strings.Cut(e.path, "?")
		known[e.method+" "+path] = true
	}
	for _, r := range daemon.Routes {
		path, query := r.Split()
		words := daemon.PathWords(path)
		for _, bad := range words {
			if bad == "rest" { // a path of the program's own
				continue
			}
			p := path
			for _, w := range words {
				to := right[w]
				if w == bad {
					to = "NAME"
				}
				p = strings.NewReplacer("{"+w+"}", to, "{"+w+"...}", to).Replace(p)
			}
			if known[r.Method+" "+p] {
				continue
			}
			for _, q := range query {
				if q == "path" {
					p += "?path=x"
				}
			}
			body := ""
			if r.In != nil {
				body = map[string]string{"mkdir": `{"path":"x"}`, "rename": `{"path":"x","to":"y"}`}[path[strings.LastIndex(path, "/")+1:]]
				if body == "" {
					body = "{}"
				}
			}
			method := r.Method
			if method == "ANY" {
				method = "PATCH"
			}
			endpoints = append(endpoints, struct{ method, path, body string }{method, p, body})
		}
	}
	for _, e := range endpoints {
		for _, name := range append(badNames, "a\x00b", "\x00", "../../../etc/passwd") {
			quoted, _ := json.Marshal(strings.ToValidUTF8(name, "?"))
			path := strings.ReplaceAll(e.path, "NAME", url.PathEscape(name))
			if strings.Contains(e.path, "?cell=") {
				path = strings.ReplaceAll(e.path, "NAME", url.QueryEscape(name))
			}
			status, body := h.request(e.method, path, strings.ReplaceAll(e.body, "JSON", string(quoted)))
			var got api.Error
			switch {
			case status < 400 || status >= 500:
				t.Errorf("%s %s (%q): %d %s", e.method, e.path, name, status, body)
			case json.Unmarshal([]byte(body), &got) != nil || got.Kind == "" || !strings.HasPrefix(got.Message, "cannot "):
				t.Errorf("%s %s (%q): %d %s", e.method, e.path, name, status, body)
			case len(body) > 1000:
				t.Errorf("%s %s (%q): %d bytes come back", e.method, e.path, name, len(body))
			}
		}
	}
	after := describeDir(t, h.state("cells")) + describeDir(t, h.state("layers")) + describeDir(t, h.state("runs"))
	if before != after {
		t.Errorf("something was touched:\n%s\nbecame\n%s", before, after)
	}
	if n := len(h.cells()); n != 1 {
		t.Errorf("there are %d cells", n)
	}
}
