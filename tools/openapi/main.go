// Command openapi writes the description of the HTTP API from the table of
// routes and the Go types: api/openapi.json (OpenAPI 3.1) and
// docs/reference/json.md, the same types as tables for people; and
// docs/reference/events.md, the kinds of events. Run it from the root of the
// repository with `make generate`; a test compares.
package main

import (
	"fmt"
	"os"

	"github.com/pando-dev/pando/internal/daemon"
	"github.com/pando-dev/pando/internal/evidence"
)

func main() {
	if err := generate("."); err != nil {
		fmt.Fprintln(os.Stderr, "openapi:", err)
		os.Exit(1)
	}
}

// generate writes the files below root.
func generate(root string) error {
	files, err := render(root)
	if err != nil {
		return err
	}
	for name, b := range files {
		if err := os.WriteFile(root+"/"+name, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// render returns the contents of the files by their path below root, where
// the sources of package api are read for their comments.
func render(root string) (map[string][]byte, error) {
	types, err := readTypes(root+"/api", daemon.Routes)
	if err != nil {
		return nil, err
	}
	spec, err := describe(types, daemon.Routes)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		"api/openapi.json":         spec,
		"docs/reference/json.md":   tables(types, daemon.Routes),
		"docs/reference/events.md": events(evidence.EventKinds()),
	}, nil
}
