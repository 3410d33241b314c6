package policy

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/pando-dev/pando/internal/cell"
)

// The reader of policy files. It walks the syntax tree itself, so that every
// error has its place, and what is not understood is an error and not a guess:
// no anchors, no tags, no merging, no key twice, nothing empty.

// A shape is what may stand at a place of the file: it reads it, and says in
// JSON Schema what it reads.
type shape interface {
	read(r *reader, n ast.Node, path string)
	schema() map[string]any
}

// A word is one key of a mapping.
type word struct {
	name  string
	about string // one sentence
	shape shape
	must  bool
	line  *int // where its line goes; nil for nowhere
}

// reader keeps the first error.
type reader struct {
	name  string
	lines []string
	err   error
}

// maxFile is the size of a policy file at most.
const maxFile = 1 << 20

// maxDepth is how deep things may lie inside each other. The deepest that
// means something is 8.
const maxDepth = 32

// fail notes an error at a node.
func (r *reader) fail(n ast.Node, format string, args ...any) {
	line, column := place(n)
	r.failAt(line, column, format, args...)
}

// failAt notes an error, with the source line and a mark below the place.
func (r *reader) failAt(line, column int, format string, args ...any) {
	if r.err != nil {
		return
	}
	text := fmt.Sprintf("[%d:%d] %s", line, column, fmt.Sprintf(format, args...))
	if line >= 1 && line <= len(r.lines) {
		source := strings.TrimRight(r.lines[line-1], "\r")
		if len(source) > 200 {
			source = source[:200] + "…"
		}
		source = strings.Map(func(c rune) rune {
			if c < ' ' || c == 0x7f {
				return ' '
			}
			return c
		}, source)
		number := strconv.Itoa(line)
		text += "\n  " + number + " | " + source + "\n  " + strings.Repeat(" ", len(number)+3+min(max(column-1, 0), 200)) + "^"
	}
	r.err = cell.Errorf(cell.Invalid, "policy.ParseFile", "`pando help policy` shows the words there are", "cannot read policy %s: %s", r.name, text)
}

// place is the line and column of a node. Those of a mapping are its first
// key's.
func place(n ast.Node) (line, column int) {
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 && !m.IsFlowStyle {
		n = m.Values[0].Key
	}
	if v, ok := n.(*ast.MappingValueNode); ok {
		n = v.Key
	}
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return 1, 1
	}
	p := n.GetToken().Position
	return p.Line, p.Column
}

// document parses text to the one document in it.
func (r *reader) document(text []byte) (body ast.Node) {
	// The library was made for files of its user. What it can't take must not
	// end this process.
	defer func() {
		if p := recover(); p != nil {
			r.failAt(1, 1, "it can't be read as YAML")
			body = nil
		}
	}()
	if len(text) > maxFile {
		r.failAt(1, 1, "it has more than %s", FormatSize(maxFile))
		return nil
	}
	if line := tooDeep(text); line > 0 {
		r.failAt(line, 1, "things lie deeper inside each other than %d", maxDepth)
		return nil
	}
	file, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		if r.err == nil {
			r.err = cell.Errorf(cell.Invalid, "policy.ParseFile", "`pando help policy` shows the words there are", "cannot read policy %s: %s",
				r.name, strings.TrimSpace(yaml.FormatError(err, false, true)))
		}
		return nil
	}
	for _, d := range file.Docs {
		if d.Body == nil || d.Body.Type() == ast.CommentType {
			continue
		}
		if body != nil {
			r.fail(d.Body, "there is more than one document in it")
			return nil
		}
		body = d.Body
	}
	switch {
	case body == nil:
		r.failAt(1, 1, "the file is empty")
	case len(file.Docs) > 1:
		r.failAt(1, 1, "there is more than one document in it")
		return nil
	}
	return body
}

// tooDeep returns a line in which things lie too deep, 0 for none. It counts
// more than there is, and before the parser, which calls itself for each depth.
func tooDeep(text []byte) int {
	line, open, indent, begin := 1, 0, 0, true
	for _, c := range text {
		switch {
		case c == '\n':
			line, indent, begin = line+1, 0, true
			continue
		case c == '[' || c == '{':
			open++
		case (c == ']' || c == '}') && open > 0:
			open--
		}
		if begin && (c == ' ' || c == '-' || c == '?' || c == '\t') {
			indent++
		} else {
			begin = false
		}
		if open > maxDepth || indent > 8*maxDepth {
			return line
		}
	}
	return 0
}

// kindOf names what a node is, for people.
func kindOf(n ast.Node) string {
	switch n.Type() {
	case ast.MappingType, ast.MappingValueType:
		return "a mapping"
	case ast.SequenceType:
		return "a sequence"
	case ast.StringType, ast.LiteralType:
		return "a text"
	case ast.IntegerType, ast.FloatType, ast.InfinityType, ast.NanType:
		return "a number"
	case ast.BoolType:
		return "true or false"
	case ast.AnchorType, ast.AliasType, ast.MergeKeyType:
		return "an anchor or alias, which a policy has not"
	case ast.TagType:
		return "a tag, which a policy has not"
	}
	return "something else"
}

// none reports, as an error, that a value is missing.
func (r *reader) none(n ast.Node) bool {
	if n != nil && n.Type() != ast.NullType {
		return r.err != nil
	}
	r.fail(n, "a value is missing: leave the key out, or say what it is")
	return true
}

// pairs returns what is in a mapping. Of nothing, of what is no mapping and of an empty one, which is
// an error, it is nothing.
func (r *reader) pairs(n ast.Node, path string) (pairs []*ast.MappingValueNode) {
	if r.none(n) {
		return nil
	}
	switch m := n.(type) {
	case *ast.MappingNode:
		pairs = m.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{m}
	default:
		r.fail(n, "%s must be a mapping, not %s", orFile(path), kindOf(n))
		return nil
	}
	if len(pairs) == 0 {
		r.fail(n, "%s is empty: leave it out", orFile(path))
	}
	return pairs
}

// section is a mapping with known words.
type section struct {
	words []word
}

func (s section) read(r *reader, n ast.Node, path string) {
	pairs := r.pairs(n, path)
	if len(pairs) == 0 {
		return
	}
	var names []string
	for _, w := range s.words {
		names = append(names, w.name)
	}
	seen := map[string]bool{}
	for _, p := range pairs {
		key := keyText(p.Key)
		var w *word
		for i := range s.words {
			if s.words[i].name == key {
				w = &s.words[i]
			}
		}
		switch {
		case p.Key.Type() != ast.StringType:
			r.fail(p.Key, "%s has a key that is no word", orFile(path))
		case w == nil:
			hint := didYouMean(key, names)
			if hint == "" {
				hint = "; the words are " + strings.Join(names, ", ")
			}
			r.fail(p.Key, "%q is no word of %s%s", Printable(key), orFile(path), hint)
		case seen[key]:
			r.fail(p.Key, "%s is there twice", join(path, key))
		}
		if r.err != nil {
			return
		}
		seen[key] = true
		if w.line != nil {
			*w.line, _ = place(p.Key)
		}
		w.shape.read(r, p.Value, join(path, key))
	}
	for _, w := range s.words {
		if w.must && !seen[w.name] {
			what := fmt.Sprintf("%s needs %s", orFile(path), w.name)
			if fixed, ok := w.shape.(whole); ok {
				what = fmt.Sprintf("%s must be %d, and is not there", join(path, w.name), fixed.is)
			}
			r.fail(n, "%s", what)
		}
	}
}

func (s section) schema() map[string]any {
	properties, required := map[string]any{}, []string{}
	for _, w := range s.words {
		about := w.shape.schema()
		about["description"] = w.about
		properties[w.name] = about
		if w.must {
			required = append(required, w.name)
		}
	}
	out := map[string]any{"type": "object", "additionalProperties": false, "properties": properties, "minProperties": 1}
	if len(required) > 0 {
		out["required"] = required
	}
	return out
}

func keyText(k ast.MapKeyNode) string {
	if s, ok := k.(*ast.StringNode); ok {
		return s.Value
	}
	return k.String()
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func orFile(path string) string {
	if path == "" {
		return "a policy"
	}
	return path
}

// list is a sequence that is not empty.
type list struct {
	item func(i int) shape // i: how many were there before
	one  bool              // one item may stand without the list
}

func (l list) read(r *reader, n ast.Node, path string) {
	if r.none(n) {
		return
	}
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		if l.one {
			l.item(0).read(r, n, path)
			return
		}
		r.fail(n, "%s must be a sequence, not %s", path, kindOf(n))
		return
	}
	if len(s.Values) == 0 {
		r.fail(n, "%s is empty: leave it out", path)
		return
	}
	seen := map[string]bool{}
	for i, v := range s.Values {
		if t, ok := scalarText(v); ok {
			if seen[t] {
				r.fail(v, "%s is in %s twice", Quoted(t), path)
				return
			}
			seen[t] = true
		}
		l.item(i).read(r, v, path)
		if r.err != nil {
			return
		}
	}
}

func (l list) schema() map[string]any {
	item := l.item(0).schema()
	out := map[string]any{"type": "array", "items": item, "minItems": 1, "uniqueItems": true}
	if l.one {
		return map[string]any{"anyOf": []any{l.item(0).schema(), out}}
	}
	return out
}

// scalarText is the text of a scalar as it is written.
func scalarText(n ast.Node) (string, bool) {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value, true
	case *ast.LiteralNode:
		return v.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// text is a scalar. A number is taken as it is written.
type text struct {
	set     func(s string) error
	at      func(line int) // is told the line
	empty   bool           // it may be empty
	numbers bool           // people write it as a number too
	pattern string         // for the schema
	words   []string       // the only values
}

func (t text) read(r *reader, n ast.Node, path string) {
	if r.none(n) {
		return
	}
	s, ok := scalarText(n)
	if !ok || n.Type() == ast.BoolType || !t.numbers && !t.empty && n.Type() != ast.StringType && n.Type() != ast.LiteralType {
		r.fail(n, "%s must be a text, not %s", path, kindOf(n))
		return
	}
	if s == "" && !t.empty {
		r.fail(n, "a value is missing: leave the key out, or say what it is")
		return
	}
	if t.at != nil {
		line, _ := place(n)
		t.at(line)
	}
	if err := t.set(s); err != nil {
		hint := ""
		if h := cell.HintOf(err); h != "" {
			hint = ": " + h
		}
		r.fail(n, "%s: %s%s", path, err, hint)
	}
}

func (t text) schema() map[string]any {
	out := map[string]any{"type": "string"}
	if t.numbers {
		out["type"] = []string{"string", "number"}
	}
	if !t.empty && !t.numbers {
		out["minLength"] = 1
	}
	if t.pattern != "" {
		out["pattern"] = t.pattern
	}
	if len(t.words) > 0 {
		out["enum"] = t.words
	}
	return out
}

// yes is true or false.
type yes struct{ dst *bool }

func (y yes) read(r *reader, n ast.Node, path string) {
	if r.none(n) {
		return
	}
	b, ok := n.(*ast.BoolNode)
	if !ok {
		r.fail(n, "%s must be true or false, not %s", path, kindOf(n))
		return
	}
	*y.dst = b.Value
}

func (y yes) schema() map[string]any { return map[string]any{"type": "boolean"} }

// whole is one fixed number.
type whole struct{ is int }

func (w whole) read(r *reader, n ast.Node, path string) {
	if r.none(n) {
		return
	}
	if _, ok := n.(*ast.IntegerNode); !ok || n.GetToken().Value != strconv.Itoa(w.is) {
		r.fail(n, "%s must be %d", path, w.is)
	}
}

func (w whole) schema() map[string]any { return map[string]any{"const": w.is} }

// dictionary is a mapping with words of the user's.
type dictionary struct {
	set func(name, value string) error
}

func (d dictionary) read(r *reader, n ast.Node, path string) {
	pairs := r.pairs(n, path)
	if len(pairs) == 0 {
		return
	}
	seen := map[string]bool{}
	for _, p := range pairs {
		key := keyText(p.Key)
		if seen[key] {
			r.fail(p.Key, "%s is there twice", join(path, Printable(key)))
			return
		}
		seen[key] = true
		text{empty: true, numbers: true, set: func(s string) error { return d.set(key, s) }}.read(r, p.Value, join(path, Printable(key)))
		if r.err != nil {
			return
		}
	}
}

func (d dictionary) schema() map[string]any {
	return map[string]any{"type": "object", "additionalProperties": map[string]any{"type": []string{"string", "number"}}, "minProperties": 1}
}

// either is a text, or a mapping that says more.
type either struct {
	short text
	long  section
}

func (e either) read(r *reader, n ast.Node, path string) {
	if n != nil && (n.Type() == ast.MappingType || n.Type() == ast.MappingValueType) {
		if e.short.at != nil {
			line, _ := place(n)
			e.short.at(line)
		}
		e.long.read(r, n, path)
		return
	}
	e.short.read(r, n, path)
}

func (e either) schema() map[string]any {
	return map[string]any{"anyOf": []any{e.short.schema(), e.long.schema()}}
}
