package secret

import (
	"bytes"
	"strings"
)

// A fieldEdit replaces content[from:to], the value of a field.
type fieldEdit struct {
	from, to int
	with     string
	name     string
}

// Lines of "key = value". Comments count like the rest: a token that was
// commented out is still one.
//
// iniFields are npm's.
func iniFields(content []byte, secret func(key, value string) bool) []fieldEdit {
	return lineFields(content, secret, lineFormat{seps: "="})
}

// pythonFields are those of Python's configparser: a value goes on in indented
// lines.
func pythonFields(content []byte, secret func(key, value string) bool) []fieldEdit {
	return lineFields(content, secret, lineFormat{seps: "=:", indented: true})
}

// propertyFields are Java's: a value goes on after a backslash.
func propertyFields(content []byte, secret func(key, value string) bool) []fieldEdit {
	return lineFields(content, secret, lineFormat{seps: "=: \t", backslash: true})
}

// gitFields are git's, which may follow a section in the same line.
func gitFields(content []byte, secret func(key, value string) bool) []fieldEdit {
	return lineFields(content, secret, lineFormat{seps: "=", backslash: true})
}

// Unsigned is the name of the field that lets git sign.
const Unsigned = "gpgsign, since the key stays outside"

// repositoryFields are gitFields, and that commits are signed: the key stays outside, and
// git makes no commit that it can't sign.
func repositoryFields(content []byte, secret func(key, value string) bool) []fieldEdit {
	edits := gitFields(content, func(key, value string) bool { return secret(key, value) || key == "gpgsign" && value != "false" })
	for i := range edits {
		if edits[i].name == "gpgsign" {
			edits[i].with, edits[i].name = "false", Unsigned
		}
	}
	return edits
}

// wordFields have a space or a sign between key and value.
func wordFields(content []byte, secret func(key, value string) bool) []fieldEdit {
	return lineFields(content, secret, lineFormat{seps: "=: \t"})
}

type lineFormat struct {
	seps      string // what may end a key
	indented  bool
	backslash bool
}

func lineFields(content []byte, secret func(key, value string) bool, f lineFormat) (edits []fieldEdit) {
	for at := 0; at < len(content); {
		end := lineEnd(content, at)
		next := min(end+1, len(content))
		line := content[at:end]
		start := len(line) - len(bytes.TrimLeft(line, " \t#;!\ufeff"))
		start += sectionLength(line[start:])
		start += len(line[start:]) - len(bytes.TrimLeft(line[start:], " \t"))
		keyEnd := keyLength(line[start:], f.seps)
		key := fieldKey(string(line[start : start+keyEnd]))
		from := at + start + keyEnd
		// The sign, and spaces around it.
		from += len(content[from:end]) - len(bytes.TrimLeft(content[from:end], " \t"))
		if from < end && (content[from] == '=' || content[from] == ':') {
			from++
		}
		from += len(content[from:end]) - len(bytes.TrimLeft(content[from:end], " \t"))
		to := end
		for more := f.goesOn(content, at, to); more > to; more = f.goesOn(content, at, to) {
			to = more
		}
		if f.backslash {
			next = min(to+1, len(content))
		}
		to = from + len(bytes.TrimRight(content[from:to], " \t\r\n"))
		if value := string(content[from:to]); value != "" && key != "" && secret(key, value) && !isReference(value) {
			edits = append(edits, fieldEdit{from, to, "", key})
			next = min(max(next, to), len(content))
		}
		at = next
	}
	return edits
}

// goesOn returns the end of the next line if a value that begins in the line at
// at, and has come to the end of a line at to, goes on there; else to.
func (f *lineFormat) goesOn(content []byte, at, to int) int {
	if to >= len(content) {
		return to
	}
	end := lineEnd(content, to+1)
	if f.backslash && bytes.HasSuffix(bytes.TrimSuffix(content[:to], []byte("\r")), []byte(`\`)) {
		return end
	}
	if f.indented && to+1 < end && indentation(content[to+1:end]) > indentation(content[at:to]) {
		return end
	}
	return to
}

func indentation(line []byte) int { return len(line) - len(bytes.TrimLeft(line, " \t")) }

func lineEnd(content []byte, at int) int {
	if i := bytes.IndexByte(content[at:], '\n'); i >= 0 {
		return at + i
	}
	return len(content)
}

// sectionLength returns the length of the "[section]" that line begins with.
func sectionLength(line []byte) int {
	if len(line) == 0 || line[0] != '[' {
		return 0
	}
	quoted := false
	for i := 0; i < len(line); i++ {
		switch {
		case line[i] == '"':
			quoted = !quoted
		case line[i] == '\\' && quoted:
			i++
		case line[i] == ']' && !quoted:
			return i + 1
		}
	}
	return 0
}

// keyLength returns how long the key is that line begins with; what is quoted
// has no separator in it.
func keyLength(line []byte, seps string) int {
	quote := byte(0)
	for i, c := range line {
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case i == 0 && (c == '"' || c == '\''):
			quote = c
		case strings.IndexByte(seps, c) >= 0:
			return i
		}
	}
	return len(line)
}

// fieldKey gives the name that a key is judged by and shown as: without quotes,
// npm's registry and the brackets of a list, in lower case.
func fieldKey(key string) string {
	key = strings.Trim(strings.TrimSpace(key), `"'`)
	key = strings.TrimSuffix(key, "[]")
	return strings.ToLower(key[strings.LastIndexByte(key, ':')+1:])
}

// textFields are those of TOML and YAML, wherever they stand in a line.
func textFields(content []byte, secret func(key, value string) bool) (edits []fieldEdit) {
	for at := 0; at < len(content); {
		word := leading(content[at:], fieldChars)
		if len(word) == 0 {
			at++
			continue
		}
		key := strings.ToLower(string(word[bytes.LastIndexByte(word, '.')+1:]))
		start := at
		at += len(word)
		if !secret(key, "") {
			continue
		}
		from, to, with, ok := textValue(content, at)
		if !ok {
			continue
		}
		value := strings.Trim(string(content[from:to]), `"' `+"\r\n\t")
		if value != "" && secret(key, value) && !isReference(value) {
			edits = append(edits, fieldEdit{from, to, with, key})
			at = max(to, start+1)
		}
	}
	return edits
}

var fieldChars = alnumLine.or(newByteSet(".--"))

// textValue finds the value that belongs to a key which ends at at.
func textValue(content []byte, at int) (from, to int, with string, ok bool) {
	rest := bytes.TrimLeft(content[at:], `"'`)
	rest = bytes.TrimLeft(rest, " \t")
	if len(rest) == 0 || (rest[0] != '=' && rest[0] != ':') {
		return 0, 0, "", false
	}
	yaml := rest[0] == ':'
	rest = bytes.TrimLeft(rest[1:], " \t")
	from = len(content) - len(rest)
	for _, q := range []string{`"""`, `'''`, `"`, `'`} {
		if body, quoted := bytes.CutPrefix(rest, []byte(q)); quoted {
			n := closing(body, q)
			return from, from + len(q) + n, q + q, true
		}
	}
	if len(rest) > 0 && (rest[0] == '{' || rest[0] == '[') {
		return 0, 0, "", false // its fields are judged one by one
	}
	line := lineEnd(content, from)
	value := bytes.TrimRight(content[from:line], " \t\r")
	if yaml && (len(value) == 0 || strings.IndexByte("|>&!", value[0]) >= 0) {
		// The value is in the lines below that are indented more.
		if to = blockEnd(content, at, line); to == line {
			return 0, 0, "", false
		}
		return from, to, `""`, true
	}
	stops := []string{" #", "\t#"}
	if begin := bytes.LastIndexByte(content[:at], '\n') + 1; bytes.IndexByte(content[begin:at], '{') >= 0 {
		stops = append(stops, ",", "}")
	}
	for _, stop := range stops {
		value, _, _ = bytes.Cut(value, []byte(stop))
	}
	value = bytes.TrimRight(value, " \t")
	return from, from + len(value), `""`, true
}

// closing returns the length of the string that body begins with, its closing
// quote included.
func closing(body []byte, quote string) int {
	for i := 0; i < len(body); i++ {
		if body[i] == '\\' && quote[0] == '"' {
			i++
		} else if bytes.HasPrefix(body[i:], []byte(quote)) {
			return i + len(quote)
		} else if body[i] == '\n' && len(quote) == 1 {
			return i
		}
	}
	return len(body)
}

// blockEnd returns the end of the last line after line that is indented more
// than the one of the key.
func blockEnd(content []byte, key, line int) int {
	begin := bytes.LastIndexByte(content[:key], '\n') + 1
	indent := func(b []byte) int { return len(b) - len(bytes.TrimLeft(b, " -")) }
	own := indent(content[begin:line])
	end := line
	for at := line + 1; at < len(content); {
		e := lineEnd(content, at)
		l := bytes.TrimRight(content[at:e], " \t\r")
		if len(l) > 0 {
			if len(l)-len(bytes.TrimLeft(l, " ")) <= own {
				break
			}
			end = at + len(l)
		}
		at = e + 1
	}
	return end
}
