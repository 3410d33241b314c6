package policy

import (
	"path"
	"strings"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"

	"github.com/pando-dev/pando/internal/cell"
)

// program is a pattern of programs that may not be executed.
type program struct{ text string }

// parseProgram gives the one form of a name ("curl": in any directory) or of a
// path ("/usr/bin/ssh*").
func parseProgram(s string) (string, error) {
	bad := func(why string) (string, error) {
		return "", cell.Errorf(cell.Invalid, "policy.program", "write a name such as curl, or a path such as /usr/bin/ssh*", "%q is no program: %s", s, why)
	}
	switch {
	case s == "" || s == "." || s == "..":
		return bad("it is empty")
	case strings.ContainsAny(s, "\x00\n"):
		return bad("it has a NUL or a new line")
	case strings.Contains(s, "/") && s[0] != '/':
		return bad("a path begins with /")
	case strings.Contains(s, "/") && path.Clean(s) != s:
		return bad("its one form is " + path.Clean(s))
	case strings.Contains(s, "**"):
		return bad("one * is enough")
	case strings.Contains(path.Dir(s), "*"):
		return bad("only the last part of a path can have a *")
	}
	return s, nil
}

func compilePrograms(list []string) (out []program, err error) {
	for _, s := range list {
		if c, err := parseProgram(s); err != nil || c != s {
			return nil, cell.Errorf(cell.Corrupt, "policy.Compile", "", "cannot use the policy: %q is no program", s)
		}
		out = append(out, program{s})
	}
	return out, nil
}

// MatchProgram reports whether the name of a program fits the last part of a
// pattern.
func MatchProgram(pattern, name string) bool { return matchSegment(pattern, name) }

func (p program) match(name string) bool {
	name = path.Clean(name)
	if !strings.Contains(p.text, "/") {
		return matchSegment(p.text, path.Base(name))
	}
	want, have := strings.Split(p.text, "/"), strings.Split(name, "/")
	if len(want) != len(have) {
		return false
	}
	for i := range want {
		if !matchSegment(want[i], have[i]) {
			return false
		}
	}
	return true
}

func (p *Rules) decideExecute(a cell.Access) cell.Decision {
	var hit []types.Value
	var first string
	for _, q := range p.programs {
		if q.match(a.Program) {
			if first == "" {
				first = q.text
			}
			hit = append(hit, types.String(q.text))
		}
	}
	f := p.builtin[cell.Execute]
	matched, failed := authorize(&candidates{ids: f.ids, policies: f.policies}, cell.Execute, types.RecordMap{"program": types.NewSet(hit...)})
	switch {
	case a.Program == "" || failed != "" || len(matched) == 0:
		return cell.Decision{Effect: cell.Deny, Rule: ruleError, Origin: "default", Reason: "the policy could not be evaluated: " + failed}
	case matched[0] == cedar.PolicyID(ruleProgram):
		name := ruleProgram + " " + first
		return cell.Decision{Effect: cell.Deny, Rule: name, Origin: p.origin(name), Reason: name + " denies executing " + clip(a.Program)}
	}
	return cell.Decision{Effect: cell.Allow, Rule: ruleDefault, Origin: "default", Reason: "no rule denies executing " + clip(a.Program)}
}
