package policy

import "github.com/goccy/go-yaml/ast"

// mountShape is a mount, which needs both ends.
type mountShape struct {
	m *FileMount
	section
}

func (s mountShape) read(r *reader, n ast.Node, path string) {
	s.section.read(r, n, path)
	if r.err == nil && (s.m.Source == "" || s.m.Target == "") {
		r.fail(n, "a mount needs source and target")
	}
}

func (s mountShape) schema() map[string]any {
	out := s.section.schema()
	out["required"] = []string{"source", "target"}
	return out
}

// pinShape is the word pin of a credential.
type pinShape struct{ c *FileCredential }

func (s pinShape) read(r *reader, n ast.Node, path string) {
	pin := true
	yes{&pin}.read(r, n, path)
	s.c.Unpinned, s.c.PinSaid = !pin, true
}

func (pinShape) schema() map[string]any { return yes{}.schema() }

// ruleShape is a rule of the network: one word, or a mapping.
type ruleShape struct {
	raw   *fileRule
	entry *FileRule
	dst   *[]FileRule
	either
}

func (s ruleShape) read(r *reader, n ast.Node, path string) {
	s.either.read(r, n, path)
	if r.err != nil {
		return
	}
	rules, err := s.raw.rules()
	if err != nil {
		r.fail(n, "%s: %s", path, err)
		return
	}
	s.entry.Rules = rules
	*s.dst = append(*s.dst, *s.entry)
}

func (s ruleShape) schema() map[string]any {
	out := s.either.schema()
	out["anyOf"].([]any)[1].(map[string]any)["required"] = []string{"host"}
	return out
}
