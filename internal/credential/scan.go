package credential

import (
	"slices"
	"strings"
)

// A Scanner looks for values in streams. It finds them as they are, in base64
// (at any alignment, both alphabets, with and without padding, wrapped over
// lines), in hexadecimal and in UTF-16, and all of these also escaped as in
// JSON (twice) or URLs and with the colours of a terminal between their
// characters. What is compressed it sees only where the caller inflates it;
// what is encrypted or encoded in another way it does not see.
type Scanner struct {
	auto *automaton
}

// NewScanner makes a scanner for values, by the handle of each.
func NewScanner(values map[string]Secret) *Scanner {
	var list []needle
	names := make([]string, 0, len(values))
	for n := range values {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		if v := values[n].Reveal(); len(v) >= minValue {
			list = append(list, needles(n, v)...)
		}
	}
	return &Scanner{newAutomaton(list)}
}

// Found says that a value is in a stream.
type Found struct {
	Credential string // handle
	Encoding   string // "plain", "base64", "plain, escaped as in JSON", …
	At         int64  // where it ends in the stream, in bytes, to within a few kilobytes where escapes were undone
}

// A Stream is one text that is scanned: write it piece by piece, in whatever
// pieces. It needs the same memory for any length.
type Stream struct {
	s     *Scanner
	views []*view
	size  int64
	found map[key]int64
	order []key
}

// key is one way in which a value was found.
type key struct{ needle, view int }

// A view is the stream with some escapes undone.
type view struct {
	of     int // the view that this one looks at; itself for the first
	undo   undo
	says   string
	joined bool
	state  uint32
	before uint32 // state at the beginning of the piece
	text   []byte // the piece, as this view has it
	buf    []byte
}

// Stream begins with a new text.
func (s *Scanner) Stream() *Stream {
	return &Stream{s: s, found: map[key]int64{}, views: []*view{
		{},
		{of: 0, undo: &colours{}, says: "with terminal escapes"},
		{of: 1, undo: &backslashes{}, says: "escaped as in JSON"},
		{of: 2, undo: &backslashes{}, says: "escaped as in JSON, twice"},
		{of: 1, undo: &percents{}, says: "escaped as in URLs"},
		{of: 1, undo: &lines{}, says: "over lines", joined: true},
		{of: 2, undo: &lines{}, says: "over lines, escaped as in JSON", joined: true},
		{of: 2, undo: &colours{}, says: "with terminal escapes, escaped as in JSON"},
	}}
}

// pieceLen bounds what is looked at in one go, so that it stays in the
// processor's cache.
const pieceLen = 16 << 10

// Write looks at the next piece. It never fails.
func (t *Stream) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), pieceLen)
		t.piece(rest[:n])
		t.size += int64(n)
		rest = rest[n:]
	}
	return len(p), nil
}

func (t *Stream) piece(p []byte) {
	auto := t.s.auto
	for i, v := range t.views {
		v.before = v.state
		if i == 0 {
			v.text = p
		} else {
			up := t.views[v.of]
			if untouched(v.undo, up.text) {
				v.text = up.text
				if v.before == up.before { // the same text in the same state: the same end
					v.state = up.state
					continue
				}
			} else {
				v.buf = v.undo.feed(v.buf[:0], up.text)
				v.text = v.buf
			}
		}
		v.state = auto.run(v.state, v.text, func(n, end int) {
			if v.joined && len(auto.needles[n].text) < joinedLen {
				return
			}
			k := key{n, i}
			if _, ok := t.found[k]; !ok {
				t.found[k] = t.size + int64(min(end, len(p)))
				t.order = append(t.order, k)
			}
		})
	}
}

// Size is how many bytes were written.
func (t *Stream) Size() int64 { return t.size }

// Found returns what was found, by credential and encoding. What a plainer view
// of the same text shows is not told again for the others.
func (t *Stream) Found() (list []Found) {
	plainest := map[int]int{} // needle → view
	for _, k := range t.order {
		if v, ok := plainest[k.needle]; !ok || k.view < v {
			plainest[k.needle] = k.view
		}
	}
	seen := map[[2]string]bool{}
	for _, k := range t.order {
		if plainest[k.needle] != k.view {
			continue
		}
		n := t.s.auto.needles[k.needle]
		f := Found{n.of, n.form, t.found[k]}
		if says := t.views[k.view].says; says != "" {
			f.Encoding += ", " + says
		}
		if id := [2]string{f.Credential, f.Encoding}; !seen[id] {
			seen[id] = true
			list = append(list, f)
		}
	}
	slices.SortStableFunc(list, func(a, b Found) int {
		if c := strings.Compare(a.Credential, b.Credential); c != 0 {
			return c
		}
		return strings.Compare(a.Encoding, b.Encoding)
	})
	return list
}
