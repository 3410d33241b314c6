package e2b

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// The binary form of messages, Protocol Buffers (https://protobuf.dev/programming-guides/encoding).
// A field's number stands in its tag, beside the name that it has in JSON:
//
//	pb:"3"             string, []byte, bool, an integer, a message, a list of messages or
//	                   strings, a map of strings; a pointer to a bool or a message
//	pb:"1,sint"        an integer in zigzag form
//	pb:"2,Signal"      an enum of that name: a word here, a number on the wire
//
// What is not set is not sent; a []byte is set unless it is nil.

// enums maps words to numbers.
var enums = map[string]map[string]int32{
	"Signal":    {"SIGNAL_UNSPECIFIED": 0, "SIGNAL_SIGKILL": 9, "SIGNAL_SIGTERM": 15},
	"FileType":  {"FILE_TYPE_UNSPECIFIED": 0, "FILE_TYPE_FILE": 1, "FILE_TYPE_DIRECTORY": 2, "FILE_TYPE_SYMLINK": 3},
	"EventType": {"EVENT_TYPE_UNSPECIFIED": 0, "EVENT_TYPE_CREATE": 1, "EVENT_TYPE_WRITE": 2, "EVENT_TYPE_REMOVE": 3, "EVENT_TYPE_RENAME": 4, "EVENT_TYPE_CHMOD": 5},
}

// word returns the word of a number, or the number itself.
func word(enum string, n int32) string {
	for w, is := range enums[enum] {
		if is == n {
			return w
		}
	}
	return strconv.Itoa(int(n))
}

var (
	timeType = reflect.TypeFor[time.Time]()
	byteType = reflect.TypeFor[[]byte]()
)

// pbTag returns a field's number and form; 0 for a field that is not sent.
func pbTag(f reflect.StructField) (n protowire.Number, form string) {
	s, form, _ := strings.Cut(f.Tag.Get("pb"), ",")
	i, _ := strconv.Atoi(s)
	return protowire.Number(i), form
}

// appendMessage appends a struct's binary form.
func appendMessage(b []byte, v reflect.Value) []byte {
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	for i := range v.NumField() {
		if n, form := pbTag(v.Type().Field(i)); n != 0 {
			b = appendField(b, n, form, v.Field(i))
		}
	}
	return b
}

func appendField(b []byte, n protowire.Number, form string, v reflect.Value) []byte {
	embed := func(in []byte) { b = protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), in) }
	number := func(x uint64) {
		if x != 0 {
			b = protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), x)
		}
	}
	switch {
	case v.Type() == timeType:
		if t := v.Interface().(time.Time); !t.IsZero() {
			in := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(t.Unix()))
			embed(protowire.AppendVarint(protowire.AppendTag(in, 2, protowire.VarintType), uint64(t.Nanosecond())))
		}
	case v.Type() == byteType:
		if !v.IsNil() {
			embed(v.Bytes())
		}
	case v.Kind() == reflect.Pointer && v.IsNil():
	case v.Kind() == reflect.Pointer && v.Elem().Kind() == reflect.Bool: // explicit, even if false
		b = protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), protowire.EncodeBool(v.Elem().Bool()))
	case v.Kind() == reflect.Pointer, v.Kind() == reflect.Struct:
		embed(appendMessage(nil, v))
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			if e := v.Index(i); e.Kind() == reflect.String {
				embed([]byte(e.String()))
			} else {
				embed(appendMessage(nil, e))
			}
		}
	case v.Kind() == reflect.Map:
		m := v.Interface().(map[string]string)
		for _, k := range slices.Sorted(maps.Keys(m)) {
			in := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), k)
			embed(protowire.AppendString(protowire.AppendTag(in, 2, protowire.BytesType), m[k]))
		}
	case v.Kind() == reflect.String && form != "":
		number(uint64(int64(enums[form][v.String()])))
	case v.Kind() == reflect.String:
		if v.Len() > 0 {
			embed([]byte(v.String()))
		}
	case v.Kind() == reflect.Bool:
		number(protowire.EncodeBool(v.Bool()))
	case v.CanUint():
		number(v.Uint())
	case form == "sint":
		number(protowire.EncodeZigZag(v.Int()))
	default:
		number(uint64(v.Int()))
	}
	return b
}

// errField is the error for a field of another type.
var errField = errors.New("a field of another type")

// readMessage reads a struct from its binary form, and lists unknown fields.
func readMessage(prefix string, b []byte, v reflect.Value) (ignored []string, err error) {
	for len(b) > 0 {
		n, wire, used := protowire.ConsumeTag(b)
		if used < 0 {
			return nil, protowire.ParseError(used)
		}
		b = b[used:]
		var x uint64
		var in []byte
		switch wire {
		case protowire.VarintType:
			x, used = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			in, used = protowire.ConsumeBytes(b)
		default:
			used = protowire.ConsumeFieldValue(n, wire, b)
		}
		if used < 0 {
			return nil, protowire.ParseError(used)
		}
		b = b[used:]
		known := false
		for i := range v.NumField() {
			f := v.Type().Field(i)
			m, form := pbTag(f)
			if m != n {
				continue
			}
			known = true
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			more, err := readField(prefix+name+".", form, wire, x, in, v.Field(i))
			if err != nil {
				return nil, fmt.Errorf("%s%s: %w", prefix, name, err)
			}
			ignored = append(ignored, more...)
		}
		if name := prefix + strconv.Itoa(int(n)); !known && len(ignored) < maxIgnored && !slices.Contains(ignored, name) {
			ignored = append(ignored, name)
		}
	}
	return ignored, nil
}

func readField(prefix, form string, wire protowire.Type, x uint64, in []byte, v reflect.Value) (ignored []string, err error) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	if want := map[bool]protowire.Type{true: protowire.VarintType, false: protowire.BytesType}[v.Kind() == reflect.Bool || v.CanInt() || v.CanUint() || v.Kind() == reflect.String && form != ""]; wire != want {
		return nil, errField
	}
	text := func(b []byte) (string, error) {
		if !utf8.Valid(b) {
			return "", errors.New("text that is not UTF-8")
		}
		return string(b), nil
	}
	switch {
	case v.Type() == byteType:
		v.SetBytes(append([]byte{}, in...))
	case v.Kind() == reflect.Struct:
		return readMessage(prefix, in, v)
	case v.Kind() == reflect.Slice:
		e := reflect.New(v.Type().Elem()).Elem()
		ignored, err = readField(prefix, form, wire, x, in, e)
		v.Set(reflect.Append(v, e))
	case v.Kind() == reflect.Map:
		var kv struct {
			K string `json:"key" pb:"1"`
			V string `json:"value" pb:"2"`
		}
		if ignored, err = readMessage(prefix, in, reflect.ValueOf(&kv).Elem()); err == nil {
			if v.IsNil() {
				v.Set(reflect.MakeMap(v.Type()))
			}
			v.SetMapIndex(reflect.ValueOf(kv.K), reflect.ValueOf(kv.V))
		}
	case v.Kind() == reflect.String && form != "":
		v.SetString(word(form, int32(x)))
	case v.Kind() == reflect.String:
		var s string
		s, err = text(in)
		v.SetString(s)
	case v.Kind() == reflect.Bool:
		v.SetBool(protowire.DecodeBool(x))
	case v.CanUint():
		if v.OverflowUint(x) {
			return nil, errors.New("a number that is too large")
		}
		v.SetUint(x)
	default:
		n := int64(x)
		if form == "sint" {
			n = protowire.DecodeZigZag(x)
		}
		if v.OverflowInt(n) || n > math.MaxInt32 && v.Kind() == reflect.Int {
			return nil, errors.New("a number that is too large")
		}
		v.SetInt(n)
	}
	return ignored, err
}
