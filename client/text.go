package client

import (
	"bytes"
	"encoding/json"

	"github.com/pando-dev/pando/api"
)

// encode returns the JSON of a request. It fails for strings that are not UTF-8, which JSON
// cannot hold: json.Marshal would replace their bytes, and the daemon would act on another name.
func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if changed := replaced(b); changed != "" {
		return nil, &api.Error{Kind: "invalid", Message: "cannot send " + changed + ": it is not UTF-8",
			Hint: "name such a file within the cell, as sh -c 'cat caf*' does, or name its folder; a source directory needs another name"}
	}
	return b, nil
}

// replaced returns the first JSON string in which json.Marshal replaced a byte that is not
// UTF-8; "" when there is none. It writes the escape \ufffd for such a byte, but a U+FFFD of the
// input as the character itself.
func replaced(b []byte) string {
	for {
		_, rest, ok := bytes.Cut(b, []byte{'"'})
		if !ok {
			return ""
		}
		text, bad := inString(rest)
		if bad {
			return `"` + string(text) + `"`
		}
		b = rest[min(len(text)+1, len(rest)):]
	}
}

// inString returns a JSON string up to its closing quotation mark, and whether it contains the
// escape \ufffd.
func inString(b []byte) (text []byte, bad bool) {
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			return b[:i], bad
		case '\\':
			bad = bad || bytes.HasPrefix(b[i:], []byte(`\ufffd`))
			i++
		}
	}
	return b, bad
}
