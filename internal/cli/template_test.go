package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/pando-dev/pando/api"
)

// What a description can't mean is an error with its place.
func TestTemplateFileErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"version: 1\nform: x\n", `[2:1] unknown field "form"`},
		{"version: 1\nlimits:\n  memroy: 1G\n", `[3:3] unknown field "memroy"`},
		{"version: 1\nallow: {a: b}\n", "[2:"},
		{"version: 1\nname: x\nname: y\n", "[3:1]"},
		{"version: 2\nname: x\n", "its version is 2"},
		{"name: x\n", "it has no version"},
		{"", "it has no version"},
		{"version: 1\n---\nversion: 1\n", "more than one document"},
		{"version: 1\nsetup: a\nsetup_file: b\n", "setup and setup_file"},
		{"version: 1\npolicy: a\npolicy_file: b\n", "policy and policy_file"},
		{"\xff\xfe", "cannot read template t.yaml"},
		{"version: 1\nname: [\n", "[2:"},
	} {
		_, err := parseTemplateFile("t.yaml", []byte(c.text))
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Kind != "invalid" || !strings.HasPrefix(e.Message, "cannot read template t.yaml: ") || !strings.Contains(e.Message, c.want) {
			t.Errorf("%q: %v, not %q", c.text, err, c.want)
		}
	}
}

// What show prints asks for the same template again.
func TestTemplateFileRebuilds(t *testing.T) {
	for name, want := range map[string]api.TemplateRequest{
		"little": {Name: "a"},
		"much": {
			Name: "pyagent", From: "/src/proj", Backend: "namespace", Image: "oci:python:3.12", Warm: "python",
			Setup: "import numpy\n\nfor x in 'a: b', \"c\":\n    print(x, '# no comment', \"\\t\")\n", Ready: "len(x) > 0", Timeout: "90s",
			Allow: []string{"@pypi", "*.example.org:8443"}, Credential: []string{"github"}, Policy: "version: 1\nlimits:\n  cpus: 2\n",
			Limits: api.Limits{CPUs: "1.5", Memory: "1G", PIDs: "64", Disk: "10G"}, Env: []string{"A=1", "B=x=y", "EMPTY="},
			WithSecret: []string{"certs/test.pem"}, Labels: map[string]string{"team": "yes"},
		},
		"odd": {Name: "1e3", Setup: "- x", Ready: "true", Env: []string{"N=007", "T=yes"}, Labels: map[string]string{"a": "\u2028 \" '"}},
	} {
		t.Run(name, func(t *testing.T) {
			text := templateYAML(want)
			file := filepath.Join(t.TempDir(), "t.yaml")
			if err := os.WriteFile(file, text, 0o644); err != nil {
				t.Fatal(err)
			}
			var got api.TemplateRequest
			if err := new(app).readTemplateFile(file, &got, func(string) bool { return false }); err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s\nfrom\n%s", diff, text)
			}
		})
	}
}

// Flags win over the file, lists are joined, and paths are the file's.
func TestTemplateFileAndFlags(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", "/home/u")
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("warm.py", "import this")
	write("p.yaml", "version: 1\n")
	write("t.yaml", "version: 1\nname: a\nfrom: ./src\nsetup_file: warm.py\npolicy_file: p.yaml\nallow: [x.org]\nlimits: {memory: 1G, cpus: 2}\n")
	write("h.yaml", "version: 1\nfrom: ~/src\nimage: dir:root\n")
	write("o.yaml", "version: 1\nimage: oci:./layout:v1\n")
	req := api.TemplateRequest{Allow: []string{"y.org"}, Limits: api.Limits{CPUs: "3"}}
	if err := new(app).readTemplateFile(dir+"/t.yaml", &req, func(f string) bool { return f == "cpus" }); err != nil {
		t.Fatal(err)
	}
	want := api.TemplateRequest{Name: "a", From: dir + "/src", Setup: "import this", Policy: "version: 1\n",
		Allow: []string{"x.org", "y.org"}, Limits: api.Limits{Memory: "1G", CPUs: "3"}}
	if diff := cmp.Diff(want, req); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	req = api.TemplateRequest{}
	if err := new(app).readTemplateFile(dir+"/h.yaml", &req, func(string) bool { return false }); err != nil || req.From != "/home/u/src" || req.Image != "dir:"+dir+"/root" {
		t.Errorf("from %s, image %s (%v)", req.From, req.Image, err)
	}
	for _, home := range []string{"", "."} { // the working directory is no home
		t.Setenv("HOME", home)
		req = api.TemplateRequest{}
		if err := new(app).readTemplateFile(dir+"/h.yaml", &req, func(string) bool { return false }); err != nil || req.From != dir+"/~/src" {
			t.Errorf("with HOME=%s, from %s (%v)", home, req.From, err)
		}
	}
	if err := new(app).readTemplateFile(dir+"/o.yaml", &req, func(string) bool { return false }); err != nil || req.Image != "oci:"+dir+"/layout:v1" {
		t.Errorf("image %s (%v)", req.Image, err)
	}
}

const templateSchemaFile = "../../docs/reference/template.schema.json"

// The published schema is of the type that reads. PANDO_UPDATE=1 writes it.
func TestTemplateSchemaIsPublished(t *testing.T) {
	if os.Getenv("PANDO_UPDATE") != "" {
		if err := os.WriteFile(templateSchemaFile, templateSchema(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(templateSchemaFile)
	if err != nil || !bytes.Equal(b, templateSchema()) {
		t.Errorf("docs/reference/template.schema.json is not what the reader knows (%v): run PANDO_UPDATE=1 go test ./internal/cli", err)
	}
	if bytes.Contains(b, []byte(`"description": ""`)) {
		t.Error("a word of template files says nothing about itself")
	}
}

// What the reader takes the schema takes, and what it refuses by its form the
// schema refuses.
func TestTemplateSchemaAgreesWithTheReader(t *testing.T) {
	var s jsonschema.Schema
	if err := json.Unmarshal(templateSchema(), &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"version: 1", "version: 2", "name: x", "version: 1\nname: 7\nready: true\nlimits: {memory: 1G, pids: 64, cpus: 1.5, disk: 1G}\nenv: {A: 1, B: x}",
		"version: 1\nsetup: |\n  x = 1\nallow: [\"@pypi\"]\nlabels: {a: b}", "version: 1\nsetpu: x", "version: 1\nlimits: {memroy: 1G}", "version: 1\nallow: x",
		"version: 1\nfrom: [a]", "version: 1\nsetup: a\nsetup_file: b", "version: 1\npolicy: a\npolicy_file: b", "version: 1\nenv: [A]",
	} {
		_, reads := parseTemplateFile("t.yaml", []byte(text))
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var doc any
		if err := json.Unmarshal(b, &doc); err != nil {
			t.Fatal(err)
		}
		if says := r.Validate(doc); (says == nil) != (reads == nil) {
			t.Errorf("%q: the reader says %v, the schema %v", text, reads, says)
		}
	}
}
