// Package race has what a race decides without doing anything: the commands of its attempts, out of templates and rows of
// fields, and which of the results is the best, and why.
package race

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/template/parse"

	"github.com/pando-dev/pando/internal/cell"
)

// Bounds of a race.
const (
	MaxAttempts  = 256
	maxRows      = 256
	maxRowsBytes = 1 << 20
)

// Number is the field of templates that every attempt has: its number, from 1.
const Number = "n"

// Template is a text with fields in it.
type Template struct {
	parts []part
}

// part is text as it stands, or the name of a field.
type part struct {
	text  string
	field bool
}

// Parse reads a template. Of Go's text/template it has {{.NAME}} and {{"text"}} alone: neither can run for long, or make
// much out of little.
func Parse(text string) (Template, error) {
	bad := func(what string) error {
		return cell.Errorf(cell.Invalid, "race.Parse", `use {{.NAME}} for a field, and {{"{{"}} for two braces`, "cannot read %q as a template: %s", cell.Clip(text), what)
	}
	if !strings.Contains(text, "{{") {
		return Template{[]part{{text: text}}}, nil
	}
	t := parse.New("word")
	t.Mode = parse.SkipFuncCheck
	tree, err := t.Parse(text, "", "", map[string]*parse.Tree{})
	if err != nil {
		return Template{}, bad(strings.TrimPrefix(err.Error(), "template: "))
	}
	var out Template
	for _, n := range tree.Root.Nodes {
		switch n := n.(type) {
		case *parse.TextNode:
			out.parts = append(out.parts, part{text: string(n.Text)})
			continue
		case *parse.ActionNode:
			if len(n.Pipe.Decl) == 0 && len(n.Pipe.Cmds) == 1 && len(n.Pipe.Cmds[0].Args) == 1 {
				switch a := n.Pipe.Cmds[0].Args[0].(type) {
				case *parse.StringNode:
					out.parts = append(out.parts, part{text: a.Text})
					continue
				case *parse.FieldNode:
					if len(a.Ident) == 1 {
						out.parts = append(out.parts, part{text: a.Ident[0], field: true})
						continue
					}
				}
			}
		}
		return Template{}, bad(cell.Clip(n.String()) + " is neither a field nor text")
	}
	return out, nil
}

// Fields are the names of its fields.
func (t Template) Fields() (names []string) {
	for _, p := range t.parts {
		if p.field && !slices.Contains(names, p.text) {
			names = append(names, p.text)
		}
	}
	return names
}

// with puts values in the place of fields.
func (t Template) with(values map[string]string) (string, error) {
	var b strings.Builder
	for _, p := range t.parts {
		s := p.text
		if p.field {
			v, ok := values[p.text]
			if !ok {
				return "", cell.Errorf(cell.Invalid, "race.Template", "it has "+listed(slices.Sorted(maps.Keys(values))), "there is no field %s", strconv.Quote(p.text))
			}
			s = v
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

// Fill makes, for each of count attempts, the words of its command out of templates and rows of fields, which repeat in
// turn. unused are the fields that no template names.
func Fill(words []string, rows []map[string]string, count int) (out [][]string, unused []string, err error) {
	if err := CheckRows("variations", rows); err != nil {
		return nil, nil, err
	}
	var templates []Template
	used := map[string]bool{}
	for _, w := range words {
		t, err := Parse(w)
		if err != nil {
			return nil, nil, err
		}
		templates = append(templates, t)
		for _, f := range t.Fields() {
			used[f] = true
		}
	}
	names := map[string]bool{}
	for i, row := range rows {
		for name := range row {
			if names[name] = true; !isField(name) {
				return nil, nil, cell.Errorf(cell.Invalid, "race.Fill", "use letters, digits and _, not beginning with a digit", "cannot use row %d of the variations: %q is no name of a field", i+1, cell.Clip(name))
			}
			if name == Number {
				return nil, nil, cell.Errorf(cell.Invalid, "race.Fill", "choose another name", "cannot use row %d of the variations: %s is the number of the attempt", i+1, Number)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !used[name] {
			unused = append(unused, name)
		}
	}
	for i := range count {
		values := map[string]string{}
		where := ""
		if len(rows) > 0 {
			maps.Copy(values, rows[i%len(rows)])
			where = fmt.Sprintf(" (row %d of the variations)", i%len(rows)+1)
		}
		values[Number] = strconv.Itoa(i + 1)
		var made []string
		for _, t := range templates {
			w, err := t.with(values)
			if err != nil {
				return nil, nil, fmt.Errorf("attempt %d%s: %w", i+1, where, err)
			}
			made = append(made, w)
		}
		out = append(out, made)
	}
	return out, unused, nil
}

// CheckRows bounds the rows of a race.
func CheckRows(what string, rows []map[string]string) error {
	size := 0
	for i, row := range rows {
		if len(row) == 0 {
			return cell.Errorf(cell.Invalid, "race.CheckRows", "", "row %d of the %s has no fields", i+1, what)
		}
		for k, v := range row {
			size += len(k) + len(v)
		}
	}
	if len(rows) > maxRows || size > maxRowsBytes {
		return cell.Errorf(cell.Invalid, "race.CheckRows", fmt.Sprintf("at most %d rows, and %d KiB in all", maxRows, maxRowsBytes>>10), "there are too many %s", what)
	}
	return nil
}

// Row is the row of an attempt, from 0; nil for none.
func Row(rows []map[string]string, i int) map[string]string {
	if len(rows) == 0 {
		return nil
	}
	return rows[i%len(rows)]
}

// isField reports whether a template can name a field.
func isField(s string) bool {
	for i, c := range s {
		switch {
		case c == '_', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', i > 0 && c >= '0' && c <= '9':
		default:
			return false
		}
	}
	return s != ""
}

// listed are names in a sentence.
func listed(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
