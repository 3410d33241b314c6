package daemon

import (
	"bytes"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/pando-dev/pando/internal/cell"
)

// isText reports whether a JSON body is UTF-8, and has no escape of half a surrogate pair:
// encoding/json reads both as U+FFFD, so that another name would be meant than the
// caller's. (Python writes such escapes for bytes of file names that are not UTF-8.)
func isText(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	for {
		i := bytes.IndexByte(b, '\\')
		if i < 0 || i+1 == len(b) {
			return true
		}
		b = b[i:]
		r, ok := escape(b)
		switch {
		case !ok:
			b = b[2:]
		case !utf16.IsSurrogate(r):
			b = b[6:]
		default:
			low, ok := escape(b[6:])
			if !ok || utf16.DecodeRune(r, low) == utf8.RuneError {
				return false
			}
			b = b[12:]
		}
	}
}

// escape is the code unit of an escape \uXXXX that b begins with.
func escape(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	return rune(n), err == nil
}

func notText(what string) error {
	return cell.Errorf(cell.Invalid, "daemon", "name such a file from within the cell, or name its folder", "cannot read %s: it is not UTF-8", what)
}

// checkQuery refuses parameters that the route has not, because what they were to do is
// not done, and those that are not UTF-8: paths in a cell are sent on as JSON. dir is only
// compared, and clients say it always. What a program in a cell is asked is its own matter.
func checkQuery(route Route, raw string) error {
	if raw == "" || route.Method == anyMethod {
		return nil
	}
	q, err := url.ParseQuery(raw)
	if err != nil {
		return cell.Errorf(cell.Invalid, "daemon.Query", "escape it as application/x-www-form-urlencoded", "the query can't be read: %w", err)
	}
	_, known := route.Split()
	for name, values := range q {
		if name != "dir" && !slices.Contains(known, name) {
			hint := "it takes none"
			if len(known) > 0 {
				hint = "it takes " + strings.Join(known, ", ")
			}
			return cell.Errorf(cell.Invalid, "daemon.Query", hint, "there is no parameter %s", strconv.Quote(clip(name)))
		}
		for _, v := range values {
			if name != "dir" && !utf8.ValidString(v) {
				return notText(name)
			}
		}
	}
	return nil
}
