package e2b

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// jsonOf returns the value of an evaluation as E2B's clients expect it in json: for lists and
// dictionaries, nil for others. It is approximate: values without a form in JSON become the
// nearest one.
func jsonOf(text json.RawMessage) any {
	if len(text) == 0 || text[0] != '[' && text[0] != '{' {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil
	}
	switch v := nearest(v).(type) {
	case []any, map[string]any:
		return v
	}
	return nil
}

// nearest replaces the special forms of cell.Value.
func nearest(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = nearest(v[i])
		}
	case map[string]any:
		if len(v) == 1 {
			for word, x := range v {
				if w, ok := nearestOf(word, x); ok {
					return w
				}
			}
		}
		for k := range v {
			v[k] = nearest(v[k])
		}
	}
	return v
}

func nearestOf(word string, x any) (any, bool) {
	switch x := x.(type) {
	case string:
		switch word {
		case "$float":
			return nil, true // as orjson, which E2B's own kernel uses, writes NaN
		case "$int":
			if json.Valid([]byte(x)) { // the text is not trusted
				return json.Number(x), true
			}
			return x, true
		case "$bytes", "$str":
			return x, true
		}
	case map[string]any:
		if word == "$opaque" {
			return x["repr"], true
		}
	case []any:
		switch word {
		case "$tuple", "$set":
			return nearest(x), true
		case "$dict":
			out := map[string]any{}
			for _, pair := range x {
				if p, ok := pair.([]any); ok && len(p) == 2 {
					out[fmt.Sprint(nearest(p[0]))] = nearest(p[1])
				}
			}
			return out, true
		}
	}
	return nil, false
}
