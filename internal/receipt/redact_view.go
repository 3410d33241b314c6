package receipt

import (
	"bytes"
	"sort"
	"unicode/utf16"
	"unicode/utf8"
)

// A view is a text with something undone that may hide a secret in it:
// terminal escapes removed, other escapes resolved, lines joined. It knows
// where each of its bytes comes from.
type view struct {
	text   []byte
	parent *view // nil for the text itself
	runs   []run
	joined bool // lines are joined: only long needles mean something
}

// A run is a part of a view. When it is as long as what it comes from, its
// bytes correspond one by one; else all of it comes from all of that.
type run struct{ at, origin, size, originSize int }

// views returns the ways to read b, b itself first. There are at most nine,
// each not longer than b.
func views(b []byte) []*view {
	all := []*view{{text: b}}
	add := func(v *view, f func([]byte) (int, []byte, int)) *view {
		w := v.rewrite(f)
		if w == nil {
			return v
		}
		all = append(all, w)
		return w
	}
	plain := add(all[0], terminalEscape)
	unescaped := plain
	for range 2 { // JSON in JSON is not rare
		unescaped = add(add(unescaped, backslashEscape), terminalEscape)
	}
	add(plain, percentEscape)
	for _, v := range []*view{plain, unescaped} {
		if w := add(v, lineEnd); w != v {
			w.joined = true
		}
		if plain == unescaped {
			break
		}
	}
	return all
}

// rewrite returns a view in which each escape is replaced, or nil when there
// is none. next finds the first escape in a text: where it is, what it stands
// for and its length, which is 0 when there is none.
func (v *view) rewrite(next func([]byte) (at int, means []byte, size int)) *view {
	at, means, size := next(v.text)
	if size == 0 {
		return nil
	}
	w := &view{parent: v, text: make([]byte, 0, len(v.text)), joined: v.joined}
	from := 0
	for size > 0 {
		w.add(v.text[from:from+at], from, at)
		w.add(means, from+at, size)
		from += at + size
		at, means, size = next(v.text[from:])
	}
	w.add(v.text[from:], from, len(v.text)-from)
	return w
}

func (v *view) add(text []byte, origin, originSize int) {
	if len(text) == 0 {
		return
	}
	v.runs = append(v.runs, run{len(v.text), origin, len(text), originSize})
	v.text = append(v.text, text...)
}

// origin returns the part of the original text that text[from:to] is.
func (v *view) origin(from, to int) span {
	for ; v.parent != nil; v = v.parent {
		first, last := v.run(from), v.run(to-1)
		if first.size == first.originSize {
			from = first.origin + from - first.at
		} else {
			from = first.origin
		}
		if last.size == last.originSize {
			to = last.origin + to - last.at
		} else {
			to = last.origin + last.originSize
		}
	}
	return span{from, to}
}

func (v *view) run(at int) run {
	i := sort.Search(len(v.runs), func(i int) bool { return v.runs[i].at > at })
	return v.runs[i-1]
}

// terminalEscape finds an escape sequence (ECMA-48), which means nothing.
func terminalEscape(b []byte) (at int, means []byte, size int) {
	for from := 0; ; {
		i := bytes.IndexByte(b[from:], 0x1b)
		if i < 0 {
			return 0, nil, 0
		}
		if size := escapeSize(b[from+i:]); size > 0 {
			return from + i, nil, size
		}
		from += i + 1
	}
}

// escapeSize returns the length of the escape sequence that b begins with, 0
// when it is not one. Strings in sequences (titles, links) are left: what is
// in them may be read.
func escapeSize(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	i := 1
	in := func(lo, hi byte) bool { return i < len(b) && b[i] >= lo && b[i] <= hi }
	if b[1] == '[' {
		for i = 2; in(0x30, 0x3f); i++ {
		}
	}
	for ; in(0x20, 0x2f); i++ {
	}
	if !in(0x30, 0x7e) {
		return 0
	}
	return i + 1
}

// backslashEscape finds an escape as in JSON, C, Python and shells.
func backslashEscape(b []byte) (at int, means []byte, size int) {
	for from := 0; ; {
		i := bytes.IndexByte(b[from:], '\\')
		if i < 0 || from+i+1 >= len(b) {
			return 0, nil, 0
		}
		at = from + i
		if means, size := backslash(b[at:]); size > 0 {
			return at, means, size
		}
		from = at + 1
	}
}

var simpleEscapes = map[byte]string{
	'n': "\n", 'r': "\r", 't': "\t", 'b': "\b", 'f': "\f", 'e': "\x1b",
	'"': `"`, '\'': "'", '\\': `\`, '/': "/", '$': "$", ' ': " ", '&': "&", '\n': "",
}

func backslash(b []byte) (means []byte, size int) {
	switch {
	case b[1] == 'u':
		r, ok := hexNumber(b[2:], 4)
		if !ok {
			return nil, 0
		}
		if utf16.IsSurrogate(r) && len(b) > 7 && b[6] == '\\' && b[7] == 'u' {
			if low, ok := hexNumber(b[8:], 4); ok {
				if both := utf16.DecodeRune(r, low); both != utf8.RuneError {
					return utf8.AppendRune(nil, both), 12
				}
			}
		}
		return utf8.AppendRune(nil, r), 6
	case b[1] == 'x':
		if r, ok := hexNumber(b[2:], 2); ok {
			return []byte{byte(r)}, 4
		}
	case b[1] == '0' && bytes.HasPrefix(b[2:], []byte("33")):
		return []byte{0x1b}, 4
	default:
		if s, ok := simpleEscapes[b[1]]; ok {
			return []byte(s), 2
		}
	}
	return nil, 0
}

// percentEscape finds an escape as in URLs.
func percentEscape(b []byte) (at int, means []byte, size int) {
	for from := 0; ; {
		i := bytes.IndexByte(b[from:], '%')
		if i < 0 {
			return 0, nil, 0
		}
		at = from + i
		if r, ok := hexNumber(b[at+1:], 2); ok {
			return at, []byte{byte(r)}, 3
		}
		from = at + 1
	}
}

func hexNumber(b []byte, digits int) (n rune, ok bool) {
	if len(b) < digits {
		return 0, false
	}
	for _, c := range b[:digits] {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			n = n<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return n, true
}

// lineEnd finds the end of a line, with the spaces that indent the next.
func lineEnd(b []byte) (at int, means []byte, size int) {
	i := bytes.IndexAny(b, "\r\n")
	if i < 0 {
		return 0, nil, 0
	}
	end := i
	for end < len(b) && (b[end] == '\r' || b[end] == '\n' || b[end] == ' ' || b[end] == '\t') {
		end++
	}
	return i, nil, end - i
}
