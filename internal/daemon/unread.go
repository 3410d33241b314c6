package daemon

import (
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// unreadJSON explains why a body cannot be decoded into type t, in terms of JSON.
func unreadJSON(err error, t reflect.Type) error {
	const see = "see /docs for its shape"
	if bad, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		where := "it"
		if bad.Field != "" {
			where = bad.Field
		}
		return cell.Errorf(cell.Invalid, "daemon.decode", see, "cannot read the request: %s has to be %s, not %s", where, jsonWords(bad.Type), withArticle(bad.Value))
	}
	if bad, ok := errors.AsType[*json.SyntaxError](err); ok {
		return cell.Errorf(cell.Invalid, "daemon.decode", "", "cannot read the request: it is no JSON from byte %d on: %w", bad.Offset, err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return cell.Errorf(cell.Invalid, "daemon.decode", "", "cannot read the request: its JSON ends in the middle")
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		hint := see
		if t.Kind() == reflect.Struct {
			hint = "it takes " + strings.Join(jsonFields(t), ", ")
		}
		return cell.Errorf(cell.Invalid, "daemon.decode", hint, "cannot read the request: it has an unknown field %s", strconv.Quote(cell.Clip(strings.Trim(name, `"`))))
	}
	return unread(err)
}

// jsonFields are the names of a type's fields.
func jsonFields(t reflect.Type) (out []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			out = append(out, name)
		} else if f.Anonymous && f.Type.Kind() == reflect.Struct {
			out = append(out, jsonFields(f.Type)...)
		}
	}
	return out
}

// jsonWords is the name of a Go type in JSON.
func jsonWords(t reflect.Type) string {
	if t == nil {
		return "something else"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return jsonWords(t.Elem())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Interface:
		return "something else"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

// withArticle is the kind of a JSON value in the decoder's error, with an article.
func withArticle(value string) string {
	kind, which, _ := strings.Cut(value, " ")
	switch kind {
	case "number":
		if which != "" { // one that does not fit
			return cell.Clip(which)
		}
	case "array":
		return "a list"
	case "object":
		return "an object"
	case "bool":
		return "true or false"
	}
	return "a " + value
}
