// Package accesstest checks tables of what requests may name of the host.
package accesstest

import (
	"reflect"
	"testing"

	"github.com/pando-dev/pando/internal/access"
)

// Complete fails a test unless a table has each field of some types of requests, also
// of the types inside these, and no other. It returns how many fields there are.
func Complete(t *testing.T, table access.Fields, requests []reflect.Type) int {
	t.Helper()
	seen := map[string]bool{}
	var visit func(at reflect.Type)
	visit = func(at reflect.Type) {
		switch at.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			visit(at.Elem())
		case reflect.Interface:
			t.Errorf("a request has the type %s: what comes in it can't be classified", at)
		case reflect.Struct:
			for i := range at.NumField() {
				f := at.Field(i)
				name, ok := access.JSONName(f)
				if !ok {
					continue
				}
				if name == "" || access.HoldsFields(f.Type) {
					visit(f.Type)
					continue
				}
				key := at.Name() + "." + name
				if seen[key] = true; table[key] == nil {
					t.Errorf("%s is not classified: can it name something of the daemon's host? See fields in hostpaths.go", key)
				}
			}
		}
	}
	for _, r := range requests {
		visit(r)
	}
	for key := range table {
		if !seen[key] {
			t.Errorf("%s is classified, and no request has it", key)
		}
	}
	return len(seen)
}
