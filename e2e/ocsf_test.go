package e2e

import (
	"encoding/json"
	"os"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/rogpeppe/go-internal/testscript"
)

// ocsfSchema is the part of the published schema that events are tested
// against: internal/ocsf/testdata/README.md.
const ocsfSchema = "../internal/ocsf/testdata/ocsf-1.9.0.schema.json"

// validOCSF checks that every line of the last stdout is a valid event of OCSF,
// and that there are some.
func validOCSF(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 0 || neg {
		ts.Fatalf("usage: ocsf")
	}
	text, err := os.ReadFile(ocsfSchema)
	ts.Check(err)
	classes := map[string]*jsonschema.Resolved{}
	n := 0
	for line := range strings.Lines(ts.ReadFile("stdout")) {
		var e map[string]any
		ts.Check(json.Unmarshal([]byte(line), &e))
		name, _ := e["class_name"].(string)
		name = strings.ToLower(strings.ReplaceAll(name, " ", "_"))
		if classes[name] == nil {
			var s jsonschema.Schema
			ts.Check(json.Unmarshal(text, &s))
			s.Ref = "#/$defs/" + name
			classes[name], err = s.Resolve(nil)
			ts.Check(err)
		}
		if err := classes[name].Validate(e); err != nil {
			ts.Fatalf("not valid: %v\n%s", err, line)
		}
		n++
	}
	if n == 0 {
		ts.Fatalf("no events")
	}
}
