package policy

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// Bounds of own rules.
const (
	maxOwnRules    = 100 // of a file
	maxRulePattern = 200 // bytes of a pattern, an expression or a condition
	maxRuleList    = 32  // patterns of a rule, or conditions
	maxExpressions = 8   // regular expressions of a rule
	maxExplain     = 300 // bytes
)

// Findings says what is looked for in the evidence of a run beside the rules of the house, and which of these are not wanted.
type Findings struct {
	Rules    []OwnRule         `json:"rules,omitempty"` // by id
	Off      []string          `json:"off,omitempty"`
	Severity map[string]string `json:"severity,omitempty"` // by id of a rule of the house
}

// OwnRule finds what matches one of Match, if there are any, none of Except, has an added line with one of Text, if there are
// any, and fulfils all of If.
type OwnRule struct {
	ID       string   `json:"id"`
	Severity string   `json:"severity"`
	Explain  string   `json:"explain"`
	When     string   `json:"when"`
	Match    []string `json:"match,omitempty"`
	Except   []string `json:"except,omitempty"`
	Text     []string `json:"text,omitempty"`
	If       []string `json:"if,omitempty"`
}

// Own is before the id of a rule that a policy has, wherever it is named: no rule of the house has a slash.
const Own = "own/"

// HouseFindings are the rules of the house, with their severities. internal/finding has what they do, and holds both to be the same.
func HouseFindings() map[string]string { return maps.Clone(houseFindings) }

// CompiledRule is an own rule that can be asked.
type CompiledRule struct {
	OwnRule
	Conditions []Condition
	text       *regexp.Regexp
}

// Compile reads the patterns of a rule.
func (r OwnRule) Compile() (CompiledRule, error) {
	out := CompiledRule{OwnRule: r}
	for _, s := range r.If {
		c, err := ParseCondition(r.When, s)
		if err != nil {
			return out, err
		}
		out.Conditions = append(out.Conditions, c)
	}
	if len(r.Text) == 0 {
		return out, nil
	}
	for _, s := range r.Text {
		if _, err := parseExpression(s); err != nil {
			return out, err
		}
	}
	all, err := parseExpression("(?:" + strings.Join(r.Text, ")|(?:") + ")")
	out.text = all
	return out, err
}

// Names reports whether the rule looks at a thing with one of these names.
func (r *CompiledRule) Names(names ...string) bool {
	among := func(patterns []string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool {
			return slices.ContainsFunc(names, func(n string) bool { return n != "" && ownMatch(p, n) })
		})
	}
	return (len(r.Match) == 0 || among(r.Match)) && !among(r.Except)
}

// Line reports whether an added line is one of those that the rule looks for.
func (r *CompiledRule) Line(s string) bool { return r.text == nil || r.text.MatchString(s) }

// ownMatch matches a path against a pattern: * and ? stand for characters of one segment, ** for any number of segments. A pattern
// without a slash matches the last segment.
func ownMatch(pattern, name string) bool {
	if !strings.Contains(pattern, "/") {
		if pattern == "**" {
			return true
		}
		ok, _ := path.Match(pattern, path.Base(name))
		whole, _ := path.Match(pattern, name) // @scope/name has none
		return ok || whole
	}
	return segmentsMatch(strings.Split(strings.TrimPrefix(pattern, "/"), "/"), strings.Split(name, "/"))
}

// segmentsMatch takes time in proportion to the product of both lengths.
func segmentsMatch(pattern, name []string) bool {
	reach := make([]bool, len(name)+1) // the beginnings of name that the pattern so far matches
	reach[0] = true
	for _, p := range pattern {
		next := make([]bool, len(name)+1)
		for i, can := range reach {
			switch {
			case !can:
			case p == "**":
				for j := i; j <= len(name); j++ {
					next[j] = true
				}
			case i < len(name):
				if ok, _ := path.Match(p, name[i]); ok {
					next[i+1] = true
				}
			}
		}
		reach = next
	}
	return reach[len(name)]
}

// FileFindings is the section findings of a file.
type FileFindings struct {
	Findings
	lines map[string]int // of rules by "own/ID", of off by "off ID", of severities by "severity ID"
}

func (f *FileFindings) note(name string, line int) {
	if f.lines == nil {
		f.lines = map[string]int{}
	}
	f.lines[name] = line
}

const opFindings = "policy.ParseFile"

func checkSeverity(s string) error {
	if api.SeverityWeight(s) > 0 {
		return nil
	}
	return cell.Errorf(cell.Invalid, opFindings, "write one of "+strings.Join(api.Severities(), ", "), "%s is no severity", Quoted(s))
}

func checkHouse(id string) error {
	if _, is := houseFindings[id]; is {
		return nil
	}
	hint := "`pando help policy` and docs/reference/findings.md name them"
	if near := didYouMean(id, slices.Sorted(maps.Keys(houseFindings))); near != "" {
		hint = strings.TrimPrefix(near, "; ")
	}
	return cell.Errorf(cell.Invalid, opFindings, hint, "%s is no rule of pando's", Quoted(id))
}

func checkOwnPattern(s string) error {
	if err := bounded(s); err != nil {
		return err
	}
	for seg := range strings.SplitSeq(s, "/") {
		if _, err := path.Match(seg, ""); err != nil || seg != "**" && strings.Contains(seg, "**") {
			return cell.Errorf(cell.Invalid, opFindings, "* stands for characters of one segment, ** as a whole segment for any number of segments", "%s is no pattern", Quoted(s))
		}
	}
	return nil
}

func bounded(s string) error {
	if len(s) > maxRulePattern || strings.ContainsAny(s, "\x00\n") {
		return cell.Errorf(cell.Invalid, opFindings, "", "it has a NUL or a new line, or more than %d bytes", maxRulePattern)
	}
	return nil
}

// words are those of the section findings.
func (f *FileFindings) words() section {
	return section{words: []word{
		{name: "rules", about: "Rules of your own over the evidence of a run. docs/reference/findings.md has the fields.", shape: list{item: f.rule}},
		{name: "off", about: "Rules of pando's that are not looked for. The report names them. Only a file of the host or the user says it.", shape: list{item: func(int) shape {
			at := 0
			return text{at: func(n int) { at = n }, set: func(s string) error {
				if f.Severity[s] != "" {
					return cell.Errorf(cell.Invalid, opFindings, "take one of them out", "%s has a severity in the same file", s)
				}
				f.Off = append(f.Off, s)
				f.note("off "+s, at)
				return checkHouse(s)
			}}
		}}},
		{name: "severity", about: "Other severities for rules of pando's. A layer below those of host and user can only raise.", shape: severities{f}},
	}}
}

func (f *FileFindings) rule(n int) shape {
	f.Rules = append(f.Rules, OwnRule{})
	i := len(f.Rules) - 1
	r := func() *OwnRule { return &f.Rules[i] }
	many := func(dst func() *[]string, most int, check func(string) error) shape {
		return list{one: true, item: func(n int) shape {
			return text{set: func(s string) error {
				if *dst() = append(*dst(), s); n >= most {
					return cell.Errorf(cell.Invalid, opFindings, "write a second rule", "there are more than %d", most)
				}
				return check(s)
			}}
		}}
	}
	at := 0
	return ownRuleShape{f: f, i: i, section: section{words: []word{
		{name: "id", about: "Its name: a-z, 0-9 and -. Reports have it as own/ID.", must: true, shape: text{at: func(n int) { at = n }, set: func(s string) error {
			r().ID = s
			if n >= maxOwnRules {
				return cell.Errorf(cell.Invalid, opFindings, "", "there are more than %d rules", maxOwnRules)
			}
			if len(s) > 40 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
				return cell.Errorf(cell.Invalid, opFindings, "use a-z, 0-9 and -, at most 40", "%s is no id", Quoted(s))
			}
			if f.lines[Own+s] > 0 {
				return cell.Errorf(cell.Invalid, opFindings, "give each rule an id of its own", "%s is there twice", s)
			}
			f.note(Own+s, at)
			return nil
		}}},
		{name: "severity", about: "How much it matters.", must: true, shape: text{words: api.Severities(), set: func(s string) error { r().Severity = s; return checkSeverity(s) }}},
		{name: "explain", about: "Why it matters, in a sentence, for a reader of the report.", must: true, shape: text{set: func(s string) error {
			hidden := func(c rune) bool { return !unicode.IsPrint(c) } // control sequences of terminals, and marks that reorder text
			if r().Explain = s; len(s) > maxExplain || !utf8.ValidString(s) || strings.ContainsFunc(s, hidden) {
				return cell.Errorf(cell.Invalid, opFindings, "", "it has a character that is not printed, or more than %d bytes", maxExplain)
			}
			return nil
		}}},
		{name: "when", about: "What it looks at: changed paths, added lines of text, dependencies, hosts of the network, or the run.", must: true, shape: text{words: subjects(), set: func(s string) error {
			if r().When = s; !slices.Contains(subjects(), s) {
				return cell.Errorf(cell.Invalid, opFindings, "write one of "+strings.Join(subjects(), ", "), "%s is nothing that a rule looks at", Quoted(s))
			}
			return nil
		}}},
		{name: "match", about: "Patterns of paths, of names of dependencies, or of hosts: one must match. Without, all do.", shape: many(func() *[]string { return &r().Match }, maxRuleList, checkOwnPattern)},
		{name: "except", about: "Patterns of what it leaves out.", shape: many(func() *[]string { return &r().Except }, maxRuleList, checkOwnPattern)},
		{name: "text", about: "For text: regular expressions of RE2 on added lines; one must match.", shape: many(func() *[]string { return &r().Text }, maxExpressions, func(s string) error {
			if err := bounded(s); err != nil {
				return err
			}
			_, err := parseExpression(s)
			return err
		})},
		{name: "if", about: "Conditions, FIELD OPERATOR VALUE such as duration > 10m: all must hold.", shape: many(func() *[]string { return &r().If }, maxRuleList, bounded)},
	}}}
}

// ownRuleShape reads a rule, and then whether its parts go together.
type ownRuleShape struct {
	f *FileFindings
	i int
	section
}

func (s ownRuleShape) read(r *reader, n ast.Node, path string) {
	s.section.read(r, n, path)
	if r.err != nil {
		return
	}
	rule := s.f.Rules[s.i]
	switch {
	case rule.When == WhenText && len(rule.Text) == 0:
		r.fail(n, "%s needs text: regular expressions on added lines", path)
	case rule.When != WhenText && len(rule.Text) > 0:
		r.fail(n, "%s.text is for when: text, not %s", path, rule.When)
	case rule.When == WhenRun && len(rule.Match)+len(rule.Except) > 0:
		r.fail(n, "%s.match and except are not for when: run: use if", path)
	case rule.When != WhenText && len(rule.Match)+len(rule.If) == 0:
		r.fail(n, "%s would find all of %s: give match or if", path, rule.When)
	}
	if r.err != nil {
		return
	}
	if _, err := rule.Compile(); err != nil {
		hint := ""
		if h := cell.HintOf(err); h != "" {
			hint = ": " + h
		}
		r.fail(partOf(n, "if"), "%s.if: %s%s", path, err, hint)
	}
}

// partOf is the value of a key of a mapping, or the mapping.
func partOf(n ast.Node, key string) ast.Node {
	if m, ok := n.(*ast.MappingNode); ok {
		for _, p := range m.Values {
			if keyText(p.Key) == key {
				return p
			}
		}
	}
	return n
}

// severities is a mapping of rules of pando's to severities.
type severities struct{ f *FileFindings }

func (s severities) read(r *reader, n ast.Node, path string) {
	for _, p := range r.pairs(n, path) {
		id := keyText(p.Key)
		line, _ := place(p.Key)
		if err := checkHouse(id); err != nil {
			r.fail(p.Key, "%s: %s: %s", path, err, cell.HintOf(err))
		} else if s.f.Severity[id] != "" {
			r.fail(p.Key, "%s is there twice", join(path, id))
		} else if slices.Contains(s.f.Off, id) {
			r.fail(p.Key, "%s: %s is switched off in the same file", path, id)
		}
		text{set: func(v string) error {
			if s.f.Severity == nil {
				s.f.Severity = map[string]string{}
			}
			s.f.Severity[id] = v
			s.f.note("severity "+id, line)
			return checkSeverity(v)
		}}.read(r, p.Value, join(path, id))
		if r.err != nil {
			return
		}
	}
}

func (s severities) schema() map[string]any {
	return map[string]any{"type": "object", "propertyNames": map[string]any{"enum": slices.Sorted(maps.Keys(houseFindings))},
		"additionalProperties": map[string]any{"enum": api.Severities()}, "minProperties": 1}
}

// findings adds up rules. Host and user say what is off, and lower severities, the user nothing that the host says; what is
// below them raises.
func (m *merger) findings(l Layer) error {
	f, dst := &l.File.Findings, &m.r.Findings
	denied := func(what, name, hint string) error {
		return cell.Errorf(cell.Denied, "policy.Merge", hint, "cannot %s (%s)", what, l.File.at(f.lines[name]))
	}
	for _, r := range f.Rules {
		if at := m.r.Origins.Lines[Own+r.ID]; at != "" {
			return denied("add the rule "+Own+r.ID+": there is one at "+at, Own+r.ID, "give it another id")
		}
		dst.Rules = append(slices.Clone(dst.Rules), r)
		m.origin(Own+r.ID, l.File.at(f.lines[Own+r.ID]))
	}
	trusted := l.Name == LayerHost || l.Name == LayerUser
	for _, id := range f.Off {
		name := "off " + id
		switch {
		case !trusted:
			return denied("switch off the rule "+id+": a policy of a repository or a run does not", name, "write it into your own policy")
		case m.r.Origins.Lines["severity "+id] != "":
			return denied("switch off the rule "+id+": "+m.r.Origins.Lines["severity "+id]+" has a severity for it", name, "take it out")
		case !slices.Contains(dst.Off, id):
			dst.Off = append(slices.Clone(dst.Off), id)
			m.origin(name, l.File.at(f.lines[name]))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(f.Severity)) {
		name, to := "severity "+id, f.Severity[id]
		above := m.r.Origins.Lines[name]
		is := houseFindings[id]
		if dst.Severity[id] != "" {
			is = dst.Severity[id]
		}
		off := slices.Contains(dst.Off, id)
		if api.SeverityWeight(to) < api.SeverityWeight(is) && !off && (!trusted || above != "") {
			if above == "" {
				above = "it is " + is
			} else {
				above += " says " + is
			}
			return denied("lower the rule "+id+" to "+to+": "+above, name, "a lower layer can only raise: take it out")
		}
		dst.Off = slices.DeleteFunc(slices.Clone(dst.Off), func(o string) bool { return o == id })
		delete(m.r.Origins.Lines, "off "+id)
		dst.Severity = maps.Clone(dst.Severity)
		if dst.Severity == nil {
			dst.Severity = map[string]string{}
		}
		dst.Severity[id] = to
		m.r.Origins.Lines[name] = l.File.at(f.lines[name])
	}
	if len(dst.Off) == 0 {
		dst.Off = nil
	}
	return nil
}

// canonical has rules and what is off in the order of ids.
func (f Findings) canonical() Findings {
	f.Rules, f.Off = slices.Clone(f.Rules), slices.Clone(f.Off)
	slices.SortFunc(f.Rules, func(a, b OwnRule) int { return strings.Compare(a.ID, b.ID) })
	slices.Sort(f.Off)
	return f
}

// show lists what the section says: name, as origins have it, and text.
func (f Findings) show() (out [][2]string) {
	f = f.canonical()
	for _, r := range f.Rules {
		out = append(out, [2]string{Own + r.ID, r.Severity + " " + Own + r.ID + ": " + r.Explain})
	}
	for _, id := range f.Off {
		out = append(out, [2]string{"off " + id, "the rule " + id + " is off"})
	}
	for _, id := range slices.Sorted(maps.Keys(f.Severity)) {
		out = append(out, [2]string{"severity " + id, "the rule " + id + " is " + f.Severity[id]})
	}
	return out
}
