package access

import (
	"context"
	"reflect"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// Names lists what of the daemon's host a field of a request names. request is the
// struct that has the field.
type Names func(request, field reflect.Value) []string

// Fields classifies the fields of the requests of one API, by the name of the type
// and that of the field in JSON: "RunRequest.from". Of a type without a name the
// former is "". What is not in it may name anything: see MayName.
type Fields map[string]Names

// Harmless is a field that names nothing of the daemon's host, whatever its value:
// names of cells, paths inside a cell, limits, code that runs in a cell.
func Harmless(_, _ reflect.Value) []string { return nil }

// MayNameHost reports whether a caller may name directories, sockets, images and
// kernels of the daemon's host: scope admin without labels.
func (p Principal) MayNameHost() bool { return p.Level.Allows(Admin) && !p.Restricted() }

// MayName refuses a request that names something of the daemon's host, unless its
// caller may do everything there. It is the one place where this is decided, for
// every API. A field that is set and not classified is refused as well.
func (f Fields) MayName(ctx context.Context, request any) error {
	if p, ok := From(ctx); ok && p.MayNameHost() {
		return nil
	}
	return RefuseHost(ctx, f.Named(request))
}

// RefuseHost refuses a request that names what of the daemon's host, unless it names
// nothing or its caller may do everything there.
func RefuseHost(ctx context.Context, what []string) error {
	p, ok := From(ctx)
	switch {
	case ok && p.MayNameHost():
		return nil
	case len(what) == 0:
		return nil
	case p.Restricted(): // the files of other cells are on the host
		return cell.Errorf(cell.Denied, "access.MayName", "use a token without labels, or leave it out",
			"%s belongs to the daemon's host, and the token %s is restricted to %s", strings.Join(what, ", "), p.Name, LabelText(p.Bounds.Labels))
	case !ok:
		return cell.Errorf(cell.Denied, "access.MayName", "use a token of scope admin, or leave it out", "%s belongs to the daemon's host, and the caller has no token for it", strings.Join(what, ", "))
	}
	return cell.Errorf(cell.Denied, "access.MayName", "use a token of scope admin, or leave it out",
		"%s belongs to the daemon's host, and the token %s is of scope %s", strings.Join(what, ", "), p.Name, p.Level)
}

// Named lists what of the daemon's host a request names.
func (f Fields) Named(request any) (what []string) {
	Walk(reflect.ValueOf(request), func(request, field reflect.Value, key string) {
		names, ok := f[key]
		if !ok {
			what = append(what, "the field "+key+", which is not classified,")
			return
		}
		what = append(what, names(request, field)...)
	})
	return what
}

// Walk visits the fields of a request that are set, with those of the structs in
// it. A struct that the request embeds, contains, points to or lists is none itself:
// its fields are.
func Walk(v reflect.Value, visit func(request, field reflect.Value, key string)) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			Walk(v.Elem(), visit)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			Walk(v.Index(i), visit)
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			Walk(v.MapIndex(k), visit)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name, ok := JSONName(v.Type().Field(i))
			field := v.Field(i)
			if !ok || field.IsZero() {
				continue
			}
			if name == "" || HoldsFields(field.Type()) {
				Walk(field, visit)
				continue
			}
			visit(v, field, v.Type().Name()+"."+name)
		}
	}
}

// JSONName returns the name of a field in JSON, or "" for an embedded struct with its
// members in place of the field. ok is false for a field that is not read from JSON.
func JSONName(f reflect.StructField) (name string, ok bool) {
	name, _, _ = strings.Cut(f.Tag.Get("json"), ",")
	switch {
	case name == "-" || !f.IsExported() && !f.Anonymous:
		return "", false
	case name == "" && f.Anonymous:
		return "", true
	case name == "":
		return f.Name, true
	}
	return name, true
}

// HoldsFields reports whether values of a type are structs with fields that are
// read from JSON, or contain some.
func HoldsFields(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return HoldsFields(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if _, ok := JSONName(t.Field(i)); ok {
				return true
			}
		}
	}
	return false
}
