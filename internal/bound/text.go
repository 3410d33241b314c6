package bound

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// IsText reports whether a JSON body is UTF-8, and has no escape of half a surrogate pair:
// encoding/json reads both as U+FFFD, so that another name would be meant than the
// caller's. (Python writes such escapes for bytes of file names that are not UTF-8.)
func IsText(b []byte) bool {
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
