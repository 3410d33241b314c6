package report

import (
	"encoding/json"
	"reflect"
	"strings"

	"github.com/pando-dev/pando/internal/workspace/diff"
)

// safe is a copy of a report or a comparison in which no text can change the direction of other text, hide itself or drive a
// terminal. What is drawn for people is drawn from it; the document for programs has all as it is.
func safe[T any](v *T) (*T, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	out := new(T)
	if err := json.Unmarshal(b, out); err != nil {
		return nil, err
	}
	clean(reflect.ValueOf(out).Elem())
	return out, nil
}

var rawJSON = reflect.TypeFor[json.RawMessage]()

// clean escapes all strings below a value.
func clean(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() {
			v.SetString(lines(v.String()))
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			clean(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				clean(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.Type() == rawJSON {
			return
		}
		for i := range v.Len() {
			clean(v.Index(i))
		}
	}
}

// lines escapes text line by line.
func lines(s string) string {
	if !strings.Contains(s, "\n") {
		return diff.Visible(s)
	}
	all := strings.Split(s, "\n")
	for i, l := range all {
		all[i] = diff.Visible(strings.TrimSuffix(l, "\r"))
	}
	return strings.Join(all, "\n")
}
