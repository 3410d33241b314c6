package secret

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
)

// maxShapes is how many rows the table of shapes may have.
const maxShapes = 96

// findReach is how far around an anchor a token is looked for by a shape with a find.
const findReach = 256

// Spans calls found for each part of a text that looks like a token, or like what is left of
// one. The parts may overlap. It takes time in proportion to the text.
func Spans(text []byte, found func(from, to int)) {
	walk(text, texts, func(from, to int) bool { found(from, to); return true })
}

// InText reports whether a text has a part that Spans would find.
func InText(text string) bool { return holds(text, texts) }

// InRequest reports whether a part of a request holds what a service may take for a token.
func InRequest(text string) bool { return holds(text, requests) }

func holds(text string, u use) (yes bool) {
	walk([]byte(text), u, func(int, int) bool { yes = true; return false })
	return yes
}

// walk calls found for the tokens in b until it returns false. Each shape passes over what it has
// looked at, so that a text made of nothing but anchors takes no longer than another.
func walk(b []byte, u use, found func(from, to int) (more bool)) {
	f := textFilter()
	if u == requests {
		f = requestFilter()
	}
	var next [maxShapes]int // by row: where it has not looked yet
	for at := 0; at < len(b); at++ {
		var anchors []scanAnchor
		at, anchors = f.next(b, at, len(b))
		for _, a := range anchors {
			start := at - a.rare
			if start < next[a.row] || len(b)-start < len(a.text) || string(b[start:start+len(a.text)]) != a.text {
				continue
			}
			var from, to int
			from, to, next[a.row] = a.shape.part(b, start, len(a.text), u)
			if to > from && !found(from, to) {
				return
			}
		}
	}
}

// part returns where the token, or a part of one, is to which the anchor at b[start:] of length n
// belongs. It is nowhere if to is 0. The next anchor that counts begins at next or later.
func (s *shape) part(b []byte, start, n int, u use) (from, to, next int) {
	end := start + n
	switch {
	case s.span != nil:
		return s.span(b, start, end)
	case s.find != nil && s.some == 0:
		lo, hi := max(0, start-findReach), min(len(b), end+findReach)
		from, to, ok := s.find(b[lo:hi], start-lo, end-lo)
		if !ok {
			return 0, 0, end
		}
		return lo + from, lo + to, end
	case !s.glued && !s.inside && !begins(b, start, u):
		return 0, 0, end
	}
	set, least := s.body, s.min
	if s.wide != nil {
		set = s.wide
	}
	if s.some > 0 {
		least = s.some
	}
	body := leading(b[end:], set)
	next = end + len(body)
	if len(body) < least || u == texts && s.hint != nil && !s.hint(body) {
		return 0, 0, next
	}
	return start, next, next
}

// begins reports whether a token may begin at b[at]. In a request what stands before it may be
// a line that separates.
func begins(b []byte, at int, u use) bool {
	if u == requests {
		return at == 0 || !alnum[b[at-1]]
	}
	return wordStart(b, at)
}

func hasDigit(b []byte) bool { return bytes.ContainsAny(b, "0123456789") }

// spanBearer finds what follows the word, if it is no word of a sentence.
func spanBearer(b []byte, _, end int) (from, to, next int) {
	value := leading(b[end:], bearer)
	next = end + len(value)
	if len(value) < 16 || !hasDigit(value) {
		return 0, 0, next
	}
	return end, next, next
}

// spanBasic finds the base64 of "user:password".
func spanBasic(b []byte, _, end int) (from, to, next int) {
	value := leading(b[end:], base64Std)
	next = end + len(value)
	if len(value) < 8 {
		return 0, 0, next
	}
	plain, err := base64.RawStdEncoding.DecodeString(string(bytes.TrimRight(value, "=")))
	if err != nil || bytes.IndexByte(plain, ':') <= 0 {
		return 0, 0, next
	}
	return end, next, next
}

// spanEncodedPEM tells private keys from certificates. The anchor has 14 characters, which leave
// 4 bits of the next byte open.
func spanEncodedPEM(b []byte, at, end int) (from, to, next int) {
	body := leading(b[end:], base64Std)
	next = end + len(body)
	start := append([]byte("Ti"), body[:min(len(body), 62)]...) // 64 characters from "Ti" on are whole bytes
	plain, _ := base64.StdEncoding.DecodeString(string(start))
	if len(body) < 40 || !bytes.Contains(plain, []byte("PRIVATE KEY")) {
		return 0, 0, next
	}
	return at, next, next
}

// spanJWT finds three parts of base64 with dots between, of which the first
// two begin like a JSON object.
func spanJWT(b []byte, at, _ int) (from, to, next int) {
	first := at + len(leading(b[at:], base64URL))
	if first-at < 12 || !bytes.HasPrefix(b[first:], []byte(".eyJ")) {
		return 0, 0, first
	}
	second := first + 1 + len(leading(b[first+1:], base64URL))
	if second-first < 8 || second == len(b) || b[second] != '.' {
		return 0, 0, first
	}
	return at, second + 1 + len(leading(b[second+1:], base64URL)), second
}

// spanAnyJWT finds what begins like a JSON object in base64, and at least eight characters after
// a dot.
func spanAnyJWT(b []byte, at, _ int) (from, to, next int) {
	if !begins(b, at, requests) {
		return 0, 0, at + 1
	}
	first := at + len(leading(b[at:], base64URL))
	if first == len(b) || b[first] != '.' {
		return 0, 0, first
	}
	rest := leading(b[first+1:], base64Dot)
	if len(rest) < 8 {
		return 0, 0, first
	}
	return at, first + 1 + len(rest), first + 1 + len(rest)
}

// spanPEM finds a private key, up to the end of the text when its own end is
// missing.
func spanPEM(b []byte, at, end int) (from, to, next int) {
	near := b[max(0, at-80):at]
	begin, stop := bytes.LastIndex(near, []byte("-----BEGIN ")), "-----END "
	if begin < 0 {
		begin, stop = bytes.LastIndex(near, []byte("---- BEGIN ")), "---- END "
	}
	if begin < 0 || len(trailing(near, newByteSet("A-Z0-9 "))) < len(near)-begin-len("-----BEGIN ") {
		return 0, 0, end
	}
	from = at - len(near) + begin
	i := bytes.Index(b[end:], []byte(stop))
	if i < 0 {
		return from, len(b), len(b)
	}
	to = end + i + len(stop)
	if i := bytes.Index(b[to:min(len(b), to+80)], []byte("----")); i >= 0 {
		to += i
		to += len(leading(b[to:], newByteSet("--")))
	}
	return from, to, to
}

// spanPuTTY finds the lines of a private key of PuTTY, which are counted.
func spanPuTTY(b []byte, at, end int) (from, to, next int) {
	count := leading(b[end:], newByteSet("0-9"))
	lines, err := strconv.Atoi(string(count[:min(len(count), 4)]))
	if err != nil || !wordStart(b, at) {
		return 0, 0, end
	}
	to = end + len(count)
	for range lines {
		line := to + len(leading(b[to:], newByteSet(" \r\n")))
		n := len(leading(b[line:], base64Std))
		if n == 0 {
			break
		}
		to = line + n
	}
	return at, to, to
}

// notInUserinfo ends what may stand between "://" and "@".
const notInUserinfo = "/?#[]<>\"'`|\\{} \t\r\n\x00"

// spanPassword finds the password in a URL.
func spanPassword(b []byte, _, end int) (from, to, next int) {
	colon := -1
	for i := end; i < len(b) && i < end+1024 && strings.IndexByte(notInUserinfo, b[i]) < 0; i++ {
		switch {
		case b[i] == ':' && colon < 0:
			colon = i
		case b[i] == '@' && colon >= 0 && i > colon+1:
			return colon + 1, i, i
		}
	}
	return 0, 0, end
}

// Prefix returns the longest beginning of a value by which programs tell its kind, "" for none.
func Prefix(value string) (longest string) {
	for i := range shapes() {
		s := &shapes()[i]
		if !s.leads() {
			continue
		}
		for _, p := range slices.Concat(s.anchors, s.heads) {
			if len(p) > len(longest) && strings.HasPrefix(value, p) {
				longest = p
			}
		}
	}
	return longest
}

// leads reports whether tokens of a shape begin with its anchor.
func (s *shape) leads() bool {
	return !s.inside && s.span == nil && (s.find == nil || s.some > 0)
}

// Prefixes returns what the tokens begin with that a service issues, which is named as credentials
// for it are. There is none for a service that is not known.
func Prefixes(service string) (list []string) {
	for i := range shapes() {
		if s := &shapes()[i]; service != "" && s.service == service {
			list = append(list, s.anchors...)
		}
	}
	return slices.DeleteFunc(slices.Clone(list), func(p string) bool {
		return slices.ContainsFunc(list, func(q string) bool { return q != p && strings.HasPrefix(p, q) })
	})
}
