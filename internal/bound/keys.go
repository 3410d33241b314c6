package bound

import (
	"encoding/json"
	"reflect"
	"strings"
	"sync"
	"unicode"

	"github.com/pando-dev/pando/internal/cell"
)

// fewKeys is the number of keys of an object up to which they are compared one by one.
const fewKeys = 16

// keys are those of an object so far.
type keys struct {
	few []string
	all map[string]bool // of more than fewKeys
}

// add reports whether the key was not there.
func (k *keys) add(key string) bool {
	if k.all != nil {
		is := k.all[key]
		k.all[key] = true
		return !is
	}
	for _, other := range k.few {
		if other == key {
			return false
		}
	}
	if k.few = append(k.few, key); len(k.few) > fewKeys {
		k.all = make(map[string]bool, 2*len(k.few))
		for _, key := range k.few {
			k.all[key] = true
		}
		k.few = nil
	}
	return true
}

// Unique fails when an object in valid JSON has a key twice: encoding/json takes the last one, and another
// reader of the same bytes the first. into is the type that the bytes are decoded into. encoding/json finds
// the fields of a struct without regard to case, and keys that differ in case alone are the same there. Keys
// of a map and of what decodes itself are as they are.
func Unique(b []byte, what string, into reflect.Type) error {
	open := []*object{{holds: into}} // the objects and arrays around, and what holds the whole
	isKey := false                   // the next string is one
	for i := 0; i < len(b); i++ {
		in := open[len(open)-1]
		switch b[i] {
		case '{', '[':
			open = append(open, newObject(in.holds, b[i] == '{'))
			isKey = b[i] == '{'
		case '}', ']':
			if len(open) > 1 {
				open = open[:len(open)-1]
			}
			isKey = false
		case ',':
			isKey = in.keys != nil
		case '"':
			from, escaped := i, false
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					escaped = true
					i++
				}
			}
			if !isKey || i >= len(b) {
				continue
			}
			isKey = false
			key := string(b[from+1 : i])
			if escaped {
				if err := json.Unmarshal(b[from:i+1], &key); err != nil {
					return cell.Errorf(cell.Invalid, "bound.Unique", "", "cannot read %s: %w", what, err)
				}
			}
			if err := in.has(key, what); err != nil {
				return err
			}
		}
	}
	return nil
}

// object is an object or array that is being read.
type object struct {
	keys   *keys                   // nil for an array
	fields map[string]reflect.Type // of a struct, by folded name; else nil
	names  map[string]string       // the keys of a struct that were there, by folded name
	holds  reflect.Type            // of the next value in it; nil when it is not known
}

// newObject is an object or array that is decoded into t, which may be nil.
func newObject(t reflect.Type, braces bool) *object {
	for t != nil && t.Kind() == reflect.Pointer && !decodesItself(t) {
		t = t.Elem()
	}
	o := &object{}
	if braces {
		o.keys = &keys{}
	}
	if t == nil || decodesItself(t) {
		return o
	}
	switch k := t.Kind(); {
	case braces && k == reflect.Struct:
		o.fields, o.names = knownFields(t), map[string]string{}
	case braces && k == reflect.Map, !braces && (k == reflect.Slice || k == reflect.Array):
		o.holds = t.Elem()
	}
	return o
}

// has notes a key of an object, and fails when it is there already.
func (o *object) has(key, what string) error {
	if !o.keys.add(key) {
		return cell.Errorf(cell.Invalid, "bound.Unique", "say it once", "cannot read %s: %q is in one object twice", what, cell.Clip(key))
	}
	if o.fields == nil {
		return nil
	}
	name := folded(key)
	if other, ok := o.names[name]; ok {
		return cell.Errorf(cell.Invalid, "bound.Unique", "say it once", "cannot read %s: %q and %q are in one object, and differ in case alone", what, cell.Clip(other), cell.Clip(key))
	}
	if o.holds = o.fields[name]; o.holds != nil {
		o.names[name] = key
	}
	return nil
}

// decodesItself reports whether encoding/json leaves the decoding to a type.
func decodesItself(t reflect.Type) bool {
	unmarshaler := reflect.TypeFor[json.Unmarshaler]()
	return t.Implements(unmarshaler) || t.Kind() != reflect.Pointer && reflect.PointerTo(t).Implements(unmarshaler)
}

// fieldsOfTypes has what fieldsOf finds, by type: those of a program are few.
var fieldsOfTypes sync.Map

// knownFields are the fields of a struct. The caller doesn't change them.
func knownFields(t reflect.Type) map[string]reflect.Type {
	if known, ok := fieldsOfTypes.Load(t); ok {
		return known.(map[string]reflect.Type)
	}
	fields := map[string]reflect.Type{}
	fieldsOf(t, fields)
	fieldsOfTypes.Store(t, fields)
	return fields
}

// fieldsOf adds the fields of a struct as encoding/json names them, those of embedded structs last.
func fieldsOf(t reflect.Type, to map[string]reflect.Type) {
	var embedded []reflect.Type
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		name, _, _ := strings.Cut(tag, ",")
		in := f.Type
		if in.Kind() == reflect.Pointer {
			in = in.Elem()
		}
		switch {
		case tag == "-":
		case f.Anonymous && name == "" && in.Kind() == reflect.Struct:
			embedded = append(embedded, in)
		case f.IsExported():
			if name == "" {
				name = f.Name
			}
			if name = folded(name); to[name] == nil {
				to[name] = f.Type
			}
		}
	}
	for _, in := range embedded {
		fieldsOf(in, to)
	}
}

// folded is a name as encoding/json compares it: each letter as the least one of those that differ in case
// alone.
func folded(name string) string {
	return strings.Map(func(r rune) rune {
		for {
			next := unicode.SimpleFold(r)
			if next <= r {
				return next
			}
			r = next
		}
	}, name)
}
