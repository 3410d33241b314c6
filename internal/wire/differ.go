package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	maxPointers = 8
	maxPointer  = 120 // bytes
)

// differ says how the body of a request differs from the recorded one: by JSON pointers, or by digests.
// "": it does not, or that is not known.
func differ(was, is *Message) string {
	if was.Cut || was.Partial || is.Cut || is.Partial || bytes.Equal(was.Body, is.Body) {
		return ""
	}
	a, errA := parse(was.Body)
	b, errB := parse(is.Body)
	if errA != nil || errB != nil {
		return fmt.Sprintf("its body is %s, and was %s", digest(is.Body), digest(was.Body))
	}
	var list []string
	pointers(&list, "", a, b)
	switch {
	case len(list) == 0:
		return "" // the same value, in another spelling
	case len(list) > maxPointers:
		list = append(list[:maxPointers], "…")
	}
	return "its body differs at " + strings.Join(list, ", ")
}

func parse(b []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err = d.Decode(&v); err == nil && d.More() {
		err = errMalformed
	}
	return v, err
}

func digest(b []byte) string { return fmt.Sprintf("%d bytes (%.19s)", len(b), cell.Sum(b).String()) }

// pointers lists where two values differ, as JSON pointers (RFC 6901).
func pointers(list *[]string, at string, a, b any) {
	if len(*list) > maxPointers {
		return
	}
	switch a := a.(type) {
	case map[string]any:
		if b, ok := b.(map[string]any); ok {
			all := maps.Clone(a)
			maps.Copy(all, b)
			for _, name := range slices.Sorted(maps.Keys(all)) {
				x, inA := a[name]
				y, inB := b[name]
				to := at + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
				if inA != inB {
					add(list, to)
				} else {
					pointers(list, to, x, y)
				}
			}
			return
		}
	case []any:
		if b, ok := b.([]any); ok {
			for i := range max(len(a), len(b)) {
				to := at + "/" + strconv.Itoa(i)
				if i >= len(a) || i >= len(b) {
					add(list, to)
					return
				}
				pointers(list, to, a[i], b[i])
			}
			return
		}
	default:
		if a == scalar(b) {
			return
		}
	}
	add(list, at)
}

// scalar is v unless it is a map or a list, which can't be compared.
func scalar(v any) any {
	switch v.(type) {
	case map[string]any, []any:
		return errMalformed
	}
	return v
}

func add(list *[]string, at string) {
	if len(at) > maxPointer {
		at = at[:maxPointer] + "…"
	}
	if at == "" {
		at = `""`
	}
	*list = append(*list, strings.ToValidUTF8(at, "?"))
}
