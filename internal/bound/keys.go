package bound

import (
	"encoding/json"

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
// reader of the same bytes the first.
func Unique(b []byte, what string) error {
	var open []*keys // of the objects and arrays around; nil for an array
	isKey := false   // the next string is one
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '{':
			open, isKey = append(open, &keys{}), true
		case '[':
			open, isKey = append(open, nil), false
		case '}', ']':
			if len(open) > 0 {
				open = open[:len(open)-1]
			}
			isKey = false
		case ',':
			isKey = len(open) > 0 && open[len(open)-1] != nil
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
			if !open[len(open)-1].add(key) {
				return cell.Errorf(cell.Invalid, "bound.Unique", "say it once", "cannot read %s: %q is in one object twice", what, cell.Clip(key))
			}
		}
	}
	return nil
}
