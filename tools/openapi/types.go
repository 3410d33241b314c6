package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/daemon"
)

// typ is one struct of package api, with what its comments say.
type typ struct {
	Name   string
	Does   string // its doc comment, in one line
	Schema *jsonschema.Schema
	Fields []field
}

type field struct {
	Name     string // in JSON
	Type     string // for people: "list of Cell"
	Does     string
	Optional bool
}

// readTypes collects every type that a route takes or gives, and those inside
// them, in the order in which the routes need them.
func readTypes(dir string, routes []daemon.Route) ([]typ, error) {
	comments, err := readComments(dir)
	if err != nil {
		return nil, err
	}
	var order []reflect.Type
	seen := map[reflect.Type]bool{}
	var visit func(t reflect.Type)
	visit = func(t reflect.Type) {
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			visit(t.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		if seen[t] || t == reflect.TypeFor[time.Time]() {
			return
		}
		seen[t] = true
		order = append(order, t)
		for f := range fields(t) {
			visit(f.Type)
		}
	}
	for _, r := range routes {
		for _, v := range []any{r.In, r.Out} {
			if v != nil {
				visit(reflect.TypeOf(v))
			}
		}
	}
	for _, t := range []reflect.Type{reflect.TypeFor[api.StreamLine](), reflect.TypeFor[api.Error](), reflect.TypeFor[api.Progress](), reflect.TypeFor[api.Resize](), reflect.TypeFor[api.Gap](), reflect.TypeFor[api.Taken](), reflect.TypeFor[api.FileEvent](), reflect.TypeFor[api.DiffChange]()} {
		visit(t)
	}
	refs := map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[json.RawMessage](): {Types: []string{"object"}},
		reflect.TypeFor[time.Time]():       {Type: "string", Format: "date-time"},
		reflect.TypeFor[[]byte]():          {Type: "string", ContentEncoding: "base64"},
	}
	for _, t := range order {
		refs[t] = ref(t.Name())
	}
	var all []typ
	for _, t := range order {
		self := refs[t]
		delete(refs, t)
		x, err := describeType(t, refs, comments)
		refs[t] = self
		if err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	return all, nil
}

func ref(name string) *jsonschema.Schema {
	return &jsonschema.Schema{Ref: "#/components/schemas/" + name}
}

func describeType(t reflect.Type, refs map[reflect.Type]*jsonschema.Schema, comments map[string]string) (typ, error) {
	// A type that holds itself is referred to inside, too.
	for f := range fields(t) {
		if e := f.Type; e.Kind() == reflect.Slice && e.Elem() == t {
			refs = withRef(refs, e, &jsonschema.Schema{Type: "array", Items: ref(t.Name())})
		}
	}
	s, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: refs})
	if err != nil {
		return typ{}, err
	}
	// Answers may gain fields: a client must not refuse them.
	s.AdditionalProperties = nil
	x := typ{Name: t.Name(), Does: comments[t.Name()], Schema: s}
	s.Description = x.Does
	for f := range fields(t) {
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		p := s.Properties[name]
		if p == nil {
			return typ{}, fmt.Errorf("%s.%s has no schema", t.Name(), f.Name)
		}
		does := cmp.Or(comments[t.Name()+"."+f.Name], everywhere[name])
		if does == everywhere[name] && isText(does) && !holdsText(f.Type) {
			return typ{}, fmt.Errorf("%s.%s is no text, and %q does not describe it: give it a comment", t.Name(), f.Name, does)
		}
		p.Description = does
		x.Fields = append(x.Fields, field{Name: name, Type: words(f.Type), Does: does, Optional: rest != ""})
	}
	return x, nil
}

// isText reports whether a meaning of everywhere is one of a text alone.
func isText(does string) bool {
	for _, begin := range []string{"id of ", "digest of ", "state ", "directory ", "path ", "its name", "what a terminal "} {
		if strings.HasPrefix(does, begin) {
			return true
		}
	}
	return false
}

func holdsText(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t.Kind() == reflect.String
}

func withRef(refs map[reflect.Type]*jsonschema.Schema, t reflect.Type, s *jsonschema.Schema) map[reflect.Type]*jsonschema.Schema {
	out := map[reflect.Type]*jsonschema.Schema{t: s}
	for k, v := range refs {
		out[k] = v
	}
	return out
}

// fields yields the fields of t that JSON has.
func fields(t reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			f := t.Field(i)
			if tag := f.Tag.Get("json"); f.IsExported() && tag != "" && tag != "-" && !yield(f) {
				return
			}
		}
	}
}

// words names a type for people.
func words(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "time"
	case t == reflect.TypeFor[json.RawMessage]():
		return "object"
	case t == reflect.TypeFor[[]byte]():
		return "bytes"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return words(t.Elem()) + " or null"
	case reflect.Slice:
		return "list of " + words(t.Elem())
	case reflect.Map:
		return "object of " + words(t.Elem())
	case reflect.Struct:
		return fmt.Sprintf("[%s](#%s)", t.Name(), strings.ToLower(t.Name()))
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	case reflect.Float32, reflect.Float64:
		return "number"
	}
	return "integer"
}

// readComments reads the comments of the structs in dir and of their fields,
// by "Type" and "Type.Field". A field's comment stands above it or behind it;
// one field may have both.
func readComments(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	fset := token.NewFileSet()
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, filepath.Join(dir, e.Name()), nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, s := range g.Specs {
				ts := s.(*ast.TypeSpec)
				st, ok := ts.Type.(*ast.StructType)
				if !ok {
					continue
				}
				out[ts.Name.Name] = oneLine(g.Doc.Text())
				for _, fl := range st.Fields.List {
					for _, n := range fl.Names {
						out[ts.Name.Name+"."+n.Name] = oneLine(fl.Doc.Text() + " " + fl.Comment.Text())
					}
				}
			}
		}
	}
	return out, nil
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
