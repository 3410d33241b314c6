package cli

import (
	"encoding/json"
	"io"
	"reflect"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) templateSchemaCmd() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of template files", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := templateSchema()
			return a.print(json.RawMessage(b), func(w io.Writer) { w.Write(b) })
		},
	}
}

// templateSchema is the JSON Schema of template files, made from the type that reads them. What
// it cannot express, such as whether a source exists, is checked when a template is built.
func templateSchema() []byte {
	s := objectSchema(reflect.TypeFor[templateFile]())
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "A template of pando, version 1"
	s["required"] = []string{"version"}
	s["properties"].(map[string]any)["version"].(map[string]any)["const"] = templateVersion
	both := func(words ...string) map[string]any { return map[string]any{"not": map[string]any{"required": words}} }
	s["allOf"] = []any{both("setup", "setup_file"), both("policy", "policy_file")}
	b, _ := json.MarshalIndent(s, "", "  ") // maps and strings: cannot fail
	return append(b, '\n')
}

// objectSchema describes the fields of a struct.
func objectSchema(t reflect.Type) map[string]any {
	words := map[string]any{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		word := valueSchema(f.Type)
		word["description"] = f.Tag.Get("about")
		words[name] = word
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": words}
}

// valueSchema describes the value of a field. A text may look like a number.
func valueSchema(t reflect.Type) map[string]any {
	switch t.Kind() {
	case reflect.Pointer:
		return objectSchema(t.Elem())
	case reflect.Slice:
		return map[string]any{"type": "array", "items": valueSchema(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": valueSchema(t.Elem())}
	case reflect.Int:
		return map[string]any{"type": "integer"}
	}
	return map[string]any{"type": []string{"string", "number", "boolean"}}
}
