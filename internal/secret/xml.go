package secret

import (
	"bytes"
	"strings"
)

// xmlFields are elements, <password>x</password>, and pairs of attributes,
// <add key="password" value="x"/>.
func xmlFields(content []byte, secret func(key, value string) bool) (edits []fieldEdit) {
	lower := asciiLower(content)
	keys := false // within <apikeys>, all values are keys
	for at := bytes.IndexByte(content, '<'); at >= 0 && at < len(content); {
		name := string(leading(lower[at+1:], base64Dot))
		switch {
		case name == "apikeys":
			keys = true
		case name == "" && bytes.HasPrefix(lower[at:], []byte("</apikeys")):
			keys = false
		case name == "add":
			tag := content[at:tagEnd(content, at, true)]
			_, _, key := xmlAttribute(tag, "key")
			from, to, value := xmlAttribute(tag, "value")
			if key = strings.ToLower(key); keys {
				key = "apikey"
			}
			if value != "" && secret(key, value) && !isReference(value) {
				edits = append(edits, fieldEdit{at + from, at + to, "", key})
			}
		case secret(name, ""):
			from := tagEnd(content, at, false)
			if bytes.HasSuffix(content[:from], []byte("/>")) {
				break
			}
			to := len(content)
			if i := bytes.Index(lower[from:], []byte("</"+name)); i >= 0 {
				to = from + i
			}
			if value := strings.TrimSpace(string(content[from:to])); value != "" && !isReference(value) {
				edits = append(edits, fieldEdit{from, to, "", name})
				at = max(at, to-1)
			}
		}
		next := bytes.IndexByte(content[at+1:], '<')
		if next < 0 {
			return edits
		}
		at += 1 + next
	}
	return edits
}

// tagEnd returns the end of the tag at at. A value may have a ">" in it. What
// does not end soon is no tag.
func tagEnd(content []byte, at int, values bool) int {
	quote := byte(0)
	for i := at; i < len(content) && i < at+4096; i++ {
		switch c := content[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case values && (c == '"' || c == '\''):
			quote = c
		case c == '>':
			return i + 1
		}
	}
	return at + 1
}

// xmlAttribute returns where the value of an attribute is in a tag.
func xmlAttribute(tag []byte, name string) (from, to int, value string) {
	lower := asciiLower(tag)
	for at := 0; ; {
		i := bytes.Index(lower[at:], []byte(name))
		if i < 0 {
			return 0, 0, ""
		}
		at += i + len(name)
		rest := bytes.TrimLeft(tag[at:], " \t\r\n")
		if len(rest) < 2 || rest[0] != '=' || strings.IndexByte(" \t\r\n", tag[at-len(name)-1]) < 0 {
			continue
		}
		rest = bytes.TrimLeft(rest[1:], " \t\r\n")
		if len(rest) == 0 || (rest[0] != '"' && rest[0] != '\'') {
			continue
		}
		if end := bytes.IndexByte(rest[1:], rest[0]); end >= 0 {
			from = len(tag) - len(rest) + 1
			return from, from + end, string(rest[1 : 1+end])
		}
	}
}

// asciiLower keeps lengths, unlike bytes.ToLower.
func asciiLower(b []byte) []byte {
	l := bytes.Clone(b)
	for i, c := range l {
		if 'A' <= c && c <= 'Z' {
			l[i] = c | 0x20
		}
	}
	return l
}
