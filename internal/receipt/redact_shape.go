package receipt

import (
	"bytes"
	"encoding/base64"
	"sync"
)

// A class is a set of bytes.
type class [256]bool

func classOf(chars string) *class {
	var c class
	for _, b := range []byte(chars) {
		c[b] = true
	}
	return &c
}

const (
	digits = "0123456789"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	lower  = "abcdefghijklmnopqrstuvwxyz"
)

var (
	alnum    = classOf(digits + upper + lower)
	alnumU   = classOf(digits + upper + lower + "_")
	alnumD   = classOf(digits + upper + lower + "-")
	base64U  = classOf(digits + upper + lower + "-_")
	base64S  = classOf(digits + upper + lower + "+/=")
	bearer   = classOf(digits + upper + lower + "-._~+/=")
	capitals = classOf(digits + upper)
	inBase64 = classOf(digits + upper + lower + "+/-_=")
	isDigit  = classOf(digits)
)

// A shape is how a kind of token looks: a prefix and a number of characters
// of a class, or what a function finds.
type shape struct {
	prefix string
	class  *class
	min    int  // characters after the prefix
	word   bool // no letter or digit stands before it
	value  bool // the prefix itself is no part of the secret
	check  func(rest []byte) bool
	// special replaces all of that. It looks at text[at:], which begins with
	// the prefix, and returns the secret and where to go on looking for this
	// prefix.
	special func(text []byte, at int) (s span, next int)
}

var shapes = []shape{
	{prefix: "ghp_", class: alnum, min: 20},
	{prefix: "gho_", class: alnum, min: 20},
	{prefix: "ghu_", class: alnum, min: 20},
	{prefix: "ghs_", class: alnum, min: 20},
	{prefix: "ghr_", class: alnum, min: 20},
	{prefix: "github_pat_", class: alnumU, min: 20},
	{prefix: "glpat-", class: base64U, min: 20},
	{prefix: "sk-ant-", class: base64U, min: 16},
	{prefix: "sk-", class: base64U, min: 20, word: true, check: hasDigit},
	{prefix: "sk_live_", class: alnum, min: 16},
	{prefix: "sk_test_", class: alnum, min: 16},
	{prefix: "rk_live_", class: alnum, min: 16},
	{prefix: "AKIA", class: capitals, min: 16, word: true},
	{prefix: "ASIA", class: capitals, min: 16, word: true},
	{prefix: "xoxb-", class: alnumD, min: 10},
	{prefix: "xoxp-", class: alnumD, min: 10},
	{prefix: "xoxa-", class: alnumD, min: 10},
	{prefix: "xoxr-", class: alnumD, min: 10},
	{prefix: "xoxs-", class: alnumD, min: 10},
	{prefix: "xapp-", class: alnumD, min: 10},
	{prefix: "AIza", class: base64U, min: 35, word: true},
	{prefix: "ya29.", class: base64U, min: 20, word: true},
	{prefix: "npm_", class: alnum, min: 36, word: true},
	{prefix: "pypi-", class: base64U, min: 40, word: true, check: hasDigit},
	{prefix: "hf_", class: alnum, min: 30, word: true},
	{prefix: "dop_v1_", class: alnum, min: 40},
	{prefix: "AGE-SECRET-KEY-1", class: capitals, min: 50},
	{prefix: "Bearer ", class: bearer, min: 16, value: true, check: hasDigit},
	{prefix: "bearer ", class: bearer, min: 16, value: true, check: hasDigit},
	{prefix: "Basic ", class: base64S, min: 8, value: true, check: isUserPassword},
	{prefix: "basic ", class: base64S, min: 8, value: true, check: isUserPassword},
	{prefix: "LS0tLS1CRUdJTi", class: base64S, min: 40, check: isEncodedPEM}, // "-----BEGIN" in base64
	{prefix: "eyJ", special: findJWT},
	{prefix: "-----BEGIN ", special: findPEM},
	{prefix: "://", special: findPassword},
}

var shapePrefixes = sync.OnceValues(func() (*matcher, map[string]int) {
	m, index := newMatcher(), map[string]int{}
	for i, s := range shapes {
		m.add(needle{text: s.prefix})
		index[s.prefix] = i
	}
	m.link()
	return m, index
})

// findShapes calls found for everything in text that looks like a token. Each
// shape passes over what it has looked at, so that text made of nothing but
// prefixes takes no longer than other text.
func findShapes(text []byte, found func(from, to int)) {
	prefixes, index := shapePrefixes()
	var next [64]int // by shape: where it has not looked yet
	prefixes.find(text, func(n needle, end int) {
		i := index[n.text]
		s, at := &shapes[i], end-len(n.text)
		if at < next[i] || s.word && at > 0 && alnumU[text[at-1]] {
			return
		}
		if s.special != nil {
			var hit span
			hit, next[i] = s.special(text, at)
			if hit.to > hit.from {
				found(hit.from, hit.to)
			}
			return
		}
		to := runEnd(text, end, s.class)
		next[i] = to
		if to-end < s.min || s.check != nil && !s.check(text[end:to]) {
			return
		}
		if s.value {
			at = end
		}
		found(at, to)
	})
}

// runEnd returns where the characters of a class end.
func runEnd(text []byte, at int, c *class) int {
	for at < len(text) && c[text[at]] {
		at++
	}
	return at
}

func hasDigit(b []byte) bool {
	for _, c := range b {
		if isDigit[c] {
			return true
		}
	}
	return false
}

// isUserPassword accepts the base64 of "user:password".
func isUserPassword(b []byte) bool {
	plain, err := base64.RawStdEncoding.DecodeString(string(bytes.TrimRight(b, "=")))
	return err == nil && bytes.IndexByte(plain, ':') > 0
}

// isEncodedPEM tells private keys from certificates. b follows the prefix; the prefix has 14
// characters, which leave 4 bits of the next byte open.
func isEncodedPEM(b []byte) bool {
	start := append([]byte("Ti"), b[:min(len(b), 62)]...) // 64 characters from "Ti" on are whole bytes
	plain, _ := base64.StdEncoding.DecodeString(string(start))
	return bytes.Contains(plain, []byte("PRIVATE KEY"))
}

// findJWT finds three parts of base64 with dots between, of which the first
// two begin like a JSON object.
func findJWT(text []byte, at int) (s span, next int) {
	first := runEnd(text, at, base64U)
	if first-at < 12 || !bytes.HasPrefix(text[first:], []byte(".eyJ")) {
		return span{}, first
	}
	second := runEnd(text, first+1, base64U)
	if second-first < 8 || second == len(text) || text[second] != '.' {
		return span{}, first
	}
	return span{at, runEnd(text, second+1, base64U)}, second
}

// findPEM finds a private key, up to the end of the text when its own end is
// missing.
func findPEM(text []byte, at int) (s span, next int) {
	label := text[at+len("-----BEGIN ") : min(len(text), at+80)]
	i := bytes.Index(label, []byte("-----"))
	if i < 0 || !bytes.Contains(label[:i], []byte("PRIVATE KEY")) {
		return span{}, at + 1
	}
	body := at + len("-----BEGIN ") + i + len("-----")
	end := bytes.Index(text[body:], []byte("-----END "))
	if end < 0 {
		return span{at, len(text)}, len(text)
	}
	end += body + len("-----END ")
	if i := bytes.Index(text[end:min(len(text), end+80)], []byte("-----")); i >= 0 {
		end += i + len("-----")
	}
	return span{at, end}, end
}

// notInUserinfo ends what may stand between "://" and "@".
var notInUserinfo = classOf("/?#[]<>\"'`|\\{} \t\r\n\x00")

// findPassword finds the password in a URL.
func findPassword(text []byte, at int) (s span, next int) {
	at += len("://")
	colon := -1
	for i := at; i < len(text) && i < at+1024 && !notInUserinfo[text[i]]; i++ {
		switch {
		case text[i] == ':' && colon < 0:
			colon = i
		case text[i] == '@' && colon >= 0 && i > colon+1:
			return span{colon + 1, i}, i
		}
	}
	return span{}, at
}
