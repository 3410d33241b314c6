package credential

import (
	"encoding/base64"
	"encoding/hex"
	"strings"
	"unicode/utf16"
)

// A needle is text that gives a value away.
type needle struct {
	text string
	of   string // the credential
	form string // "plain", "base64", …
}

const (
	// windowLen is the length of the pieces by which a long value is searched for. A piece
	// of a token of that length reveals most of what it protects.
	windowLen = 48
	// joinedLen is the length of the shortest text that is believed when it
	// stands on two lines: short ones stand everywhere.
	joinedLen = 16
)

// needles returns all texts that give a value away, where nothing but the
// escapes that a view undoes is between.
func needles(name, value string) (list []needle) {
	seen := map[string]bool{}
	add := func(form, text string) {
		if len(text) >= 6 && !seen[text] {
			seen[text] = true
			list = append(list, needle{text, name, form})
		}
	}
	for _, v := range windows(value) {
		add("plain", v)
		h := hex.EncodeToString([]byte(v))
		add("hex", h)
		add("hex", strings.ToUpper(h))
		add("utf-16", wide(v))
		for shift := range 3 {
			// The first and the last character hold bits of what is around the
			// value as well, and are not looked for.
			first, last := (8*shift+5)/6, 8*(shift+len(v))/6
			padded := append(make([]byte, shift), v...)
			add("base64", base64.RawStdEncoding.EncodeToString(padded)[first:last])
			add("base64url", base64.RawURLEncoding.EncodeToString(padded)[first:last])
		}
	}
	return list
}

// windows returns what stands for a value: itself, or its beginning, middle and
// end when it is long.
func windows(v string) []string {
	if _, err := Claims(v); err == nil { // what is before its signature is the same in many tokens, and worth nothing
		v = v[strings.LastIndexByte(v, '.')+1:]
	}
	if len(v) <= 2*windowLen {
		return []string{v}
	}
	mid := (len(v) - windowLen) / 2
	return []string{v[:windowLen], v[mid : mid+windowLen], v[len(v)-windowLen:]}
}

func wide(v string) string {
	var b strings.Builder
	for _, u := range utf16.Encode([]rune(v)) {
		b.WriteByte(byte(u))
		b.WriteByte(byte(u >> 8))
	}
	return strings.TrimRight(b.String(), "\x00") // big endian: the same, one byte on
}
