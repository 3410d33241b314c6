package secret

import (
	"bytes"
	"hash/crc32"
	"strings"
)

// byteSet is a set of bytes.
type byteSet [256]bool

// newByteSet reads ranges and single bytes: "a-f" or "_"; "--" is a dash.
func newByteSet(s string) *byteSet {
	var set byteSet
	for i := 0; i < len(s); i++ {
		if i+2 < len(s) && s[i+1] == '-' && s[i+2] > s[i] {
			for c := int(s[i]); c <= int(s[i+2]); c++ {
				set[c] = true
			}
			i += 2
			continue
		}
		set[s[i]] = true
	}
	return &set
}

func (s *byteSet) or(o *byteSet) *byteSet {
	u := *s
	for c, in := range o {
		u[c] = u[c] || in
	}
	return &u
}

// leading returns the bytes of set that b begins with.
func leading(b []byte, set *byteSet) []byte {
	n := 0
	for n < len(b) && set[b[n]] {
		n++
	}
	return b[:n]
}

// trailing returns the bytes of set that b ends with.
func trailing(b []byte, set *byteSet) []byte {
	n := len(b)
	for n > 0 && set[b[n-1]] {
		n--
	}
	return b[n:]
}

// wordStart reports whether no word goes on at b[at]. The letter of an escaped
// line end, as in JSON, belongs to no word.
func wordStart(b []byte, at int) bool {
	if at == 0 || !alnumLine[b[at-1]] {
		return true
	}
	return at > 1 && b[at-2] == '\\' && strings.IndexByte("nrt", b[at-1]) >= 0
}

// placeholders are words in examples. The chance that a random token has one is 1 in 100,000
// for 64 characters, and 1 in 10 for hexadecimal ones.
var placeholders = []string{"example", "sample", "dummy", "placeholder", "redacted", "changeme", "replace", "xxxxx", "secret", "token", "12345", "abcde", "notreal", "invalid"}

// short ones count only at the beginning.
var placeholderStarts = []string{"your", "test", "fake", "demo", "mock", "my-", "my_", "..."}

// knownExamples are values that vendors print in their documentation, cut in
// two so that this file is not found by tools like this one.
var knownExamples = []string{
	"SyDaGmWKa4JsXZ" + "-HjGw7ISLn_3namBGewQe",      // Google Maps
	"Eby8vdM02xNOcqFlqUwJ" + "PLlmEtlCDXJ1OUzFT50u", // the storage emulator of Azure
	"C2y6yDjf5/R+ob0N8A7C" + "gv30VRDJIWEHLM+4QDU5", // Cosmos DB's emulator
}

// looksRandom tells what a machine drew from what a person wrote: enough
// different bytes, no runs, no counting, no repetition, no words.
func looksRandom(b []byte) bool {
	var seen byteSet
	distinct, same, longest, counting := 0, 1, 1, 0
	for i, c := range b {
		if !seen[c] {
			seen[c] = true
			distinct++
		}
		if i > 0 {
			switch c {
			case b[i-1]:
				same++
				longest = max(longest, same)
			case b[i-1] + 1:
				counting++
				same = 1
			default:
				same = 1
			}
		}
	}
	if distinct < min(8, len(b)*3/8) || longest > 5 || counting > len(b)/3 {
		return false
	}
	for period := 1; period <= len(b)/2 && period <= 40; period++ {
		if bytes.Equal(b[period:], b[:len(b)-period]) {
			return false
		}
	}
	text := string(b)
	for _, k := range knownExamples {
		if strings.HasPrefix(text, k) {
			return false
		}
	}
	text = strings.ToLower(text[:min(64, len(text))])
	for _, p := range placeholders {
		if strings.Contains(text, p) {
			return false
		}
	}
	for _, p := range placeholderStarts {
		if strings.HasPrefix(text, p) {
			return false
		}
	}
	return true
}

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// crcBase62 verifies the last six digits as the CRC-32 of what precedes them
// (GitHub, "Behind GitHub's new authentication token formats", 2021).
func crcBase62(body []byte) bool {
	sum := crc32.ChecksumIEEE(body[:len(body)-6])
	for i := len(body) - 1; i >= len(body)-6; i-- {
		if body[i] != base62[sum%62] {
			return false
		}
		sum /= 62
	}
	return true
}

// hasJWT checks "<application>_<header>.<claims>.…", the form of 2026.
func hasJWT(body []byte) bool {
	app, jwt, ok := bytes.Cut(body, []byte("_"))
	return ok && len(leading(app, newByteSet("0-9"))) == len(app) && bytes.HasPrefix(jwt, []byte("eyJ")) && bytes.Contains(jwt, []byte(".eyJ"))
}

func endsIn(tail string) func([]byte) bool {
	return func(body []byte) bool {
		return bytes.HasSuffix(body, []byte(tail)) && bytes.IndexByte(body, '=') == len(body)-len(tail)
	}
}

// findTelegram: eight to ten digits, ":AA" and 33 more.
func findTelegram(b []byte, at, end int) (from, to int, ok bool) {
	id := trailing(b[:at], newByteSet("0-9"))
	start := at - len(id)
	rest := leading(b[end:], base64URL)
	return start, end + len(rest), len(id) >= 8 && len(id) <= 10 && wordStart(b, start) && len(rest) == 33 && looksRandom(rest)
}

// findOpenAI: keys of all kinds contain "OpenAI" in base64.
func findOpenAI(b []byte, at, end int) (from, to int, ok bool) {
	head, tail := trailing(b[:at], base64URL), leading(b[end:], base64URL)
	i := bytes.LastIndex(head, []byte("sk-"))
	if i < 0 {
		return 0, 0, false
	}
	start := at - len(head) + i
	for _, other := range []string{"proj-", "svcacct-", "admin-"} { // has its own row
		if bytes.HasPrefix(head[i+3:], []byte(other)) {
			return 0, 0, false
		}
	}
	body := head[i+3:]
	return start, end + len(tail), wordStart(b, start) && len(body) >= 20 && len(tail) >= 20 && looksRandom(body) && looksRandom(tail)
}

// findAzureSecret: three characters, a digit, "Q~" and 31 to 34 more.
func findAzureSecret(b []byte, at, end int) (from, to int, ok bool) {
	set := base64Dot.or(newByteSet("~"))
	start := at - 3
	if start < 0 || len(leading(b[start:at], set)) != 3 || !wordStart(b, start) {
		return 0, 0, false
	}
	rest := leading(b[end:], set)
	return start, end + len(rest), len(rest) >= 31 && len(rest) <= 34 && looksRandom(rest)
}

var (
	awsID    = newByteSet("A-Z2-7")
	awsChars = newByteSet("0-9A-Za-z+/")
)

// findAWSPair: an access key id alone is no secret, but with 40 characters of
// base64 near it, it is a pair.
func findAWSPair(b []byte, at, end int) (from, to int, ok bool) {
	id := leading(b[end:], awsID)
	if !wordStart(b, at) || len(id) != 16 || !looksRandom(id) || (end+16 < len(b) && alnumLine[b[end+16]]) {
		return 0, 0, false
	}
	for i := 0; i < len(b); i++ {
		if word := leading(b[i:], awsChars); len(word) > 0 {
			if awsSecret(word) {
				return at, end + len(id), true
			}
			i += len(word)
		}
	}
	return 0, 0, false
}

// findAWSSecret: a name, at most ten characters of quotes and signs, a secret.
func findAWSSecret(b []byte, at, end int) (from, to int, ok bool) {
	rest := bytes.TrimLeft(b[end:min(len(b), end+10)], " \t\"'=:>\\")
	start := end + min(len(b)-end, 10) - len(rest)
	word := leading(b[start:], awsChars)
	return start, start + len(word), start > end && awsSecret(word)
}

// awsSecret excludes what else has 40 characters: paths and hexadecimal sums.
func awsSecret(word []byte) bool {
	if len(word) != 40 || bytes.Count(word, []byte("/")) > 4 {
		return false
	}
	upper, lower, digit := false, false, false
	for _, c := range word {
		upper = upper || 'A' <= c && c <= 'Z'
		lower = lower || 'a' <= c && c <= 'z'
		digit = digit || '0' <= c && c <= '9'
	}
	return upper && lower && digit && len(leading(word, hexDigits.or(upperHex))) < 40 && looksRandom(word)
}

var upperHex = newByteSet("A-F")

// findCredential: a field of JSON, YAML, TOML or INI with a value that is
// neither short, nor a reference, nor a placeholder.
func findCredential(b []byte, at, end int) (from, to int, ok bool) {
	rest := bytes.TrimLeft(b[end:], `"'`)
	rest = bytes.TrimLeft(rest, " \t")
	if len(rest) == 0 || (rest[0] != ':' && rest[0] != '=') {
		return 0, 0, false
	}
	value := bytes.TrimLeft(rest[1:], " \t\"'")
	from = len(b) - len(value)
	if i := bytes.IndexAny(value, " \t\r\n\"',"); i >= 0 {
		value = value[:i]
	}
	if len(value) < 8 || strings.IndexByte("$%{<[", value[0]) >= 0 || bytes.Count(value, value[:1]) == len(value) {
		return 0, 0, false
	}
	text := strings.ToLower(string(value))
	for _, p := range placeholders {
		if strings.Contains(text, p) {
			return 0, 0, false
		}
	}
	for _, p := range placeholderStarts {
		if strings.HasPrefix(text, p) {
			return 0, 0, false
		}
	}
	return from, from + len(value), true
}
