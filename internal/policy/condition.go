package policy

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/glob"
)

// The subjects of own rules: what a rule looks at, one by one.
const (
	WhenPaths        = "paths"
	WhenText         = "text"
	WhenDependencies = "dependencies"
	WhenNetwork      = "network"
	WhenRun          = "run"
)

func subjects() []string {
	return []string{WhenPaths, WhenText, WhenDependencies, WhenNetwork, WhenRun}
}

// A Field is something of the evidence that a condition can ask for.
type Field struct {
	Name  string
	When  string   // the subject that has it; those of a run are there for all subjects
	Words []string // its only values; nil for numbers and texts
	About string

	number func(string) (float64, error) // reads a number; nil: a text
}

func plainNumber(s string) (float64, error) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || s == "" || strings.Trim(s, "0123456789.") != "" {
		return 0, cell.Errorf(cell.Invalid, "policy.condition", "write a number such as 50", "%s is no number", Quoted(s))
	}
	return n, nil
}

// bytesNumber and millis read also what is nothing: 0.
func bytesNumber(s string) (float64, error) {
	if s == "0" {
		return 0, nil
	}
	n, err := ParseSize(s)
	return float64(n), err
}

func millis(s string) (float64, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, cell.Errorf(cell.Invalid, "policy.condition", "write it as 90s, 10m or 1h30m", "%s is no duration", Quoted(s))
	}
	return float64(d.Milliseconds()), nil
}

var fields = []Field{
	{"path", WhenPaths, nil, "the path of the changed file", nil},
	{"status", WhenPaths, []string{"added", "modified", "deleted", "renamed", "type-changed", "mode-changed"}, "what was done to it", nil},
	{"kind", WhenPaths, []string{"file", "executable", "link", "submodule"}, "what it is after the run; of a deleted one, what it was", nil},
	{"binary", WhenPaths, []string{"yes", "no"}, "whether its content is not text", nil},
	{"size", WhenPaths, nil, "its size after the run, such as 2M", bytesNumber},
	{"lines.added", WhenPaths, nil, "lines added in it", plainNumber},
	{"lines.deleted", WhenPaths, nil, "lines deleted in it", plainNumber},
	{"path", WhenText, nil, "the path of the file with the added line", nil},
	{"name", WhenDependencies, nil, "the name of the dependency", nil},
	{"change", WhenDependencies, []string{"added", "removed", "source"}, "what became of it; source: it comes from elsewhere than before", nil},
	{"path", WhenDependencies, nil, "the path of the manifest", nil},
	{"host", WhenNetwork, nil, "the name or address", nil},
	{"outcome", WhenNetwork, []string{"reached", "denied"}, "whether the gateway let it through", nil},
	{"times", WhenNetwork, nil, "how often it was denied; of a reached one, the requests that were seen", plainNumber},
	{"exit", WhenRun, nil, "the exit code of the command", plainNumber},
	{"check", WhenRun, []string{"passed", "failed", "none"}, "the outcome of --check", nil},
	{"cause", WhenRun, nil, "the cause of the end, if not the command's own: timeout, …", nil},
	{"duration", WhenRun, nil, "how long the command took, such as 10m", millis},
	{"cpu", WhenRun, nil, "its processor time, such as 1h", millis},
	{"memory", WhenRun, nil, "its peak of memory, such as 2G", bytesNumber},
	{"processes.left", WhenRun, nil, "processes that were ended with the command", plainNumber},
	{"files", WhenRun, nil, "changed files", plainNumber},
	{"files.added", WhenRun, nil, "added files", plainNumber},
	{"files.deleted", WhenRun, nil, "deleted files", plainNumber},
	{"bytes", WhenRun, nil, "the size of the files that are new or have other content", bytesNumber},
	{"denied", WhenRun, nil, "requests that the gateway denied", plainNumber},
	{"sent", WhenRun, nil, "bytes that left the cell", bytesNumber},
	{"tokens", WhenRun, nil, "tokens of models, as their answers say", plainNumber},
	{"usd", WhenRun, nil, "the price of these in US dollars; not known where a model has no price", plainNumber},
	{"agent", WhenRun, nil, "the coding agent, '' for none", nil},
	{"mode", WhenRun, nil, "its mode, '' for strict", nil},
	{"model", WhenRun, nil, "a model that answered", nil},
	{"command", WhenRun, nil, "the command, its words with spaces between", nil},
	{"ref", WhenRun, nil, "the reason given by --ref, '' for none", nil},
	{"backend", WhenRun, []string{"none", "namespace", "gvisor", "microvm"}, "the backend of its cell", nil},
}

// Fields are those that conditions of own rules can ask for.
func Fields() []Field { return slices.Clone(fields) }

// Kind is what a field has, for people.
func (f Field) Kind() string {
	switch {
	case f.number != nil:
		return "number"
	case f.Words != nil:
		return strings.Join(f.Words, ", ")
	}
	return "text"
}

// A Condition is "FIELD OPERATOR VALUE": numbers by = != < <= > >=, texts by = and != (a * stands for any text), and by ~ and !~
// with a regular expression of RE2.
type Condition struct {
	Field string
	op    string
	value string
	limit float64
	exp   *regexp.Regexp
	isNum bool
}

const conditionShape = "write FIELD OPERATOR VALUE, such as duration > 10m"

// ParseCondition reads a condition of a rule that looks at a subject.
func ParseCondition(when, s string) (Condition, error) {
	const op = "policy.condition"
	bad := func(hint, format string, args ...any) (Condition, error) {
		return Condition{}, cell.Errorf(cell.Invalid, op, hint, format, args...)
	}
	words := strings.Fields(s)
	if len(words) < 3 {
		return bad(conditionShape, "%s is no condition", Quoted(s))
	}
	c := Condition{Field: words[0], op: words[1], value: strings.Join(words[2:], " ")}
	if n := len(c.value); n >= 2 && (c.value[0] == '\'' || c.value[0] == '"') && c.value[n-1] == c.value[0] {
		c.value = c.value[1 : n-1]
	}
	var names []string
	at := -1
	for i, f := range fields {
		if f.When == when || f.When == WhenRun {
			if names = append(names, f.Name); f.Name == c.Field && at < 0 {
				at = i
			}
		}
	}
	if at < 0 {
		if near := didYouMean(c.Field, names); near != "" {
			return bad("", "%s is no field of %s%s", Quoted(c.Field), when, near)
		}
		return bad("the fields are "+strings.Join(names, ", "), "%s is no field of %s", Quoted(c.Field), when)
	}
	f := fields[at]
	ops := []string{"=", "!=", "~", "!~"}
	switch {
	case f.number != nil:
		ops = []string{"=", "!=", "<", "<=", ">", ">="}
	case f.Words != nil:
		ops = ops[:2]
	}
	if !slices.Contains(ops, c.op) {
		return bad("use one of "+strings.Join(ops, " "), "%s is no operator for %s", Quoted(c.op), f.Name)
	}
	var err error
	switch {
	case f.number != nil:
		c.isNum = true
		c.limit, err = f.number(c.value)
	case f.Words != nil && !slices.Contains(f.Words, c.value):
		return bad("use one of "+strings.Join(f.Words, ", "), "%s is no value of %s", Quoted(c.value), f.Name)
	case strings.HasSuffix(c.op, "~"):
		c.exp, err = parseExpression(c.value)
	}
	return c, err
}

// Number reports whether a number fulfils the condition.
func (c Condition) Number(n float64) bool {
	switch c.op {
	case "=":
		return n == c.limit
	case "!=":
		return n != c.limit
	case "<":
		return n < c.limit
	case "<=":
		return n <= c.limit
	case ">":
		return n > c.limit
	}
	return n >= c.limit
}

// Text reports whether values fulfil the condition: one of them does; for != and !~, none is or matches what it says.
func (c Condition) Text(values ...string) bool {
	is := slices.ContainsFunc(values, func(v string) bool {
		if c.exp != nil {
			return c.exp.MatchString(v)
		}
		return glob.Match(c.value, v)
	})
	return is != strings.HasPrefix(c.op, "!")
}

// parseExpression reads a regular expression of RE2; its time is in proportion to the text.
func parseExpression(s string) (*regexp.Regexp, error) {
	e, err := regexp.Compile(s)
	if err != nil {
		return nil, cell.Errorf(cell.Invalid, "policy.expression", "write it as RE2 has it: no look-around, no back-references", "%s is no regular expression: %w", Quoted(s), err)
	}
	return e, nil
}

// FieldOf is the subject that a field of a rule's conditions belongs to: that of the rule, or the run.
func FieldOf(when, name string) string {
	if slices.ContainsFunc(fields, func(f Field) bool { return f.When == when && f.Name == name }) {
		return when
	}
	return WhenRun
}
