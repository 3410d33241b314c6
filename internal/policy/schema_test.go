package policy

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/jsonschema-go/jsonschema"
)

const schemaFile = "../../docs/reference/policy.schema.json"

// The published schema is the table of words. PANDO_UPDATE=1 writes it.
func TestSchemaIsPublished(t *testing.T) {
	if os.Getenv("PANDO_UPDATE") != "" {
		if err := os.WriteFile(schemaFile, Schema(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(schemaFile)
	if err != nil || !bytes.Equal(b, Schema()) {
		t.Errorf("docs/reference/policy.schema.json is not what the words say (%v): run PANDO_UPDATE=1 go test ./internal/policy", err)
	}
}

// What the reader takes the schema takes, and what it refuses by its form the
// schema refuses.
func TestSchemaAgreesWithTheReader(t *testing.T) {
	var s jsonschema.Schema
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		ok   bool
	}{
		{everyWord(t), true},
		{"version: 1\n", true},
		{"version: 2\n", false},
		{"limits: {pids: 1}\n", false},
		{"version: 1\nisolation: {least: microvm}\n", true},
		{"version: 1\nisolation: {}\n", false},
		{"version: 1\nisolation: {least: firecracker}\n", false},
		{"version: 1\nisolation: {most: gvisor}\n", false},
		{"version: 1\nsecrets: mask\n", true},
		{"version: 1\nsecrets: name\n", true},
		{"version: 1\nsecrets: hide\n", false},
		{"version: 1\nsecrets: {mask: true}\n", false},
		{"version: 1\nsecrets: true\n", false},
		{"version: 1\nnetwrok: {}\n", false},
		{"version: 1\nnetwork: {allow: []}\n", false},
		{"version: 1\nnetwork: {allow: [{ports: 443}]}\n", false},
		{"version: 1\nnetwork: {allow: [{host: a.example, prots: 443}]}\n", false},
		{"version: 1\nnetwork: {deny: [{host: a.example, credential: x}]}\n", false},
		{"version: 1\nnetwork: {allow: [{host: a.example, except: [{except: [{host: b.example}]}]}]}\n", false},
		{"version: 1\nfiles: {mounts: [{source: /x}]}\n", false},
		{"version: 1\nenvironment: {set: [A]}\n", false},
		{"version: 1\nlimits: {memory: [1]}\n", false},
		{"version: 1\napprovals: {timeout: 5m, webhook: {}}\n", false},
		{"version: 1\nprices: {m: {input: 1, output: 2}}\n", true},
		{"version: 1\nprices: {m: {input: 1}}\n", false},
		{"version: 1\nprices: {m: {input: 1, output: 2, cached: 1}}\n", false},
	} {
		var v any
		if err := yaml.Unmarshal([]byte(c.text), &v); err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var doc any
		json.Unmarshal(b, &doc)
		_, readErr := ParseFile("p", []byte(c.text))
		if schemaErr := r.Validate(doc); (schemaErr == nil) != c.ok || (readErr == nil) != c.ok {
			t.Errorf("%s: schema %v, reader %v; want ok %v", strings.TrimSpace(c.text), schemaErr, readErr, c.ok)
		}
	}
}

// everyWord is a policy file with each word of the table.
func everyWord(t *testing.T) string {
	b, err := os.ReadFile("testdata/every-word.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
