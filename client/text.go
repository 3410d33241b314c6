package client

import (
	"bytes"
	"encoding/json"

	"github.com/pando-dev/pando/api"
)

// encode is the JSON of a request. It fails where a string is not UTF-8, which JSON cannot
// hold: json.Marshal would put other characters in its place, and the daemon would act on
// another name than the caller's.
func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if changed := replaced(b); changed != "" {
		return nil, &api.Error{Kind: "invalid", Message: "cannot send " + changed + ": it is not UTF-8",
			Hint: "name such a file from within the cell, as sh -c 'cat caf*' does, or name its folder; a source directory needs another name"}
	}
	return b, nil
}

// replaced is the first string of a JSON text in which json.Marshal replaced a byte that is
// not UTF-8, as JSON; "" when there is none. It writes the escape \ufffd for such a byte,
// and the character itself for a U+FFFD that was there.
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

// inString is a string of a JSON text up to its closing quotation mark, and whether the
// escape \ufffd is in it.
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
